# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes and listeners, from the kernel's tables."""

from __future__ import annotations

import dataclasses
import re

_LISTEN = "0A"


@dataclasses.dataclass(frozen=True)
class Process:
    """A process as ``/proc`` shows it.

    :param start_ticks: start time in clock ticks since boot, tells a reused PID apart.
    :param cgroup: path of the unified hierarchy (the ``0::`` line).
    :param devices: paths of open ``/dev/nvidia*`` files.
    :param mapped: absolute paths of programs and libraries mapped into it, for "runs from our environment".
    """

    pid: int
    uid: int = -1
    state: str = ""
    start_ticks: int = 0
    parent_pid: int = 0
    command: str = ""
    cgroup: str = ""
    devices: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The systemd unit it belongs to; empty if none is in its control group's path."""
        parts = [part for part in self.cgroup.split("/") if part.endswith((".service", ".scope"))]
        return parts[-1] if parts else ""

    @property
    def container(self) -> int:
        """Id of the LXC container it runs in, seen from the node; 0 for the node's own, and for all seen from inside."""
        found = re.match(r"/(?:[^\n]*/)?lxc(?:\.payload)?[./](\d+)(?:/|$)", self.cgroup)
        return int(found[1]) if found else 0


def listening_inodes(table: str, port: int) -> set[str]:
    """Return the socket inodes that listen on ``port``, from the text of ``/proc/net/tcp`` or ``tcp6``."""
    wanted = f"{port:04X}"
    inodes = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and fields[1].rpartition(":")[2] == wanted:
            inodes.add(fields[9])
    return inodes


def unified_cgroup(text: str) -> str:
    """Return the path of the unified hierarchy from the text of ``/proc/PID/cgroup``; v1 lines (before it) are another tree."""
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:].strip()
    return ""


def within_cgroup(path: str, group: str) -> bool:
    """Whether ``path`` is the control group ``group`` or below it."""
    return bool(group) and (path == group or path.startswith(f"{group.rstrip('/')}/"))


def process_words(process: Process, user: str = "") -> str:
    """Name a process for a person: PID, program, user, unit."""
    name = process.command or "a process without a command line"
    container = f", container {process.container}" if process.container else ""
    where = f"{container}, unit {process.unit}" if process.unit else container
    who = f", user {user}" if user else f", uid {process.uid}" if process.uid >= 0 else ""
    return f"pid {process.pid} ({name[:80]}{who}{where})"
