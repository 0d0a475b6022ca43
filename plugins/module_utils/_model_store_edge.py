# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the folders of models: snapshots, partial files, hashes, space. PRIVATE: for use in kpro.llm only.

``STORE/ORG--NAME@COMMIT/`` is a snapshot; it appears by one rename, when it is complete. ``STORE/.incoming/ORG--NAME@COMMIT/``
holds what is on the way: ``parts/KEY`` with its journal ``parts/KEY.json``, and under ``files/`` those that were checked.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils import _model_manifest as manifests
from ansible_collections.kpro.llm.plugins.module_utils import _transfer_plan as plan
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._hub_protocol import RemoteFile
from ansible_collections.kpro.llm.plugins.module_utils._model_manifest import MANIFEST_NAME, Manifest, Stat
from ansible_collections.kpro.llm.plugins.module_utils._mount_state import mount_of, mount_rows

BLOCK_BYTES = 1 << 20
BALLAST_BYTES = 1 << 18
INCOMING = ".incoming"


class Snapshot:
    """The folders of one repository at one commit."""

    def __init__(self, store: str, repository: str, commit: str) -> None:
        name = manifests.folder_name(repository, commit)
        self.store = store
        self.repository = repository
        self.commit = commit
        self.path = os.path.join(store, name)
        self.incoming = os.path.join(store, INCOMING, name)
        self.parts = os.path.join(self.incoming, "parts")
        self.files = os.path.join(self.incoming, "files")

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None if there is none for this very commit."""
        try:
            with open(os.path.join(self.path, MANIFEST_NAME), encoding="utf-8") as file:
                found = manifests.from_text(file.read())
        except OSError:
            return None
        return found if found and (found.repository, found.commit) == (self.repository, self.commit) else None

    def write_manifest(self, folder: str, manifest: Manifest) -> None:
        """Write the manifest into the snapshot or the folder that becomes it; it is on disk before the call returns."""
        write_durably(os.path.join(folder, MANIFEST_NAME), manifests.to_text(manifest))

    def part(self, file: RemoteFile) -> str:
        """Return the path of the partial file."""
        return os.path.join(self.parts, file.key)

    def part_bytes(self, file: RemoteFile) -> int:
        """Return the length of the partial file if that is too long, else what it takes on disk (it is laid out with holes)."""
        path = self.part(file)
        if not os.path.isfile(path):
            return 0
        length = os.stat(path).st_size
        return length if length > file.size_bytes else disk_bytes(path)

    def part_ranges(self, file: RemoteFile) -> list[tuple[int, int]]:
        """Return which bytes of the partial file are safely there."""
        try:
            if os.stat(self.part(file)).st_size > file.size_bytes:
                return []
            with open(f"{self.part(file)}.json", encoding="utf-8") as journal:
                return plan.journal_ranges(journal.read(), file.size_bytes)
        except OSError:
            return []

    def arrived_bytes(self, file: RemoteFile) -> int:
        """Return how much of a file earlier runs have brought, in part or whole."""
        staged = os.path.join(self.files, file.path)
        if os.path.isfile(staged) and os.stat(staged).st_size == file.size_bytes:
            return file.size_bytes
        return sum(end - start for start, end in self.part_ranges(file))

    def leftovers(self) -> dict[str, int]:
        """Return what earlier downloads of this repository left behind: path -> bytes on disk."""
        prefix = manifests.folder_name(self.repository, "")
        root = os.path.join(self.store, INCOMING)
        names = os.listdir(root) if os.path.isdir(root) else []
        found = [os.path.join(root, name) for name in names if name.startswith(prefix)]
        return {path: disk_bytes(path) for path in found if path != self.incoming and not locked(path)}


class FolderLock:
    """Holds a folder for one process; the system lets go of it however the process ends."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._descriptor = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, *, wait: bool) -> bool:
        """Take it; False if another process has it and ``wait`` is false."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._descriptor)


class Ballast:
    """A little space that is held back, to be let go when the disk is full and journals have to be written."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, ".ballast")
        try:
            with open(self._path, "wb") as file:
                file.write(b"\1" * BALLAST_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            remove(self._path)
            raise disk_error(folder, error) from error

    def drop(self) -> None:
        """Let it go."""
        remove(self._path)


def locked(folder: str) -> bool:
    """Tell whether a process holds the folder."""
    if not os.path.exists(os.path.join(folder, ".lock")):
        return False
    lock = FolderLock(folder)
    try:
        return not lock.take(wait=False)
    finally:
        lock.close()


def stats(folder: str, paths: t.Iterable[str]) -> dict[str, Stat]:
    """Return size and mtime of those paths below a folder that are regular files."""
    found = {}
    for path in paths:
        try:
            status = os.stat(os.path.join(folder, path))
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found[path] = Stat(status.st_size, status.st_mtime_ns)
    return found


def hash_matches(path: str, file: RemoteFile, advance: t.Callable[[int], None] = lambda _count: None) -> bool:
    """Read a file once and compare its hash with the hub's (SHA-256, or the git blob id where the hub has only that)."""
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with open(path, "rb", buffering=0) as handle:
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := handle.readinto(buffer):
            digest.update(buffer[:count])
            advance(count)
    return digest.hexdigest() == file.key


def read_part(path: str, start: int, end: int) -> bytes:
    """Return bytes ``start`` to ``end`` (exclusive) of a file."""
    with open(path, "rb") as handle:
        handle.seek(start)
        return handle.read(end - start)


def head_of(path: str) -> bytes:
    """Return the first bytes of a file."""
    with open(path, "rb") as handle:
        return handle.read(64)


def disk_bytes(path: str) -> int:
    """Return the bytes that a file or a tree takes on disk (holes do not count)."""
    if os.path.isfile(path):
        return os.stat(path).st_blocks * 512
    total = 0
    for folder, _names, files in os.walk(path):
        total += sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in files)
    return total


