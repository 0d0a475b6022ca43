# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which content a cached thing was made from: hashes over files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_IGNORED_SUFFIXES = (".md", ".pyc", ".rst")


def _counts(path: Path) -> bool:
    """Whether a file can change what is built: not documentation, tests and caches."""
    return (
        path.is_file()
        and path.suffix not in _IGNORED_SUFFIXES
        and not path.name.startswith("test_")
        and "__pycache__" not in path.parts
        and "tests" not in path.parts[-3:-1]
    )


def content_key(paths: Iterable[Path], *texts: str) -> str:
    """Return 16 hex digits over the given texts and all files below the given paths (name, mode bit, bytes)."""
    total = hashlib.sha256()
    for text in texts:
        total.update(f"text {len(text)}\n{text}\n".encode())
    for top in paths:
        if not top.exists():
            continue
        for path in sorted([top] if top.is_file() else (p for p in top.rglob("*") if _counts(p))):
            data = path.read_bytes()
            name = path.name if path == top else path.relative_to(top)
            total.update(f"file {top.name} {name} {path.stat().st_mode & 0o100:o} {len(data)}\n".encode())
            total.update(data)
    return total.hexdigest()[:16]


def package_list(*files: Path) -> list[str]:
    """Read lists of Debian packages (one a line, ``#`` starts a comment), sorted, each once."""
    names: set[str] = set()
    for path in files:
        if path.exists():
            lines = (line.split("#", 1)[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
            names.update(line for line in lines if line)
    return sorted(names)
