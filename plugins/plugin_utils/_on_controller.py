# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of actions that only judge and print on the controller."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils._core.shown_text import one_line, printable_values


def block(lines: t.Iterable[str]) -> str:
    """Return lines as a block for the terminal: indented, an empty line around them, each on a line of its own."""
    return "\n" + "\n".join(f"  {one_line(line)}".rstrip() for line in lines) + "\n"


def this_run() -> str:
    """Return what tells this run of Ansible from any other: its main process, whose child each task's process is."""
    main = os.getppid()
    try:
        began = Path(f"/proc/{main}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:  # a controller without /proc
        began = ""
    return f"{main} {began}"


class OnController(ActionBase):
    """An action without a connection, the same in check mode.

    A subclass gives ``SPEC`` (an argument spec) and :meth:`answer`.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False
    SPEC: t.ClassVar[dict[str, t.Any]] = {}

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Validate the options and return the subclass's answer, which never changes anything."""
        super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(self.SPEC)
        # What was seen comes from targets: nothing of it may move a terminal's cursor, here or with -v.
        return {"changed": False, **printable_values(self.answer(printable_values(given), task_vars or {}))}

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Return the result for validated options."""
        raise NotImplementedError
