# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The present and the wanted files of a model folder.

The manifest lists every file of the commit, also those not selected, so that a later question with other patterns can be
answered without the hub. A file counts as unchanged while size and mtime are those of the moment when its hash was checked.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import typing as t

from .._core.errors import KproError
from .._core.untrusted_json import BadJson, count_of, object_of
from .hub_protocol import COMMIT, RemoteFile, check_repository, checked_listing, remote_file

FORMAT = 1
# Of the longest list of files that is taken (10,000), with long names.
LONGEST_MANIFEST_BYTES = 16 << 20
SHORT_COMMIT = 12


@dataclasses.dataclass(frozen=True)
class Stat:
    """A file's state in the file system."""

    size_bytes: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A snapshot: ``checked`` maps the path of each file that was hashed and found right to its stat at that time."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]
    checked: t.Mapping[str, Stat]


@dataclasses.dataclass(frozen=True)
class FileState:
    """One selected file: ``ok``, ``missing``, ``size`` (wrong), or ``unknown`` (right size, content not checked)."""

    file: RemoteFile
    state: str


def folder_name(repository: str, commit: str) -> str:
    """Return the name of the folder of a snapshot."""
    return f"{repository.replace('/', '--')}@{commit[:SHORT_COMMIT]}"


def select(files: t.Iterable[RemoteFile], include: t.Sequence[str], exclude: t.Sequence[str]) -> list[RemoteFile]:
    """Return the files that match a pattern of ``include`` (none: all) and none of ``exclude``, small ones first."""
    chosen = [file for file in files if (not include or _matches(file.path, include)) and not _matches(file.path, exclude)]
    return sorted(chosen, key=lambda file: (bool(file.sha256), file.path))


def states(wanted: t.Iterable[RemoteFile], present: t.Mapping[str, Stat], checked: t.Mapping[str, Stat]) -> list[FileState]:
    """Compare the wanted files with those present and with what is known about them."""
    return [FileState(file, _state(file, present.get(file.path), checked.get(file.path))) for file in wanted]


def complete(found: t.Iterable[FileState]) -> bool:
    """Tell whether every file is there and was checked."""
    return all(one.state == "ok" for one in found)


def to_text(manifest: Manifest) -> str:
    """Return the manifest as JSON."""
    rows = {}
    for file in manifest.files:
        row: dict[str, t.Any] = {"size": file.size_bytes, "sha256": file.sha256, "git_sha1": file.git_sha1}
        if file.path in manifest.checked:
            row["mtime_ns"] = manifest.checked[file.path].mtime_ns
        rows[file.path] = row
    head = {"format": FORMAT, "repository": manifest.repository, "commit": manifest.commit}
    return json.dumps({**head, "files": rows}, indent=1, sort_keys=True) + "\n"


def from_text(text: str | bytes) -> Manifest | None:
    """Read a manifest; None if it is damaged or of an unknown format (the snapshot is then checked from the start).

    It may be another machine's, or lie where others can write: its rows are held to the same rules as those of a hub.
    """
    try:
        data = object_of(text, LONGEST_MANIFEST_BYTES)
        commit, rows = data["commit"], data["files"]
        if data["format"] != FORMAT or not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            return None
        repository = check_repository(data["repository"])
        files = [remote_file(path, row["size"], row["sha256"], row["git_sha1"], "manifest") for path, row in rows.items()]
        checked = {file.path: Stat(file.size_bytes, count_of(rows[file.path]["mtime_ns"])) for file in files if "mtime_ns" in rows[file.path]}
        return Manifest(repository, commit, tuple(checked_listing(files, "manifest")), checked)
    except (BadJson, KproError, KeyError, TypeError, AttributeError):
        return None


def damage_words(path: str, size_bytes: int, expected_bytes: int, head: bytes) -> str:
    """Say what is wrong with a file, from its size and first bytes.

    A safetensors file begins with the length of its header (8 bytes, little endian); text of a web page in its place gives
    an absurd length.
    """
    lead = head.lstrip()[:14].lower()
    if lead.startswith((b"<!doc", b"<html")):
        return f"{path} is damaged: it holds a web page (header length 0x{head[:4].hex()} looks like HTML), {size_bytes} bytes instead of {expected_bytes}"
    if head and not head.strip(b"\0"):
        return f"{path} is damaged: it begins with zeros, {size_bytes} bytes of {expected_bytes}"
    if size_bytes != expected_bytes:
        return f"{path} is damaged: {size_bytes} bytes instead of {expected_bytes}"
    return f"{path} is damaged: its content is not that of the commit"


def _matches(path: str, patterns: t.Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _state(file: RemoteFile, present: Stat | None, checked: Stat | None) -> str:
    if present is None:
        return "missing"
    if present.size_bytes != file.size_bytes:
        return "size"
    return "ok" if present == checked else "unknown"
