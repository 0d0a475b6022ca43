# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a container's root is on the node, and whether it can use a folder there."""

from __future__ import annotations

import dataclasses
import itertools
import re
import stat
import typing as t

from .._core.errors import KproError
from .raw import RawLine

DEFAULT_BASE = 100000  # PVE::LXC: unprivileged containers map 0..65535 to 100000..165535
MAP_KEYS = ("lxc.idmap", "lxc.id_map")
KINDS = {"u": "uid", "g": "gid"}
MOST_IDS = 1 << 32
_EXTENT = re.compile(r"^([ug])\s+(\d+)\s+(\d+)\s+(\d+)\s*$")


@dataclasses.dataclass(frozen=True)
class FileState:
    """One look at a path of the node; ``kind`` is ``folder``, ``device``, ``file`` or ``absent``; ``numbers`` are a device's major and minor.

    :param real: the path without links, or the system's folder that is the same one; empty if that was not looked at.
    """

    path: str
    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    numbers: tuple[int, int] = (0, 0)
    real: str = ""


@dataclasses.dataclass(frozen=True)
class Extent:
    """One line of a map: ``count`` ids from ``inside`` on are those of the node from ``outside`` on; ``kind`` is ``u`` or ``g``."""

    kind: str
    inside: int
    outside: int
    count: int

    @property
    def words(self) -> str:
        """The line's value."""
        return f"{self.kind} {self.inside} {self.outside} {self.count}"


def custom_map(raw: t.Iterable[RawLine]) -> tuple[Extent, ...]:
    """Return the map in a container's raw lines; empty if they have none, and Proxmox's default counts.

    :raises KproError: on a line that Proxmox does not read; it gives up on such a container.
    """
    found = []
    for key, value in raw:
        if key in MAP_KEYS:
            match = _EXTENT.match(value)
            if not match:
                reason = "Proxmox reads only lines of the form 'u INSIDE NODE COUNT' and 'g INSIDE NODE COUNT'"
                reason += ", and 'b' is not one of them" if value.lstrip().startswith("b") else ""
                raise KproError(f"raw line '{key}: {value}'", reason, "Write one line for u and one for g")
            found.append(Extent(match[1], int(match[2]), int(match[3]), int(match[4])))
    return tuple(found)


def root_ids(unprivileged: bool, raw: t.Iterable[RawLine] = ()) -> tuple[int, int]:
    """Return the node's uid and gid of the container's root, as Proxmox finds them (PVE::LXC, parse_id_maps).

    Custom lines stand in place of the default map, whether or not the container is unprivileged; 0 is what Proxmox takes without a line for id 0.

    :param raw: the container's raw lines.
    :raises KproError: on a line that Proxmox does not read.
    """
    extents = custom_map(raw)
    if not extents:
        return (DEFAULT_BASE, DEFAULT_BASE) if unprivileged else (0, 0)
    ids = {"u": 0, "g": 0} | {extent.kind: extent.outside for extent in extents if extent.inside == 0}
    return (ids["u"], ids["g"])


def map_problem(extents: t.Sequence[Extent], granted: t.Mapping[str, t.Sequence[tuple[int, int]]] | None = None) -> str:
    """Return why a container with this map can't start, empty if it can.

    :param granted: ranges (first, count) of the node's ids that root may map, by kind (``/etc/subuid``, ``/etc/subgid``), as far as they are known.
    """
    for kind, name in KINDS.items():
        rows = sorted((one for one in extents if one.kind == kind), key=lambda one: one.inside)
        if extents and not any(one.inside == 0 and one.count for one in rows):
            return f"its map (lxc.idmap) has no {name} for the container's root: no line '{kind} 0 ...'"
        for one in rows:
            if not one.count or max(one.inside, one.outside) + one.count > MOST_IDS:
                return f"the line 'lxc.idmap: {one.words}' maps {'no id' if not one.count else 'ids that do not exist'}"
        for first, second in itertools.combinations(rows, 2):
            if _meet(first.inside, first.count, second.inside, second.count) or _meet(first.outside, first.count, second.outside, second.count):
                return f"the lines 'lxc.idmap: {first.words}' and 'lxc.idmap: {second.words}' overlap, which the kernel refuses"
        ranges = (granted or {}).get(kind)
        if ranges is not None and (lacking := next((one for one in rows if not _is_granted(one, ranges)), None)):
            line = f"root:{lacking.outside}:{lacking.count}"
            return f"root may not map the {name}s of 'lxc.idmap: {lacking.words}': /etc/sub{name} of the node lacks the line '{line}'"
    return ""


def map_gaps(extents: t.Sequence[Extent]) -> str:
    """Return which ids below the highest one a map leaves out, in words; files of such an id belong to nobody in the container."""
    found = []
    for kind, name in KINDS.items():
        end = 0
        for one in sorted((one for one in extents if one.kind == kind), key=lambda one: one.inside):
            if one.inside > end:
                found.append(f"{name} {end}" if one.inside == end + 1 else f"{name} {end} to {one.inside - 1}")
            end = max(end, one.inside + one.count)
    return ", ".join(found)


def granted_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return root's ranges in the text of ``/etc/subuid`` or ``/etc/subgid``."""
    return tuple((int(match[1]), int(match[2])) for match in re.finditer(r"^(?:root|0):(\d+):(\d+)\s*$", text, re.MULTILINE))


def _meet(one: int, one_count: int, other: int, other_count: int) -> bool:
    return one < other + other_count and other < one + one_count


def _is_granted(extent: Extent, ranges: t.Iterable[tuple[int, int]]) -> bool:
    # newuidmap lets everybody map his own id, and joins neighbouring ranges.
    if (extent.outside, extent.count) == (0, 1):
        return True
    start, end = extent.outside, extent.outside + extent.count
    for first, count in sorted(ranges):
        if first <= start < first + count:
            start = first + count
    return start >= end


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
