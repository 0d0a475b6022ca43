# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of the model hub: repositories as folders.

``ROOT/ORG/NAME/`` is branch ``main``; ``ROOT/ORG/NAME@BRANCH/`` is a further branch. The commit of a branch is a hash of
its files, so it changes exactly when a file does, and an earlier state stays reachable only while a folder still holds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import typing as t
from pathlib import Path

# The hub of the real world keeps text files in git and everything large (and every weight file) in LFS.
LFS_FROM_BYTES = 1 << 20
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of a branch; ``git_oid`` is the blob id (of the LFS pointer for an LFS file, as on the real hub)."""

    path: str
    file: Path
    size_bytes: int
    sha256: str
    git_oid: str
    lfs: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _pointer(sha256: str, size_bytes: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size_bytes}\n".encode()


class Repositories:
    """Reads the folders again on each question; hashes are kept per (path, size, mtime)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hashes: dict[tuple[str, int, int], tuple[str, str]] = {}
        self._lock = threading.Lock()

    def branches(self, repository: str) -> dict[str, Path]:
        """Return branch name -> folder; empty if there is no such repository."""
        org, _slash, name = repository.partition("/")
        parent = self._root / org
        if not name or not parent.is_dir() or "@" in name or ".." in (org, name):
            return {}
        found = {}
        for folder in sorted(parent.iterdir()):
            base, _at, branch = folder.name.partition("@")
            if folder.is_dir() and base == name:
                found[branch or "main"] = folder
        return found

    def entries(self, folder: Path) -> list[Entry]:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return [self._entry(folder, path) for path in files]

    def commit(self, entries: t.Sequence[Entry]) -> str:
        text = "".join(f"{entry.path}\0{entry.sha256}\n" for entry in entries)
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def find(self, repository: str, revision: str) -> tuple[str, list[Entry]] | None:
        """Return (commit, files) of a branch or a commit id, or None."""
        for branch, folder in self.branches(repository).items():
            entries = self.entries(folder)
            commit = self.commit(entries)
            if revision in (branch, commit):
                return commit, entries
        return None

    def sha256(self, path: Path) -> str:
        return self._digest(path)[0]

    def _entry(self, folder: Path, path: Path) -> Entry:
        size_bytes = path.stat().st_size
        sha256, blob = self._digest(path)
        lfs = size_bytes >= LFS_FROM_BYTES or path.name.endswith(LFS_SUFFIXES)
        git_oid = _blob_id(_pointer(sha256, size_bytes)) if lfs else blob
        return Entry(path.relative_to(folder).as_posix(), path, size_bytes, sha256, git_oid, lfs)

    def _digest(self, path: Path) -> tuple[str, str]:
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns)
        with self._lock:
            if key not in self._hashes:
                sha256 = hashlib.sha256()
                sha1 = hashlib.sha1(b"blob %d\0" % stat.st_size, usedforsecurity=False)
                with path.open("rb") as handle:
                    while block := handle.read(1 << 20):
                        sha256.update(block)
                        if stat.st_size < LFS_FROM_BYTES:
                            sha1.update(block)
                self._hashes[key] = (sha256.hexdigest(), sha1.hexdigest())
            return self._hashes[key]
