# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a container's root is on the node, and whether it can use a folder there."""

from __future__ import annotations

import dataclasses
import re
import stat
import typing as t

DEFAULT_BASE = 100000  # PVE::LXC: unprivileged containers map 0..65535 to 100000..165535


@dataclasses.dataclass(frozen=True)
class FileState:
    """One look at a path of the node; ``kind`` is ``folder``, ``device``, ``file`` or ``absent``; ``numbers`` are a device's major and minor."""

    path: str
    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    numbers: tuple[int, int] = (0, 0)


def root_ids(unprivileged: bool, raw: t.Iterable[tuple[str, str]] = ()) -> tuple[int, int]:
    """Return the node's uid and gid of the container's root.

    :param raw: the container's raw lines; ``lxc.idmap`` entries replace Proxmox's default map.
    """
    if not unprivileged:
        return (0, 0)
    ids = {"u": DEFAULT_BASE, "g": DEFAULT_BASE}
    for key, value in raw:
        match = re.match(r"^([ugb])\s+0\s+(\d+)\s+\d+", value.strip()) if key == "lxc.idmap" else None
        if match:
            ids |= {kind: int(match[2]) for kind in ("ug" if match[1] == "b" else match[1])}
    return (ids["u"], ids["g"])


def can_use(state: FileState, uid: int, gid: int, write: bool) -> bool:
    """Tell whether a user of the node may enter and list (and write) a folder by its permission bits.

    The container's root has no power over files of users outside its map, so only the bits count; uid 0 passes.
    """
    needed = 0o7 if write else 0o5
    if uid == 0:
        return True
    if state.uid == uid:
        bits = stat.S_IMODE(state.mode) >> 6
    elif state.gid == gid:
        bits = stat.S_IMODE(state.mode) >> 3
    else:
        bits = stat.S_IMODE(state.mode)
    return bits & needed == needed
