# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process's mounts, from ``/proc/PID/mountinfo``, compared with the node's."""

from __future__ import annotations

import dataclasses
import re
import typing as t

_DELETED = "//deleted"


@dataclasses.dataclass(frozen=True)
class MountRow:
    """One mount.

    :param device: major and minor of its file system.
    :param root: the folder of that file system that is mounted; the kernel adds ``//deleted`` to one that is gone.
    :param point: where it is mounted.
    """

    device: str
    root: str
    point: str

    @property
    def deleted(self) -> bool:
        """Say whether the folder was removed behind the mount."""
        return self.root.endswith(_DELETED)


def mount_rows(text: str) -> tuple[MountRow, ...]:
    """Read the text of a ``mountinfo``; a line that is none is left out."""
    rows = (line.split(" ") for line in text.splitlines())
    return tuple(MountRow(row[2], _plain(row[3]), _plain(row[4])) for row in rows if len(row) >= 6)


def mount_of(rows: t.Sequence[MountRow], path: str) -> MountRow | None:
    """Return the mount on which a path lies: the last one of the deepest point."""
    found = None
    for row in rows:
        inside = path == row.point or path.startswith(f"{row.point.rstrip('/')}/")
        if inside and (found is None or len(row.point) >= len(found.point)):
            found = row
    return found


def stale(here: t.Sequence[MountRow], inside: t.Sequence[MountRow], source: str, target: str) -> str:
    """Return why a container does not see a folder of its node, an empty text if it does or nothing can be said.

    :param here: the node's mounts; ``inside``: those of the container's init.
    :param source: the folder on the node, without links; ``target``: its place in the container.
    """
    now = mount_of(here, source)
    if not inside or now is None:
        return ""
    seen = next((row for row in reversed(inside) if row.point == target), None)
    if seen is None:
        return f"{target} is mounted no more in the running container"
    if seen.deleted:
        return f"{target} shows a folder that was removed from the node: {source} was deleted or made anew under the running container"
    below = source[len(now.point.rstrip("/")) :]
    wanted = f"{now.root.rstrip('/')}{below}" or "/"
    if (seen.device, seen.root) == (now.device, wanted):
        return ""
    if seen.device != now.device:
        return f"{target} shows another file system than {source} on the node, which was mounted anew under the running container"
    return f"{target} shows {seen.root} of its file system, and {source} on the node is {wanted} now"


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
