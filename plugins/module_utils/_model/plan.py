# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of hf_model, and the space that it needs."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .hub_protocol import RemoteFile
from .manifest import FileState
from .transfer_plan import size_words

SPARE_INODES = 64


@dataclasses.dataclass(frozen=True)
class Present:
    """The observed target.

    :param states: of the selected files.
    :param parts_bytes: bytes of the missing files that an earlier run has already brought, by path.
    :param leftovers: bytes on disk of abandoned downloads of this repository, by path; they are removed first.
    :param free_bytes: free bytes for the store.
    :param free_inodes: free inodes; None where the file system has no such limit.
    """

    states: tuple[FileState, ...]
    parts_bytes: t.Mapping[str, int]
    leftovers: t.Mapping[str, int]
    free_bytes: int
    free_inodes: int | None


def plan_changes(what: str, target: str, present: Present, *, verify_all: bool) -> list[Change]:
    """Return what has to be done so that every selected file is there and known to be right."""
    changes = [Change(f"Remove the abandoned download {path}", size_words(count)) for path, count in sorted(present.leftovers.items())]
    by_state: dict[str, list[RemoteFile]] = {}
    for one in present.states:
        by_state.setdefault(one.state, []).append(one.file)
    if verify_all:
        by_state["unknown"] = by_state.pop("ok", []) + by_state.get("unknown", [])
    missing = by_state.get("missing", [])
    if missing:
        kept = sum(present.parts_bytes.get(file.path, 0) for file in missing)
        after = f"{len(missing)} files, {size_words(_size(missing))}" + (f", {size_words(kept)} of it already here" if kept else "")
        changes.append(Change(f"Download {what} to {target}", f"{len(present.states) - len(missing)} of {len(present.states)} files", after))
    changes += [Change(f"Fetch {file.path} again", "another size", size_words(file.size_bytes)) for file in by_state.get("size", [])]
    return changes


def files_to_check(present: Present, *, verify_all: bool) -> list[RemoteFile]:
    """Return the files whose content is read, although nothing may have to change."""
    return [one.file for one in present.states if one.state == "unknown" or (verify_all and one.state == "ok")]


def check_space(store: str, present: Present, reserve_bytes: int) -> None:
    """Refuse a download that cannot fit.

    Needed is what is still missing of the missing and damaged files; abandoned downloads count as free.

    :raises KproError: if bytes or inodes are short, with the sum.
    """
    lacking = [one.file for one in present.states if one.state in ("missing", "size")]
    if not lacking:
        return
    needed = _size(lacking) - sum(present.parts_bytes.get(file.path, 0) for file in lacking)
    free = present.free_bytes + sum(present.leftovers.values())
    if needed + reserve_bytes > free:
        raise KproError(
            store,
            f"{size_words(needed)} are still to be fetched and {size_words(reserve_bytes)} shall stay free, but only {size_words(free)} are free",
            f"Free {size_words(needed + reserve_bytes - free)} there, enlarge the volume, or set hf_model__store to another one",
            needed_bytes=needed,
            free_bytes=free,
        )
    if present.free_inodes is not None and present.free_inodes < 2 * len(lacking) + SPARE_INODES:
        raise KproError(store, f"only {present.free_inodes} inodes are free", "Remove small files there or use a file system with more inodes")


def _size(files: t.Iterable[RemoteFile]) -> int:
    return sum(file.size_bytes for file in files)
