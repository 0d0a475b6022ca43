# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tar stream of another machine's wheels, and how it is taken in.

It holds buckets of uv's cache and the folder of wheels that were built from source. An unpacked wheel arrives in a folder beside, is held
to the hashes of its own list of files (RECORD), and gets its name only then: what was cut off is sent again, what is here is not.
uv's notes on where a wheel came from and what its archive's hash is follow last; uv holds them to the lock file as always, and a built
wheel is held to its noted hash when it is installed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import tarfile
import typing as t

from .._linux.held_folder_edge import HeldFolder, read_bounded

# The buckets of uv's cache that are of use elsewhere; what is noted of a machine's interpreters is not.
_BUCKETS = re.compile(r"(archive|wheels|simple|flat-index)-v\d+", re.ASCII)
_LINK = re.compile(r"(\.\./)+archive-v\d+/[\w-]+", re.ASCII)
BUILT = "wheelhouse"
_ARRIVING = ".arriving"
_BLOCK = 1 << 20
_RECORD_BYTES = 64 << 20


class Refused(Exception):
    """The stream holds something else than it should."""


def unpacked(cache: pathlib.Path) -> list[str]:
    """Return the names of the wheels that lie unpacked in a cache, like ``archive-v0/0J3lhIe7C5-7r0hC``."""
    return sorted(str(path.relative_to(cache)) for path in cache.glob("archive-v*/*") if path.is_dir())


class Intake:
    """Takes a stream in; what is complete stays, whatever becomes of the rest.

    :param cache: uv's cache.
    :param wheelhouse: folder of the wheels that were built from source.
    :param told: called with the count of wheels and bytes so far.
    """

    def __init__(self, cache: pathlib.Path, wheelhouse: pathlib.Path, told: t.Callable[[int, int], None]) -> None:
        self._cache = cache
        self._wheelhouse = wheelhouse
        self._held = HeldFolder.at(str(cache), make=True)
        self._told = told
        self._wheel = ""
        self._digests: dict[str, str] = {}
        self.wheels = 0
        self.size_bytes = 0
        self.damaged: list[str] = []

    def take(self, archive: tarfile.TarFile) -> None:
        """Read the stream to its end; a wheel whose files are not those of its RECORD is left out and noted in :attr:`damaged`.

        :raises Refused: it holds something else than wheels.
        """
        try:
            for member in archive:
                self._member(archive, member)
            self._keep()
        finally:
            self._held.remove(_ARRIVING)

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = checked_path(member)
        wheel = "/".join(path.parts[:2]) if path.parts[0].startswith("archive-") and len(path.parts) > 1 else ""
        if wheel != self._wheel:
            self._keep()
            self._wheel = wheel
        if member.isdir():
            return
        if member.issym():
            self._held.strictly(str(path.parent), make=True).make_link(path.name, member.linkname)
            return
        source = archive.extractfile(member)
        if source is None:
            raise Refused(f"{path} has no content")
        digest = _write(*self._place(path), source, member.mode)
        self.size_bytes += member.size
        if wheel:
            self._digests["/".join(path.parts[2:])] = digest
        self._told(self.wheels, self.size_bytes)

    def _place(self, path: pathlib.PurePosixPath) -> tuple[HeldFolder, str]:
        """Return the folder and the name of a file; no link that came with the stream leads anywhere."""
        built = path.parts[0] == BUILT
        place = path.relative_to(BUILT) if built else _ARRIVING / path if self._wheel else path
        folder = HeldFolder.at(str(self._wheelhouse), make=True) if built else self._held
        return folder.strictly(str(place.parent), make=True), place.name

    def _keep(self) -> None:
        """Give the wheel that has arrived its name."""
        name, digests = self._wheel, self._digests
        self._wheel, self._digests = "", {}
        arrived = self._cache / _ARRIVING / name
        record = next(iter(sorted(arrived.glob("*.dist-info/RECORD"))), None) if name else None
        # Without a list it is no wheel: it is left to the index.
        if record is None:
            return
        # Bytes that are no text may stand in a damaged one; it is judged, not believed.
        if problem := mismatch(record.parent.name, read_bounded(str(record), _RECORD_BYTES).decode("utf-8", "replace"), digests):
            self.damaged.append(problem)
            self._held.remove(_ARRIVING)
            return
        bucket, wheel = name.split("/")
        target = self._held.strictly(bucket, make=True)
        if target.status(wheel) is None:
            self._held.strictly(f"{_ARRIVING}/{bucket}").move(wheel, target, wheel)
            self.wheels += 1


def checked_path(member: tarfile.TarInfo) -> pathlib.PurePosixPath:
    """Return where a member of the stream belongs, below the cache or the folder of built wheels.

    :raises Refused: it belongs nowhere there.
    """
    path = pathlib.PurePosixPath(member.name)
    if member.isdir() and not path.parts:
        return pathlib.PurePosixPath(BUILT)
    if path.is_absolute() or not path.parts or ".." in path.parts or not (_BUCKETS.fullmatch(path.parts[0]) or path.parts[0] == BUILT):
        raise Refused(f"{member.name} is no part of a cache of uv")
    if not (member.isfile() or member.isdir() or (member.issym() and not path.parts[0].startswith(("archive-", BUILT)) and _LINK.fullmatch(member.linkname))):
        raise Refused(f"{member.name} is no file, folder or link to a wheel")
    return path


def mismatch(name: str, record: str, digests: t.Mapping[str, str]) -> str:
    """Return how the files of a wheel differ from its RECORD, an empty text if they do not.

    :param name: of the folder with the RECORD.
    :param digests: SHA-256 in RECORD's spelling, by path.
    """
    try:
        rows = list(csv.reader(io.StringIO(record)))
    except csv.Error as error:
        return f"{name.removesuffix('.dist-info')}: its RECORD can't be read ({error})"
    listed = {row[0]: row[1].partition("=")[2] for row in rows if len(row) > 1 and row[1].startswith("sha256=")}
    for path in sorted(listed.keys() | digests.keys()):
        own = path.startswith(f"{name}/RECORD")
        if not own and listed.get(path) != digests.get(path):
            return f"{name.removesuffix('.dist-info')}: {path} is not as the wheel's RECORD says"
    return ""


def _write(folder: HeldFolder, name: str, source: t.IO[bytes], mode: int) -> str:
    """Write a file and return its SHA-256 in RECORD's spelling."""
    total = hashlib.sha256()
    with os.fdopen(folder.create(name, 0o755 if mode & 0o100 else 0o644), "wb") as file:
        while block := source.read(_BLOCK):
            total.update(block)
            file.write(block)
    return base64.urlsafe_b64encode(total.digest()).decode().rstrip("=")
