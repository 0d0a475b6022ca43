# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and compares the kernel's mount tables. Pure.

One folder has many paths (bind mounts, containers); its place, a file system and the path within it, is the same for all of them.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

# File systems that other machines may have mounted, too. Any that runs in user space (fuse.*) counts as one of them: it does not tell.
SHARED_KINDS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "glusterfs", "gfs2", "ocfs2", "lustre", "afs"})
SHARED_KINDS |= {"beegfs", "orangefs", "pvfs2", "gpfs", "coda", "fuse"}
_DELETED = "//deleted"
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclasses.dataclass(frozen=True)
class Place:
    """A file or folder by its file system (``major:minor``) and the path within it."""

    device: str
    path: str


@dataclasses.dataclass(frozen=True)
class Mount:
    """One row of a mount table.

    :param root: which folder of the file system is mounted; the kernel adds ``//deleted`` to one that is gone.
    :param point: where.
    """

    number: int
    device: str
    root: str
    point: str
    kind: str

    @property
    def deleted(self) -> bool:
        """Whether the folder was removed behind the mount."""
        return self.root.endswith(_DELETED)

    @property
    def is_shared(self) -> bool:
        """Whether other machines may use the same file system."""
        return self.kind in SHARED_KINDS or self.kind.startswith("fuse.")

    @property
    def place(self) -> Place:
        """The mounted source."""
        return Place(self.device, self.root)

    def place_of(self, path: str) -> Place:
        """Return the place of a path at or below the mount point."""
        rest = path[len(self.point.rstrip("/")) :]
        return Place(self.device, _joined(self.root, rest))


def read_mounts(text: str) -> tuple[Mount, ...]:
    """Return the rows of ``/proc/PID/mountinfo``; what is no such row is passed over."""
    found = []
    for line in text.split("\n"):
        fields, _dash, rest = line.partition(" - ")
        words, kinds = fields.split(), rest.split()
        if len(words) >= 5 and kinds and words[0].isdigit():
            found.append(Mount(int(words[0]), words[2], unescaped(words[3]), unescaped(words[4]), kinds[0]))
    return tuple(found)


def unescaped(text: str) -> str:
    """Return a path of a mount table or fstab with its octal escapes resolved."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: t.Sequence[Mount]) -> Mount | None:
    """Return the mount that a path without links lies on: the one with the longest point, of several the latest."""
    over = [mount for mount in mounts if within(path, mount.point)]
    return max(over, key=lambda mount: (len(mount.point), mounts.index(mount)), default=None)


def place_of(path: str, mounts: t.Sequence[Mount]) -> Place | None:
    """Return the place of a path without links; None if no mount covers it."""
    found = mount_of(path, mounts)
    return found.place_of(path) if found else None


def within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies below it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else f"{folder}/")


def overlap(one: Place, other: Place) -> bool:
    """Whether one place is the other, lies below it or holds it."""
    return one.device == other.device and (within(one.path, other.path) or within(other.path, one.path))


def foreign_mounts(mounts: t.Sequence[Mount], own: t.Sequence[Mount]) -> list[Mount]:
    """Return the mounts of another process that say something about it.

    Most services of a node see its own mounts in a table of their own: a row that the node's table has as well says nothing then. A process with
    another root (a container) has each of its rows because somebody mounted it there.
    """
    if _root(mounts) != _root(own):
        return list(mounts)
    known = {(mount.device, mount.root, mount.point) for mount in own}
    return [mount for mount in mounts if (mount.device, mount.root, mount.point) not in known]


def stale(here: t.Sequence[Mount], inside: t.Sequence[Mount], source: str, target: str) -> str:
    """Return why a container does not see a folder of its node, an empty text if it does or nothing can be said.

    :param here: the node's mounts; ``inside``: those of the container's init.
    :param source: the folder on the node, without links; ``target``: its place in the container.
    """
    now = mount_of(source, here)
    if not inside or now is None:
        return ""
    seen = next((row for row in reversed(inside) if row.point == target), None)
    if seen is None:
        return f"{target} is mounted no more in the running container"
    if seen.deleted:
        return f"{target} shows a folder that was removed from the node: {source} was deleted or made anew under the running container"
    wanted = now.place_of(source)
    if seen.place == wanted:
        return ""
    if seen.device != now.device:
        return f"{target} shows another file system than {source} on the node, which was mounted anew under the running container"
    return f"{target} shows {seen.root} of its file system, and {source} on the node is {wanted.path} now"


def _root(mounts: t.Sequence[Mount]) -> Place | None:
    return next((mount.place for mount in reversed(mounts) if mount.point == "/"), None)


def _joined(root: str, rest: str) -> str:
    rest = rest.strip("/")
    return f"{root.rstrip('/')}/{rest}" if rest else root