def check_mount(folder: str, mounts: str = "/proc/self/mountinfo") -> None:
    """Stop if the store's folder was removed behind its mount: nothing can be made in it any more.

    :raises KproError: naming the mount, and the way to see the node's folder again.
    """
    place = os.path.realpath(folder)
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            row = mount_of(mount_rows(file.read()), place)
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


def write_durably(path: str, text: str) -> None:
    """Replace a small file so that a power cut leaves the old or the new one."""
    draft = f"{path}.new"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def other_snapshots(snapshot: Snapshot) -> list[Snapshot]:
    """Return the other snapshots of the same repository that have a manifest."""
    prefix = manifests.folder_name(snapshot.repository, "")
    found = []
    for name in sorted(os.listdir(snapshot.store)):
        if not name.startswith(prefix) or os.path.join(snapshot.store, name) == snapshot.path:
            continue
        try:
            with open(os.path.join(snapshot.store, name, MANIFEST_NAME), encoding="utf-8") as file:
                manifest = manifests.from_text(file.read())
        except OSError:
            continue
        if manifest:
            found.append(Snapshot(snapshot.store, snapshot.repository, manifest.commit))
    return found


def link_or_copy(source: str, target: str) -> None:
    """Give a file of our own a second name; one of another owner may have to be copied."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    remove(target)
    try:
        os.link(source, target)
    except PermissionError:
        shutil.copyfile(source, target)


def open_to_readers(folder: str, paths: t.Iterable[str], store: str) -> None:
    """Let everybody read these files below a folder, and give them to the store's owner.

    A container's root is another user on the node: what the node fetched for a container, the container can mend later.
    """
    owner = os.stat(store)
    names = [folder, *(os.path.join(folder, path) for path in _with_folders(paths))]
    for name in names:
        found = os.stat(name)
        os.chmod(name, 0o755 if stat.S_ISDIR(found.st_mode) else 0o644)
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(name, owner.st_uid, owner.st_gid)


def _with_folders(paths: t.Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for path in paths:
        while path:
            found[path] = None
            path = os.path.dirname(path)
    return list(found)


def remove(path: str) -> None:
    """Remove a file or tree of our own, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def disk_error(path: str, error: OSError) -> KproError:
    """Return what a failed write means for a person."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return KproError(path, "the disk is full", "Free space there or enlarge the volume, then run again: what has arrived is kept")
    return KproError(path, f"it cannot be written ({error.strerror})", "Correct the store's folder, then run again: what has arrived is kept")
