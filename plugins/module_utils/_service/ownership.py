# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are ours to end, decided from facts and never from names."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._linux.processes import Process, within_cgroup


@dataclasses.dataclass(frozen=True)
class Owner:
    """The criteria for a process of ours.

    :param control_group: of the unit, as systemd names it (empty: it has none now).
    :param container: id of the container, where the node looks into it; 0: we look from inside.
    :param uid: of the service user; -1: there is none here. Root owns too much to be a mark, so 0 counts as none.
    :param roots: folders of our environments; a process that maps a file below one runs from it.
    :param unit_runs: the unit is active, so its own processes are the service and no leftovers.
    """

    unit: str
    control_group: str = ""
    container: int = 0
    uid: int = -1
    roots: tuple[str, ...] = ()
    unit_runs: bool = False


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A process to end, and why it is ours."""

    process: Process
    reason: str


def leftovers(processes: t.Iterable[Process], owner: Owner, spared: t.Collection[int], listeners: t.Collection[int] = ()) -> list[Leftover]:
    """Return what is ours and should not be there any more.

    :param spared: process ids never to be chosen (our own, its parents).
    :param listeners: process ids that listen on the service's port.
    """
    found = []
    for process in processes:
        # A zombie holds nothing any more; only its parent can make it vanish.
        if process.pid in spared or process.pid <= 1 or process.state == "Z":
            continue
        reason = _reason(process, owner, process.pid in listeners)
        if reason:
            found.append(Leftover(process, reason))
    return found


def foreign_holders(processes: t.Iterable[Process], owner: Owner, ours: t.Collection[int]) -> list[Process]:
    """Return the processes that have a GPU open and are none of ours (a running unit's processes are ours)."""
    return [process for process in processes if process.devices and process.pid not in ours and not in_unit(process, owner)]


def in_unit(process: Process, owner: Owner) -> bool:
    """Whether a process belongs to the unit, seen from inside the container or from its node."""
    if owner.container:
        group = re.match(rf"/lxc(?:\.payload)?[./]{owner.container}(?:/|$)", process.cgroup)
        return bool(group) and f"/{owner.unit}" in f"{process.cgroup}/" and owner.unit in process.cgroup.split("/")
    return within_cgroup(process.cgroup, owner.control_group) if _own_group(owner) else False


def _own_group(owner: Owner) -> bool:
    # A group that does not end in the unit's name (the root, a slice) would make everybody ours.
    return owner.control_group.rsplit("/", 1)[-1] == owner.unit


def _reason(process: Process, owner: Owner, listens: bool) -> str:
    if in_unit(process, owner):
        return "" if owner.unit_runs else f"in the control group of {owner.unit}"
    if owner.uid <= 0 or process.uid != owner.uid or owner.container:
        return ""
    root = next((root for root in owner.roots if any(_below(path, root) for path in process.mapped)), "")
    if not root:
        return ""
    if process.devices:
        return f"runs from {root} as the service user and has {', '.join(process.devices)} open"
    return f"runs from {root} as the service user and holds the service's port" if listens else ""


def _below(path: str, root: str) -> bool:
    folder = root.rstrip("/")
    return bool(folder) and path.startswith(f"{folder}/")


def state_words(process: Process) -> str:
    """Return what keeps a process from ending; empty for an ordinary one."""
    return {
        "D": "waits in the kernel and cannot be ended (disk, network file system or driver)",
        "Z": "is dead already, its parent has to collect it; it holds no GPU memory",
    }.get(process.state, "")
