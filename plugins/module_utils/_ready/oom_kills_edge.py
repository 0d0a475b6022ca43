# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the kernel's count of processes that it killed because main memory ran out."""

from __future__ import annotations

from .._linux.text_file_edge import read_text_file


def read_memory_events(path: str) -> dict[str, int]:
    """Return what the file counts; nothing where the kernel has no memory controller."""
    file = read_text_file(path)
    return memory_events(file.text) if file else {}


def memory_events(text: str) -> dict[str, int]:
    """Read the text of a control group's ``memory.events`` (one ``name count`` a line)."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Return what was counted in between; a count that went down belongs to a new control group."""
    return {name: count - before.get(name, 0) if count >= before.get(name, 0) else count for name, count in now.items()}
