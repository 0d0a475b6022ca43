# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a GPU: processes with an open device node, and their owners."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re

from .holders import Holder, container_of_cgroup, unit_of_cgroup


class ProcessFiles:
    """Reads /proc for open NVIDIA device nodes; sees what the caller may see."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = pathlib.Path(root)

    def holders(self) -> tuple[Holder, ...]:
        """Return the processes with an NVIDIA device node open."""
        found = []
        for place in sorted(self._root.glob("[0-9]*"), key=lambda path: int(path.name)):
            nodes = _open_nodes(place / "fd")
            if nodes:
                found.append(self.holder(int(place.name), nodes))
        return tuple(found)

    def holder(self, pid: int, nodes: tuple[str, ...] = ()) -> Holder:
        """Return who a process is; a process that has ended has an empty name."""
        place = self._root / str(pid)
        cgroup = _text(place / "cgroup")
        uid = re.search(r"^Uid:\s+(\d+)", _text(place / "status"), re.MULTILINE)
        return Holder(
            pid=pid,
            uid=int(uid[1]) if uid else None,
            name=_text(place / "comm").strip(),
            container=container_of_cgroup(cgroup),
            unit=unit_of_cgroup(cgroup),
            nodes=nodes,
        )


def _open_nodes(folder: pathlib.Path) -> tuple[str, ...]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(folder / name)
                if re.fullmatch(r"/dev/nvidia(\d+|-uvm)", target):
                    found.add(target)
    return tuple(sorted(found))


def _text(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""
