# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of an environment as they were when it was built, and what differs from that."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import posixpath
import re
import typing as t

LIST_NAME = "kpro-files.txt"
# The name under which damage of the interpreter is told.
INTERPRETER = "the interpreter"
OWN_LIST = "the list of its files"
Kind = t.Literal["file", "link", "folder"]
_LETTERS: t.Mapping[Kind, str] = {"file": "f", "link": "l", "folder": "d"}
_KINDS: t.Mapping[str, Kind] = {letter: kind for kind, letter in _LETTERS.items()}
_TOLD_FILES = 2
_TOLD_PACKAGES = 5
_NS = 1_000_000_000
_SIZE = re.compile(r"[0-9]{1,15}")


class ListDamaged(Exception):
    """A list of files that is not as it was written."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file, link or folder as it was built.

    :param path: relative to the environment; absolute for the interpreter's files outside of it.
    :param digest: SHA-256 of the content (of a link: its target), as RECORD spells it; empty for a folder.
    """

    path: str
    kind: Kind
    mode: int
    size_bytes: int
    mtime_ns: int
    digest: str


@dataclasses.dataclass(frozen=True)
class Found:
    """The present thing at a path; ``kind`` is "none" where nothing is, "other" for a device, a pipe or a socket."""

    kind: Kind | t.Literal["none", "other"]
    mode: int = 0
    size_bytes: int = 0
    mtime_ns: int = 0
    links: int = 1


@dataclasses.dataclass(frozen=True)
class Damage:
    """A file that is not as it was built.

    :param package: the package that it belongs to, :data:`INTERPRETER`, or empty if that is not known.
    :param words: what is wrong with it ("is missing").
    :param shared: its content may be that of uv's cache, too: they share files by hard links.
    :param digest: hash of the content that was found.
    """

    package: str
    path: str
    words: str
    shared: bool = False
    digest: str = ""


@dataclasses.dataclass(frozen=True)
class RecordLine:
    """One file of a RECORD; ``digest`` and ``size_bytes`` are empty and None where RECORD says nothing."""

    path: str
    digest: str
    size_bytes: int | None


def read_record(text: str) -> list[RecordLine]:
    """Return the lines of a RECORD; a line that is none is left out (a cut-off RECORD lacks files, which shows elsewhere)."""
    found = []
    with contextlib.suppress(csv.Error):
        for row in csv.reader(io.StringIO(text)):
            if len(row) == 3 and row[0]:
                name, _equals, digest = row[1].partition("=")
                found.append(RecordLine(row[0], digest if name == "sha256" else "", int(row[2]) if _SIZE.fullmatch(row[2]) else None))
    return found


def below(site: str, path: str) -> str:
    """Return a path of RECORD, which is relative to ``site-packages``, relative to the environment; empty if it leads out of that."""
    joined = posixpath.normpath(posixpath.join(site, path))
    return "" if joined.startswith(("..", "/")) else joined


def list_text(entries: t.Iterable[Entry]) -> str:
    """Return a list of files as the text that is kept; its first line tells whether the rest is whole."""
    rows = (f"{_LETTERS[entry.kind]} {entry.mode:o} {entry.size_bytes} {entry.mtime_ns} {entry.digest or '-'} {_escaped(entry.path)}\n" for entry in entries)
    body = "".join(rows)
    return f"{hashlib.sha256(body.encode('utf-8', 'surrogateescape')).hexdigest()}\n{body}"


def list_rows(text: str) -> t.Iterator[list[str]]:
    """Return the rows of a kept list as they were written, for :func:`entry_of`; there may be more than 100,000.

    :raises ListDamaged: it is not whole.
    """
    first, _newline, body = text.partition("\n")
    if hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest() != first:
        raise ListDamaged
    # Not splitlines(): a name may hold what that takes for the end of a line.
    return (line.split(" ", 5) for line in body.split("\n")[:-1])


def entry_of(row: t.Sequence[str]) -> Entry:
    """Return a row as an entry."""
    letter, mode, size_bytes, mtime_ns, digest, path = row
    return Entry(plain_path(path), _KINDS[letter], int(mode, 8), int(size_bytes), int(mtime_ns), "" if digest == "-" else digest)


def difference(entry: Entry, found: Found) -> str | None:
    """Return what is wrong by what can be seen without reading, empty if nothing is; None: only the content can tell."""
    if found.kind == "none":
        return "is missing"
    if found.kind != entry.kind:
        return f"is a {'special file' if found.kind == 'other' else found.kind} in place of a {entry.kind}"
    if entry.mode & 0o777 & ~found.mode:
        return f"has mode {found.mode:04o} in place of {entry.mode:04o}"
    if entry.kind == "folder":
        return ""
    if entry.kind == "file" and found.size_bytes != entry.size_bytes:
        return "is empty" if not found.size_bytes else f"has {found.size_bytes} of {entry.size_bytes} bytes"
    return "" if _same_time(entry.mtime_ns, found.mtime_ns) else None


def _same_time(built_ns: int, now_ns: int) -> bool:
    """Say whether two times are the same; a backup may have kept only the seconds."""
    return built_ns == now_ns or (now_ns % _NS == 0 and built_ns // _NS == now_ns // _NS)


def damage_sentence(damages: t.Sequence[Damage]) -> str:
    """Return what is damaged, by package and with the first files of each."""
    by_package: dict[str, list[Damage]] = {}
    for damage in damages:
        by_package.setdefault(damage.package or "files of no known package", []).append(damage)
    parts = []
    for package, rows in list(by_package.items())[:_TOLD_PACKAGES]:
        told = ", ".join(f"{row.path} {row.words}" for row in rows[:_TOLD_FILES])
        more = f", and {len(rows) - _TOLD_FILES} more" if len(rows) > _TOLD_FILES else ""
        parts.append(f"{package} ({told}{more})")
    if len(by_package) > _TOLD_PACKAGES:
        parts.append(f"and {len(by_package) - _TOLD_PACKAGES} more packages")
    return f"damaged: {', '.join(parts)}"


def packages_of(damages: t.Iterable[Damage]) -> list[str]:
    """Return the damaged packages by name."""
    return sorted({damage.package for damage in damages} - {INTERPRETER, OWN_LIST, ""})


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def plain_path(path: str) -> str:
    """Return a path as it was before it was written into a list."""
    if "\\" not in path:
        return path
    return path.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\")
