# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the folders of models: snapshots, partial files, hashes, space.

``STORE/ORG--NAME@COMMIT/`` is a snapshot; it appears by one rename, when it is complete. ``STORE/.incoming/ORG--NAME@COMMIT/``
holds what is on the way: ``parts/NAME`` with its journal ``parts/NAME.json``, where NAME is made of the file's path (two files may have one content),
and under ``files/`` those that were checked. Somebody else may own the store, a container's root for example: see :class:`HeldFolder`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import re
import stat
import time
import typing as t

from .._core.errors import KproError
from .._linux.held_folder_edge import HeldFolder, Refused, acting_as, open_regular
from .._linux.mount_table import mount_of, read_mounts
from . import manifest as manifests
from . import transfer_plan as plan
from .hub_protocol import MANIFEST_NAME, RemoteFile
from .manifest import Manifest, Stat

BLOCK_BYTES = 1 << 20
BALLAST_BYTES = 1 << 18
INCOMING = ".incoming"
JOURNAL_BYTES = 1 << 22
LOCK_LOOK_S = 0.5
# Weights fill the disk; what is larger than this and takes less than a part of it there is a file of holes.
SPARSE_BYTES = 1 << 30
SPARSE_SHARE = 64
_HEX = re.compile(r"[0-9a-f]{40,64}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Staging:
    """The folders of a download, held from its begin to its end.

    :ivar store: the store; ``all``: what is on the way for all snapshots; ``own``: for this one, with ``parts`` and ``files`` in it.
    """

    store: HeldFolder
    all: HeldFolder
    own: HeldFolder
    parts: HeldFolder
    files: HeldFolder


class Snapshot:
    """The folders of one repository at one commit."""

    def __init__(self, store: str, repository: str, commit: str) -> None:
        self.name = manifests.folder_name(repository, commit)
        self.store = store
        self.repository = repository
        self.commit = commit
        self.path = os.path.join(store, self.name)
        self.incoming = os.path.join(store, INCOMING, self.name)
        self.parts = os.path.join(self.incoming, "parts")
        self.files = os.path.join(self.incoming, "files")
        self._staging: Staging | None = None

    def staging(self) -> Staging:
        """Return the folders of a download, made if they aren't there; always the same ones.

        :raises OSError: if something else is in their place.
        """
        if self._staging is None:
            store = HeldFolder.at(self.store, make=True)
            _drop_older_staging(store)
            on_the_way = store.folder(INCOMING, make=True)
            own = on_the_way.folder(self.name, make=True)
            self._staging = Staging(store, on_the_way, own, own.folder("parts", make=True), own.folder("files", make=True))
        return self._staging

    def take(self, patience_s: float) -> FolderLock:
        """Take the folders of a download for this process; one that has ended meanwhile has removed its own.

        :raises KproError: see :meth:`FolderLock.wait`.
        """
        while True:
            staging = self.staging()
            lock = FolderLock(staging.own)
            try:
                lock.wait(patience_s)
                found, own = staging.all.status(self.name), os.fstat(staging.own.descriptor)
            except BaseException:
                lock.close()
                raise
            if found and (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                return lock
            lock.close()
            self._staging = None

    def folder(self) -> HeldFolder | None:
        """Return the snapshot itself; None if it isn't there, or nothing that may be looked into."""
        return _held(self.path)

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None if there is none for this very commit."""
        folder = self.folder()
        found = read_manifest(folder) if folder else None
        return found if found and (found.repository, found.commit) == (self.repository, self.commit) else None

    def part(self, file: RemoteFile) -> str:
        """Return the path of the partial file."""
        return os.path.join(self.parts, part_name(file))

    def part_bytes(self, file: RemoteFile) -> int:
        """Return the length of the partial file if that is too long, else what it takes on disk (it is laid out with holes)."""
        found = _file_status(_held(self.parts), part_name(file))
        if not found:
            return 0
        return found.st_size if found.st_size > file.size_bytes else found.st_blocks * 512

    def part_ranges(self, file: RemoteFile) -> list[tuple[int, int]]:
        """Return which bytes of the partial file are safely there."""
        folder, name = _held(self.parts), part_name(file)
        found = _file_status(folder, name)
        if not folder or not found or found.st_size > file.size_bytes:
            return []
        try:
            return plan.journal_ranges(folder.read(f"{name}.json", JOURNAL_BYTES).decode(), file.size_bytes)
        except (OSError, ValueError, RecursionError):
            return []

    def arrived_bytes(self, file: RemoteFile) -> int:
        """Return how much of a file earlier runs have brought, in part or whole."""
        staged = _file_status(_held(self.files), file.path)
        if staged and staged.st_size == file.size_bytes:
            return file.size_bytes
        return sum(end - start for start, end in self.part_ranges(file))

    def leftovers(self) -> dict[str, int]:
        """Return what earlier downloads of this repository left behind: path -> bytes on disk."""
        root = _held(os.path.join(self.store, INCOMING))
        prefix = manifests.folder_name(self.repository, "")
        found = {}
        with contextlib.suppress(OSError):
            for name in _names(root):
                if root and name.startswith(prefix) and name != self.name and _abandoned(root, name):
                    found[os.path.join(self.store, INCOMING, name)] = root.disk_bytes(name)
        return found


def part_name(file: RemoteFile) -> str:
    """Return the name of a partial file; made of the path, because two files of a repository may have the same content."""
    return hashlib.sha256(file.path.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def take_over_older_part(parts: HeldFolder, file: RemoteFile) -> None:
    """Rename a partial file that an earlier version has named by its content."""
    if _HEX.fullmatch(file.key) and parts.status(part_name(file)) is None and parts.status(file.key) is not None:
        parts.move(file.key, parts, part_name(file))
        if parts.status(f"{file.key}.json") is not None:
            parts.move(f"{file.key}.json", parts, f"{part_name(file)}.json")


def _held(path: str) -> HeldFolder | None:
    try:
        return HeldFolder.at(path)
    except OSError:
        return None


def _file_status(folder: HeldFolder | None, path: str) -> os.stat_result | None:
    """Return what a plain file below a folder is like; None if there is none that may be looked at."""
    with contextlib.suppress(OSError):
        found = folder.status(path) if folder else None
        return found if found and stat.S_ISREG(found.st_mode) else None
    return None


def _drop_older_staging(store: HeldFolder) -> None:
    """Make way where an earlier version has left its empty folder to root in a store of somebody else."""
    found = store.status(INCOMING)
    if found and not store.trusted and found.st_uid != store.identity.uid and stat.S_IMODE(found.st_mode) == 0o755:
        with contextlib.suppress(OSError):
            store.remove_empty(INCOMING)


def _abandoned(root: HeldFolder, name: str) -> bool:
    """Tell whether a folder of a download is ours to remove: made by the same owner, and in nobody's hands."""
    try:
        folder = root.folder(name)
    except OSError:
        return False
    return folder.owner == root.owner and not locked(folder)


def read_manifest(folder: HeldFolder) -> Manifest | None:
    """Return the manifest in a folder; None if there is none, or nothing that can be one."""
    try:
        return manifests.from_text(folder.read(MANIFEST_NAME).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_manifest(folder: HeldFolder, manifest: Manifest) -> None:
    """Write the manifest into the snapshot or the folder that becomes it; it is on disk before the call returns."""
    folder.write(MANIFEST_NAME, manifests.to_text(manifest).encode())


class FolderLock:
    """Holds a folder for one process; the system lets go of it however the process ends."""

    def __init__(self, folder: HeldFolder) -> None:
        self._folder = folder
        self._descriptor = folder.keep(".lock")

    def take(self) -> bool:
        """Take it; False if another process has it."""
        return _flock(self._descriptor)

    def wait(self, patience_s: float) -> None:
        """Take it as soon as the other process lets go.

        :raises KproError: if that one has done nothing for so long: whoever owns the store can hold it for ever.
        """
        seen, since = -1, time.monotonic()
        while not self.take():
            now_bytes, now = self._folder.disk_bytes("parts") + self._folder.disk_bytes("files"), time.monotonic()
            if now_bytes != seen:
                seen, since = now_bytes, now
            if now - since > patience_s:
                what = os.path.join(self._folder.path, ".lock")
                words = f"another process holds it, and nothing has arrived for {plan.time_words(now - since)}"
                raise KproError(what, words, "Look who it is (lslocks, also in the containers that mount the store), end it, and run again")
            time.sleep(LOCK_LOOK_S)

    def close(self) -> None:
        os.close(self._descriptor)


class ReservedSpace:
    """Space reserved so that journals still fit on a full disk."""

    def __init__(self, folder: HeldFolder) -> None:
        self._folder = folder
        try:
            folder.write(".ballast", b"\1" * BALLAST_BYTES)
        except OSError as error:
            raise disk_error(folder.path, error) from error

    def drop(self) -> None:
        """Free the space."""
        self._folder.remove(".ballast")


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def locked(folder: HeldFolder) -> bool:
    """Tell whether a process holds the folder."""
    try:
        descriptor = folder.open(".lock")
    except OSError:
        return False
    try:
        return not _flock(descriptor)
    except OSError:
        # Some file systems lock only what is open for writing: whether somebody has it can't be told.
        return True
    finally:
        os.close(descriptor)


def stats(folder: HeldFolder | str, paths: t.Iterable[str]) -> dict[str, Stat]:
    """Return size and mtime of those paths below a folder that are regular files; none if there is no such folder."""
    found = {}
    held = _held(folder) if isinstance(folder, str) else folder
    for path in paths:
        status = _file_status(held, path)
        if status:
            found[path] = Stat(status.st_size, status.st_mtime_ns)
    return found


def hash_matches(folder: HeldFolder, path: str, file: RemoteFile, advance: t.Callable[[int], None] = lambda _count: None) -> bool:
    """Read a file once and compare its hash with the hub's (SHA-256, or the git blob id where the hub has only that)."""
    descriptor = folder.open(path)
    try:
        return descriptor_matches(descriptor, file, advance)
    finally:
        os.close(descriptor)


def descriptor_matches(descriptor: int, file: RemoteFile, advance: t.Callable[[int], None] = lambda _count: None) -> bool:
    """Do the same as :func:`hash_matches` with a file that is open."""
    if os.fstat(descriptor).st_size != file.size_bytes or _full_of_holes(descriptor):
        return False
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    buffer = memoryview(bytearray(BLOCK_BYTES))
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    at = 0
    # Not beyond the length that it should have: somebody may go on to write.
    while at < file.size_bytes and (count := os.preadv(descriptor, [buffer], at)):
        digest.update(buffer[:count])
        advance(count)
        at += count
    return at == file.size_bytes and digest.hexdigest() == file.key


def _full_of_holes(descriptor: int) -> bool:
    """Tell whether a file of any length would cost nothing on disk but days to read."""
    found = os.fstat(descriptor)
    if found.st_size < SPARSE_BYTES or found.st_blocks * 512 > found.st_size // SPARSE_SHARE:
        return False
    # A recent write counts only when it has reached the disk.
    os.fsync(descriptor)
    return os.fstat(descriptor).st_blocks * 512 <= found.st_size // SPARSE_SHARE


def read_part(path: str, start: int, end: int) -> bytes:
    """Return bytes ``start`` to ``end`` (exclusive) of a file; fewer if it is shorter.

    :raises KproError: if it can't be read.
    """
    try:
        descriptor = open_regular(path)
        try:
            data = bytearray()
            while len(data) < end - start and (block := os.pread(descriptor, min(BLOCK_BYTES, end - start - len(data)), start + len(data))):
                data += block
            return bytes(data)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KproError(path, f"it cannot be read ({error.strerror})", "Look what is there, and run again") from error


def head_of(folder: HeldFolder, path: str) -> bytes:
    """Return the first bytes of a file; none if it can't be read."""
    try:
        descriptor = folder.open(path)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, 64, 0)
    finally:
        os.close(descriptor)


def check_mount(folder: str, mounts: str = "/proc/self/mountinfo") -> None:
    """Stop if the store's folder was removed behind its mount: nothing can be made in it any more.

    :raises KproError: naming the mount, and the way to see the node's folder again.
    """
    place = os.path.realpath(folder)
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            row = mount_of(place, read_mounts(file.read()))
        removed = os.path.isdir(place) and os.stat(place).st_nlink == 0
    except OSError:
        return
    if (row and row.deleted) or removed:
        raise KproError(
            folder,
            "the folder behind this mount was removed from the node, or made anew there, under the running container",
            "Restart the container (gpu_container__restart: true lets the deployment do it), then run again",
        )


def space(folder: str) -> tuple[int, int | None]:
    """Return free bytes and free inodes (None: the file system does not count them) where a folder is or will be."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None


def other_snapshots(snapshot: Snapshot) -> list[Snapshot]:
    """Return the other snapshots of the same repository that have a manifest."""
    prefix = manifests.folder_name(snapshot.repository, "")
    store = _held(snapshot.store)
    found = []
    for name in _names(store):
        if not name.startswith(prefix) or name == snapshot.name:
            continue
        folder = _held(os.path.join(snapshot.store, name))
        manifest = read_manifest(folder) if folder else None
        if manifest:
            found.append(Snapshot(snapshot.store, snapshot.repository, manifest.commit))
    return found


def _names(folder: HeldFolder | None) -> list[str]:
    with contextlib.suppress(OSError):
        return folder.names() if folder else []
    return []


def place(source: HeldFolder, path: str, target: HeldFolder, new_path: str, *, copy: bool = False) -> None:
    """Move a file below a folder to a path below another one, or (``copy``) give it a second name there, or a copy."""
    with source.folder(os.path.dirname(path) or ".") as here, target.folder(os.path.dirname(new_path) or ".", make=True) as there:
        name, new_name = os.path.basename(path), os.path.basename(new_path)
        if copy:
            here.link(name, there, new_name)
        else:
            here.move(name, there, new_name)


def open_to_readers(folder: HeldFolder, paths: t.Iterable[str]) -> None:
    """Let everybody read these files below a folder."""
    with acting_as(folder.identity):
        found = os.fstat(folder.descriptor)
        if found.st_uid == folder.identity.uid and found.st_mode & 0o555 != 0o555:
            os.fchmod(folder.descriptor, stat.S_IMODE(found.st_mode) | 0o555)
    for path in _with_folders(paths):
        with folder.folder(os.path.dirname(path) or ".") as here:
            here.open_to_readers(os.path.basename(path))


def _with_folders(paths: t.Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for path in paths:
        while path:
            found[path] = None
            path = os.path.dirname(path)
    # A folder before what is in it: it may have to be opened first.
    return sorted(found)


def disk_error(path: str, error: OSError) -> KproError:
    """Return what a failed write means for a person."""
    if isinstance(error, Refused):
        return KproError(str(error.filename), str(error.strerror), "Look how it came there, put it right or remove it, then run again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return KproError(path, "the disk is full", "Free space there or enlarge the volume, then run again: what has arrived is kept")
    path = error.filename if isinstance(error.filename, str) and os.path.isabs(error.filename) else path
    return KproError(path, f"it cannot be written ({error.strerror})", "Correct the store's folder, then run again: what has arrived is kept")
