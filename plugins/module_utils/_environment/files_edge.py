# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the files of an environment: list, look, read."""

from __future__ import annotations

import base64
import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import stat
import typing as t

from .files import (
    INTERPRETER,
    LIST_NAME,
    OWN_LIST,
    Damage,
    Entry,
    Found,
    Kind,
    ListDamaged,
    RecordLine,
    below,
    difference,
    entry_of,
    list_rows,
    list_text,
    plain_path,
    read_record,
)
from .lock import INFO_FOLDER, normal_name

_BLOCK_BYTES = 1 << 20
_KINDS: t.Mapping[int, Kind] = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
_MODES: t.Mapping[str, int] = {"f": stat.S_IFREG, "l": stat.S_IFLNK, "d": stat.S_IFDIR}
# Ours: written after the list.
_NOT_LISTED = (LIST_NAME, "kpro-environment.json", "kpro-environment.part")


class EnvironmentFiles:
    """The files of one environment, and those of its interpreter if that lies below the same root.

    :param root: folder of all environments and of the interpreters that uv keeps.
    """

    def __init__(self, path: str, root: str) -> None:
        self._path = path
        self._root = root
        self.interpreter = interpreter_folder(path, root)

    # --- as it was built ---------------------------------------------------------------------------------------------------------------------

    def write_list(self) -> None:
        """List all files with their content's hash. The list is made anew after each build, by the builder alone."""
        paths = [*self._walk(self._path, ""), *(self._walk(self.interpreter, f"{self.interpreter}/") if self.interpreter else ())]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            entries = [entry for entry in pool.map(self._entry, paths) if entry]
        self._save(entries)

    def _save(self, entries: t.Iterable[Entry]) -> None:
        target = pathlib.Path(self._path, LIST_NAME)
        part = target.with_suffix(".part")
        part.write_text(list_text(entries), encoding="utf-8", errors="surrogateescape")
        part.replace(target)

    @staticmethod
    def _walk(folder: str, prefix: str) -> t.Iterator[str]:
        for place, folders, files in os.walk(folder):
            inner = os.path.relpath(place, folder)
            start = prefix if inner == "." else f"{prefix}{inner}/"
            yield from (f"{start}{name}" for name in (*folders, *files) if start or name not in _NOT_LISTED)

    def _entry(self, path: str) -> Entry | None:
        found = self._found(path)
        if found.kind == "none" or found.kind == "other":  # so that the type narrows
            return None
        return Entry(path, found.kind, found.mode, found.size_bytes, found.mtime_ns, self._digest(path, found.kind))

    # --- as it is ----------------------------------------------------------------------------------------------------------------------------

    def damages(self, *, read_all: bool) -> tuple[list[Damage], bool]:
        """Return what differs from the environment as it was built, and whether times changed although the content is the same.

        :param read_all: read every file; otherwise only those of another time.
        """
        try:
            rows = list_rows(pathlib.Path(self._path, LIST_NAME).read_text(encoding="utf-8", errors="surrogateescape"))
            entries = [entry_of(row) for row in rows if read_all or not self._unchanged(row)]
        except FileNotFoundError:
            return self.record_damages(), False
        except (OSError, ValueError, ListDamaged):
            return [Damage(OWN_LIST, LIST_NAME, "is not whole")], False
        damaged: list[tuple[Entry, str, bool]] = []
        unsure: list[Entry] = []
        touched = False
        for entry in entries:
            found = self._found(entry.path)
            words = difference(entry, found)
            if words:
                damaged.append((entry, words, found.kind == "file" and found.links > 1))
            touched = touched or words is None
            if not words and (words is None or (read_all and entry.kind != "folder")):
                unsure.append(entry)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for entry, digest in zip(unsure, pool.map(lambda entry: self._digest(entry.path, entry.kind), unsure), strict=True):
                if digest != entry.digest:
                    damaged.append((entry, "was changed" if digest else "can't be read", self._found(entry.path).links > 1))
        owners = self._owners() if damaged else {}
        found_damage = [Damage(self._package(entry.path, owners), entry.path, words, shared) for entry, words, shared in damaged]
        return found_damage, touched and not damaged

    def checked_at(self) -> float:
        """Return when all files were read last, in seconds since the epoch; 0 if that is not known."""
        try:
            return os.stat(os.path.join(self._path, LIST_NAME)).st_mtime
        except OSError:
            return 0.0

    def note_check(self) -> None:
        """Note that all files were read and are right."""
        os.utime(os.path.join(self._path, LIST_NAME))

    def _unchanged(self, row: t.Sequence[str]) -> bool:
        """Say in the shortest way whether a file looks as it was listed: this is asked for each of 100,000 files in each run."""
        letter, mode, size_bytes, mtime_ns, _digest, path = row
        try:
            status = os.lstat(os.path.join(self._path, plain_path(path)))
        except OSError:
            return False
        if status.st_mode != _MODES[letter] + int(mode, 8):
            return False
        return letter == "d" or (status.st_mtime_ns == int(mtime_ns) and status.st_size == int(size_bytes))

    # --- against the packages' own records ---------------------------------------------------------------------------------------------------

    def record_damages(self) -> list[Damage]:
        """Return what differs from the records of the packages, each file read: the index's own word on what belongs there."""
        wanted: dict[str, list[tuple[str, RecordLine]]] = {}
        for package, site, lines in self._records():
            for line in lines:
                path = below(site, line.path)
                if path and line.digest:
                    wanted.setdefault(path, []).append((package, line))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            found = pool.map(lambda path: self._against(path, [line for _package, line in wanted[path]]), wanted)
            damaged = [dataclasses.replace(row, package=wanted[row.path][0][0]) for row in found if row]
        return [*damaged, *self._of_nobody()]

    def _against(self, path: str, lines: t.Sequence[RecordLine]) -> Damage | None:
        """Return what is wrong with a file. Two packages may name it with different contents: the one that came last is there."""
        found = self._found(path)
        digest = self._digest(path, "file") if found.kind == "file" else ""
        if digest and any(digest == line.digest for line in lines):
            return None
        size_bytes = found.size_bytes if lines[0].size_bytes is None else lines[0].size_bytes
        words = difference(Entry(path, "file", 0, size_bytes, -1, lines[0].digest), found)
        return Damage("", path, words or ("was changed" if digest else "can't be read"), found.links > 1, digest)

    def _of_nobody(self) -> list[Damage]:
        """Return code that no record names, in a folder of which records name other files: a record was cut off."""
        named: set[str] = set()
        tops: dict[str, str] = {}
        for package, site, lines in self._records():
            for line in lines:
                path = below(site, line.path)
                named.add(path)
                inner = os.path.relpath(path, site) if path else ".."
                if "/" in inner and not inner.startswith("..") and not INFO_FOLDER.match(inner.partition("/")[0]):
                    tops.setdefault(f"{site}/{inner.partition('/')[0]}", package)
        return [
            Damage(package, path, "is named by no record")
            for top, package in tops.items()
            for path in self._walk(os.path.join(self._path, top), f"{top}/")
            if path not in named and not path.endswith(".pyc") and self._found(path).kind == "file"
        ]

    def _records(self) -> t.Iterator[tuple[str, str, list[RecordLine]]]:
        """Return package, its ``site-packages`` and its record, for each package."""
        for folder in sorted(pathlib.Path(self._path).glob("lib/python3.*/site-packages/*.dist-info")):
            match = INFO_FOLDER.match(folder.name)
            if match:
                try:
                    text = (folder / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
                except OSError:
                    text = ""
                yield normal_name(match["name"]), str(folder.parent.relative_to(self._path)), read_record(text)

    def _owners(self) -> dict[str, str]:
        return {path: package for package, site, lines in self._records() for line in lines if (path := below(site, line.path))}

    def _package(self, path: str, owners: t.Mapping[str, str]) -> str:
        if path.startswith("/") or (path.split("/")[0] in ("bin", "pyvenv.cfg") and path not in owners):
            return INTERPRETER
        parts = path.split("/")
        for part in parts:
            match = INFO_FOLDER.match(part)
            if match:
                return normal_name(match["name"])
        if parts[-2:-1] == ["__pycache__"]:
            path = "/".join([*parts[:-2], f"{parts[-1].partition('.')[0]}.py"])
        if path in owners:
            return owners[path]
        return next((package for named, package in owners.items() if named.startswith(f"{path}/")), "")

    # --- single files ------------------------------------------------------------------------------------------------------------------------

    def _found(self, path: str) -> Found:
        try:
            status = os.lstat(os.path.join(self._path, path))
        except OSError:
            return Found("none")
        return Found(_KINDS.get(stat.S_IFMT(status.st_mode), "other"), stat.S_IMODE(status.st_mode), status.st_size, status.st_mtime_ns, status.st_nlink)

    def _digest(self, path: str, kind: Kind) -> str:
        """Return the SHA-256 of a content in RECORD's spelling; empty for a folder and for what can't be read."""
        place = os.path.join(self._path, path)
        try:
            if kind == "link":
                return _spelled(hashlib.sha256(os.fsencode(os.readlink(place))).digest())
            return "" if kind == "folder" else _spelled(_sha256(place))
        except OSError:
            return ""


def interpreter_folder(path: str, root: str) -> str:
    """Return the folder of an environment's interpreter if uv keeps it below the root, else an empty text."""
    real = os.path.realpath(os.path.join(path, "bin/python"))
    folder = os.path.dirname(os.path.dirname(real))
    inside = os.path.realpath(root)
    return folder if real.startswith(f"{inside}/") and folder != os.path.realpath(path) and os.path.isdir(folder) else ""


def _sha256(place: str) -> bytes:
    digest = hashlib.sha256()
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.digest()


def _spelled(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
