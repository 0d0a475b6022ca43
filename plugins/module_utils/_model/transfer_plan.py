# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions of a resumable transfer in parts: pieces, journal, patience, words."""

from __future__ import annotations

import dataclasses
import json
import typing as t

MIB = 1 << 20
STRETCH_BYTES = 64 * MIB
SPLIT_BYTES = 16 * MIB
SHORTEST_STRETCH_BYTES = 8 * MIB
LONGEST_WAIT_S = 30.0
# A kill or a power cut may cost this much.
KEPT_BYTES = 64 * MIB
# A cut belongs to a pattern if its length is this near to the others'.
CUT_TOLERANCE = 0.02


@dataclasses.dataclass
class Piece:
    """Bytes ``start`` to ``end`` (exclusive) of a file, written up to ``done``; only its lock's holder changes it."""

    start: int
    end: int
    done: int
    cancelled: bool = False

    @property
    def left(self) -> int:
        return self.end - self.done


def pieces_of(size_bytes: int, written: t.Sequence[tuple[int, int]], stretch_bytes: int = STRETCH_BYTES) -> list[Piece]:
    """Return the parts of a file that are still to be fetched, given the ranges that are safely on disk."""
    gaps, at = [], 0
    for start, end in sorted(written):
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    if at < size_bytes:
        gaps.append((at, size_bytes))
    return [piece for start, end in gaps for piece in cut(start, end, stretch_bytes)]


def cut(start: int, end: int, stretch_bytes: int) -> list[Piece]:
    """Return the bytes ``start`` to ``end`` (exclusive) as pieces of ``stretch_bytes`` at most."""
    return [Piece(at, min(at + stretch_bytes, end), at) for at in range(start, end, stretch_bytes)]


def first_stretch(total_bytes: int, connections: int, longest_bytes: int) -> int:
    """Return the length of pieces with which a small model occupies all connections from the start.

    Splitting a piece later costs what its server has sent ahead already.
    """
    return min(longest_bytes, max(SHORTEST_STRETCH_BYTES, -(-total_bytes // max(1, connections))))


def merged(ranges: t.Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, joined where they touch, without empty ones."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def split(piece: Piece) -> Piece | None:
    """Take the second half of what a piece still lacks away from it; None if that is not worth a connection."""
    if piece.left < 2 * SPLIT_BYTES:
        return None
    middle = piece.done + piece.left // 2
    other = Piece(middle, piece.end, middle)
    piece.end = middle
    return other


def journal_text(size_bytes: int, written: t.Sequence[tuple[int, int]]) -> str:
    """Return the journal of a partial file: which ranges have reached the disk."""
    return json.dumps({"size": size_bytes, "written": [list(one) for one in written]})


def journal_ranges(text: str, size_bytes: int) -> list[tuple[int, int]]:
    """Read a journal; empty if it is damaged or speaks of a file of another size."""
    try:
        data = json.loads(text)
        ranges = [(int(start), int(end)) for start, end in data["written"]]
        sound = data["size"] == size_bytes and all(0 <= start < end <= size_bytes for start, end in ranges)
    except (ValueError, KeyError, TypeError):
        return []
    return merged(ranges) if sound else []


def wait_s(failures: int, asked_s: float, spread: float) -> float:
    """Return the pause before the next try.

    :param failures: tries in a row that brought nothing (from 1).
    :param asked_s: what the server asked for (Retry-After).
    :param spread: a random number 0..1, so that connections do not come back together.
    """
    return max(asked_s, min(LONGEST_WAIT_S, 0.25 * 2.0 ** min(failures, 12)) * (0.5 + 0.5 * spread))


def unusable_words(name: str, partial_bytes: int, known_bytes: int, size_bytes: int) -> str:
    """Say that an earlier part of a file cannot be used, or only little of it; empty if it can.

    :param partial_bytes: length of the partial file, or what it takes on disk if it was laid out at full length.
    :param known_bytes: what the journal vouches for.
    """
    if partial_bytes > size_bytes:
        return (
            f"The partial file of {name} ({size_words(partial_bytes)}) is larger than the file ({size_words(size_bytes)}; a server answers 416 to that). "
            "Removing it and fetching that file again"
        )
    if partial_bytes - known_bytes > KEPT_BYTES:
        return f"Resume cannot reuse {size_words(partial_bytes - known_bytes)} of partial data of {name}: its journal does not vouch for them"
    return ""


def cut_limit(cuts: t.Sequence[int]) -> int | None:
    """Return the length at which something on the way cuts transfers, if the last three agree within 2 %."""
    last = cuts[-3:]
    if len(last) < 3 or min(last) < MIB or max(last) - min(last) > CUT_TOLERANCE * max(last):
        return None
    return max(last)


def cut_words(cuts: t.Sequence[int], stretch_bytes: int) -> str:
    """Say that transfers are cut at one length, and what is done about it."""
    return (
        f"Transfers were cut {len(cuts)} times at about {size_words(max(cuts))} each: looks like a limit of a proxy. "
        f"Going on in ranges of {size_words(stretch_bytes)}"
    )


def stretch_below(limit_bytes: int) -> int:
    """Return the largest power of two below a cut limit, at least 1 MiB."""
    return max(MIB, 1 << (max(limit_bytes - 1, 1).bit_length() - 1))


def size_words(count: float) -> str:
    """Return a number of bytes in decimal units, as disks and links are sold."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{int(count)} B"


def time_words(seconds: float) -> str:
    """Return a duration rounded as a person would say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a job is; rates in bytes per second."""

    phase: str
    done_bytes: int
    total_bytes: int
    done_files: int
    total_files: int
    rate: float
    note: str = ""

    def line(self) -> str:
        """Return one line for the terminal."""
        share = 100 * self.done_bytes // self.total_bytes if self.total_bytes else 100
        text = f"{self.phase} {share} % of {size_words(self.total_bytes)}, {self.done_files} of {self.total_files} files"
        left = self.total_bytes - self.done_bytes
        if self.rate > 0 and left > 0:
            text += f", {size_words(self.rate)}/s, {time_words(left / self.rate)} left"
        return f"{text} ({self.note})" if self.note else text
