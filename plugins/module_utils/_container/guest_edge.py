# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until a started container answers."""

from __future__ import annotations

import time
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command

POLL_S = 0.5
# Container guests often end "degraded" (mounts that a container may not make), which says nothing against them.
ANSWERS = frozenset({"starting", "running", "degraded", "maintenance"})


class Guest:
    """A running container seen from its node."""

    def __init__(self, vmid: int, command: Command) -> None:
        self._vmid = vmid
        self._command = command

    def wait_for_systemd(self, timeout_s: float) -> None:
        """Wait until the container's systemd has reached its basic target and answers.

        :raises KproError: with its last answer, if that takes longer.
        """
        argv = ["lxc-attach", "-n", str(self._vmid), "--clear-env", "--", "systemctl", "show", "--property=SystemState", "--value"]

        end = time.monotonic() + timeout_s

        def state() -> str:
            try:
                result = self._command.run(argv, timeout_s=max(end - time.monotonic(), 1.0))
            except KproError as error:
                if "no end after" not in error.reason:
                    raise
                return "no word at all"
            return result.stdout.strip() if result.rc == 0 else result.last_error_line

        answer = wait_for(state, lambda text: text in ANSWERS, timeout_s)
        if answer not in ANSWERS:
            if self._is_frozen():
                raise KproError(
                    f"container {self._vmid}",
                    "it runs, but it is frozen: Proxmox calls that running, and nothing in it moves (somebody froze it, or a backup was cut off)",
                    f"'lxc-unfreeze -n {self._vmid}' on the node lets it go on",
                )
            raise KproError(
                f"systemd in container {self._vmid}",
                f"no answer within {timeout_s:g} s of the start, last: {answer}",
                f"'pct enter {self._vmid}' on the node; a guest with systemd needs features nesting=1",
            )

    def _is_frozen(self) -> bool:
        """Tell whether the container's processes are held by the freezer of its control group."""
        try:
            return "FROZEN" in self._command.run(["lxc-info", "-n", str(self._vmid), "-s", "-H"], timeout_s=10.0).stdout
        except KproError:
            return False


def wait_for(look: t.Callable[[], str], good: t.Callable[[str], bool], timeout_s: float) -> str:
    """Poll until good or timed out; return the last answer."""
    end = time.monotonic() + timeout_s
    while True:
        answer = look()
        if good(answer) or time.monotonic() >= end:
            return answer
        time.sleep(POLL_S)
