# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which snapshots of a store may be removed from a node. Pure.

A snapshot is this deployment's if its manifest names the deployment's repository and commit; a file is the snapshot's if the manifest has its
path, and size and time are those of the moment when its hash was checked. Everything else stays.
"""

from __future__ import annotations

import dataclasses
import posixpath
import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .._linux.mount_table import within
from .._model import manifest as manifests
from .._model.hub_protocol import COMMIT, MANIFEST_NAME
from .._model.manifest import Manifest, Stat

MANY = 20


@dataclasses.dataclass(frozen=True)
class RemovalOptions:
    """The wanted removal.

    :param leaving: containers that leave the node in the same run, the deployment's own one among them; they do not count as users.
    :param mounts: the container's mounts as the inventory declares them.
    :param store: the store's path in the container.
    :param commits: of the repository; empty if they are not known.
    :param other_users: what else of the inventory uses this node, in words.
    """

    leaving: tuple[int, ...]
    mounts: tuple[t.Mapping[str, t.Any], ...]
    store: str
    repository: str
    commits: tuple[str, ...]
    allow_shared: bool = False
    other_users: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class NodeStore:
    """The store as the node has it."""

    source: str
    path: str
    read_only: bool
    shared: bool


@dataclasses.dataclass(frozen=True)
class Entry:
    """One thing in a snapshot's folder; ``stat`` is None for what is neither folder nor regular file."""

    path: str
    is_folder: bool = False
    stat: Stat | None = None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A snapshot that may go.

    :param files: paths in it that are proven ours.
    :param folders: folders in it, deepest first.
    :param stays: what else is in it, with the reason.
    """

    path: str
    files: tuple[tuple[str, Stat], ...] = ()
    folders: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the files."""
        return sum(stat.size_bytes for _path, stat in self.files)


def commits_of(repository: str, revision: str, locked: t.Iterable[str]) -> tuple[str, ...]:
    """Return the commit that a deployment uses, by its revision or by the lines of its lock file; empty if neither says it."""
    if COMMIT.fullmatch(revision):
        return (revision,)
    rows = (line.split() for line in locked)
    return tuple(row[2] for row in rows if len(row) == 3 and row[:2] == [repository, revision] and COMMIT.fullmatch(row[2]))[-1:]


def node_store(options: RemovalOptions) -> NodeStore | None:
    """Return the folder of the node that holds the container's store; None if the store is on no folder of the node."""
    store = posixpath.normpath(options.store)
    covering = [mount for mount in options.mounts if within(store, posixpath.normpath(str(mount.get("target", ""))))]
    if not covering:
        return None
    mount = max(covering, key=lambda mount: len(posixpath.normpath(str(mount["target"]))))
    source = str(mount.get("source", ""))
    if not source.startswith("/"):
        return None
    rest = store[len(posixpath.normpath(str(mount["target"])).rstrip("/")) :].strip("/")
    path = posixpath.join(source, rest) if rest else source
    return NodeStore(source, path, bool(mount.get("read_only")), bool(mount.get("shared")))


def is_snapshot_of(name: str, repository: str) -> bool:
    """Tell whether a folder is named as a snapshot of this repository, at whatever commit."""
    return name.startswith(manifests.folder_name(repository, ""))


def check_manifest(path: str, manifest: Manifest | None, repository: str, commit: str) -> Manifest:
    """Return the manifest if the snapshot is the one that is meant.

    :raises KproError: if it is not proven to be.
    """
    remedy = f"Nothing of it is removed. Look at it, and remove it by hand if it is not needed: {path}"
    if manifest is None:
        raise KproError(path, f"it has no readable {MANIFEST_NAME}, so nothing proves who put it there", remedy)
    if (manifest.repository, manifest.commit) != (repository, commit):
        raise KproError(path, f"its {MANIFEST_NAME} is about {shown(manifest.repository)} at {shown(manifest.commit)}", remedy)
    return manifest


def sorted_out(path: str, entries: t.Sequence[Entry], manifest: Manifest, manifest_stat: Stat) -> Snapshot:
    """Return what of a snapshot's folder is the snapshot's, by its manifest."""
    files: list[tuple[str, Stat]] = []
    stays: list[str] = []
    for entry in entries:
        if entry.is_folder:
            continue
        if entry.path == MANIFEST_NAME and entry.stat:
            files.append((entry.path, manifest_stat))
        elif entry.stat is None:
            stays.append(f"{shown(entry.path)} (no regular file)")
        elif entry.path not in manifest.checked:
            stays.append(f"{shown(entry.path)} (not in the manifest)")
        elif entry.stat != manifest.checked[entry.path]:
            stays.append(f"{shown(entry.path)} (changed since it was checked)")
        else:
            files.append((entry.path, entry.stat))
    if stays:
        # What stays needs its proof.
        files = [row for row in files if row[0] != MANIFEST_NAME]
    # The manifest goes last: what is cut off is found again by it.
    files.sort(key=lambda row: (row[0] == MANIFEST_NAME, row[0]))
    folders = sorted((entry.path for entry in entries if entry.is_folder), key=lambda name: -name.count("/"))
    return Snapshot(path, tuple(files), tuple(folders), tuple(stays))


def removal(snapshot: Snapshot) -> Change:
    """Return the step that removes a snapshot; its ``before`` lists each path."""
    paths = "".join(f"\n    {snapshot.path}/{shown(path)}" for path, _stat in snapshot.files)
    kept = f"; {len(snapshot.stays)} other things in it stay" if snapshot.stays else ""
    sentence = f"Remove the snapshot {snapshot.path} ({len(snapshot.files)} files, {snapshot.size_bytes / 1e9:.3g} GB){kept}"
    return Change(sentence, paths, None, ("snapshot", snapshot))


def check_users(path: str, users: t.Sequence[str]) -> None:
    """Stop if anybody else uses a snapshot.

    :raises KproError: naming the users.
    """
    if users:
        more = f" and {len(users) - MANY} more" if len(users) > MANY else ""
        raise KproError(
            path,
            f"it is in use: {'; '.join(users[:MANY])}{more}",
            "Nothing was removed. End that use first, or leave the models where they are (without decommission_models)",
        )


def check_shared(path: str, reason: str, allowed: bool) -> None:
    """Stop if other machines may use the store, unless that was consented to.

    :param reason: why they may; empty if the store is the node's own.
    :raises KproError: naming the consent.
    """
    if reason and not allowed:
        raise KproError(
            path,
            f"{reason}, so that other machines may use the same files",
            "Nothing was removed. If none of them needs the model, consent to it with allow_shared: true (decommission_shared=true)",
        )


def shown(text: str) -> str:
    """Return a name from a store for people: what is not printable is written as an escape."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode("ascii", "replace") for letter in text)
