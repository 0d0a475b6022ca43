# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the kernel's process table."""

from __future__ import annotations

import os
import re

from .processes import Process, listening_inodes, unified_cgroup
from .run_identity import start_ticks_of

_DEVICE = re.compile(r"^/dev/nvidia")


class ProcessTable:
    """Reads ``/proc``. Processes that end while they are read are left out."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    def pids(self) -> list[int]:
        """Return all process ids that can be seen from here."""
        return sorted(int(name) for name in os.listdir(self._proc) if name.isdigit())

    def process(self, pid: int, *, maps_of_uid: int = -1) -> Process | None:
        """Return one process, or None if it is gone; what it maps is read if it belongs to ``maps_of_uid``."""
        try:
            stat = self._text(pid, "stat")
            uid = os.stat(f"{self._proc}/{pid}").st_uid
            fields = stat.rpartition(")")[2].split()
            command = self._text(pid, "cmdline").replace("\0", " ").strip() or f"[{stat[stat.index('(') + 1 : stat.rindex(')')]}]"
            return Process(
                pid=pid,
                uid=uid,
                state=fields[0],
                start_ticks=start_ticks_of(stat),
                parent_pid=int(fields[1]),
                command=command,
                cgroup=unified_cgroup(self._text(pid, "cgroup")),
                devices=tuple(sorted({target for target in self._open_files(pid).values() if _DEVICE.match(target)})),
                mapped=self._mapped(pid) if uid == maps_of_uid else (),
            )
        except (OSError, ValueError, IndexError):
            return None

    def snapshot(self, uid: int) -> list[Process]:
        """Return all processes that can be seen; what they map is read only for those of ``uid``."""
        found = (self.process(pid, maps_of_uid=uid) for pid in self.pids())
        return [process for process in found if process is not None]

    def open_paths(self) -> set[str]:
        """Return the paths that any process that can be seen has open or mapped."""
        paths: set[str] = set()
        for pid in self.pids():
            paths.update(self._open_files(pid).values())
            paths.update(self._mapped(pid))
        return paths

    def listener(self, port: int, prefer: str = "") -> tuple[bool, Process | None]:
        """Return whether somebody listens on ``port``, and who (None: not to be seen from here).

        :param prefer: control group whose processes are looked at first, which saves reading everybody's open files.
        """
        inodes: set[str] = set()
        for table in ("tcp", "tcp6"):
            try:
                with open(f"{self._proc}/net/{table}", encoding="ascii", errors="replace") as file:
                    inodes |= listening_inodes(file.read(), port)
            except OSError:
                continue
        if not inodes:
            return False, None
        wanted = {f"socket:[{inode}]" for inode in inodes}
        pids = self.pids()
        if prefer:
            pids.sort(key=lambda pid: not self._cgroup(pid).startswith(prefer))
        for pid in pids:
            if wanted & set(self._open_files(pid).values()):
                return True, self.process(pid)
        return True, None

    def _open_files(self, pid: int) -> dict[str, str]:
        folder = f"{self._proc}/{pid}/fd"
        found = {}
        try:
            for name in os.listdir(folder):
                try:
                    found[name] = os.readlink(f"{folder}/{name}")
                except OSError:
                    continue
        except OSError:
            return {}
        return found

    def _mapped(self, pid: int) -> tuple[str, ...]:
        try:
            lines = self._text(pid, "maps").splitlines()
        except OSError:
            return ()
        return tuple(sorted({line[line.index("/") :] for line in lines if "/" in line}))

    def _cgroup(self, pid: int) -> str:
        try:
            return unified_cgroup(self._text(pid, "cgroup"))
        except OSError:
            return ""

    def _text(self, pid: int, name: str) -> str:
        with open(f"{self._proc}/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
