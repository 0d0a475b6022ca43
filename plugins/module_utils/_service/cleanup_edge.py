# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that finds and ends what is left of our service."""

from __future__ import annotations

import os
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command
from .._linux.processes import Process
from .._linux.processes_edge import ProcessTable
from .._linux.processes_end_edge import Ender
from .._linux.systemd_edge import Systemd
from .._linux.text_file_edge import user_id
from .._linux.unit_state import PROPERTIES, unit_state_from_show
from .ownership import Leftover, Owner, foreign_holders, leftovers, state_words

_KILL_WAIT_S = 15.0


def owner_of(unit: str, user: str, roots: t.Sequence[str], container: int = 0) -> Owner:
    """Read what makes a process ours; ``container`` is its id where the node looks into it."""
    if container:
        return Owner(unit, container=container, unit_runs=_runs_inside(unit, container))
    state = Systemd(unit).state()
    try:
        uid = user_id(user)
    except KproError:
        # No such user, so no process.
        uid = -1
    return Owner(unit, state.control_group or f"/system.slice/{unit}", uid=uid, roots=tuple(roots), unit_runs=state.running)


def _runs_inside(unit: str, container: int) -> bool:
    """Whether the unit runs in a container of this node; a container that does not answer may run it, one that is stopped does not."""
    command, name = Command(), str(container)
    if "STOPPED" in command.run(["lxc-info", "--name", name, "--state"]).stdout:
        return False
    inside = ["lxc-attach", "--name", name, "--clear-env", "--", "systemctl", "show", unit, f"--property={','.join(PROPERTIES)}"]
    answer = command.run(inside)
    return answer.rc != 0 or unit_state_from_show(answer.stdout).running


def survey(table: ProcessTable, owner: Owner, port: int) -> tuple[list[Leftover], list[Process]]:
    """Return what is ours to end, and who else holds a GPU."""
    processes = table.snapshot(owner.uid)
    spared = _own_pids(processes)
    holder = table.listener(port)[1] if port else None
    found = leftovers(processes, owner, spared, {holder.pid} if holder else set())
    return found, foreign_holders(processes, owner, spared | {left.process.pid for left in found})


def end_leftovers(table: ProcessTable, found: t.Sequence[Leftover], term_wait_s: float) -> list[dict[str, t.Any]]:
    """End them and return a row for each."""
    endings = Ender(table).end([left.process for left in found], term_wait_s, _KILL_WAIT_S)
    return [leftover_row(left, ending.how) for left, ending in zip(found, endings, strict=True)]


def leftover_row(left: Leftover, how: str) -> dict[str, t.Any]:
    """Return a leftover as plain values for a module's result."""
    process = left.process
    return {"pid": process.pid, "command": process.command, "how": how, "reason": left.reason, "note": state_words(process)}


def _own_pids(processes: t.Sequence[Process]) -> set[int]:
    parents = {process.pid: process.parent_pid for process in processes}
    pid, chain = os.getpid(), set()
    while pid and pid not in chain:
        chain.add(pid)
        pid = parents.get(pid, 0)
    return chain
