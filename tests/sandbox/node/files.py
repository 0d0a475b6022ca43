# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small file helpers: locks, atomic writes, removal, progress lines."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_started_s = time.monotonic()
_print_lock = threading.Lock()


def say(text: str) -> None:
    """Print one progress line with the seconds since the start on standard error."""
    with _print_lock:
        print(f"[{time.monotonic() - _started_s:5.1f} s] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[int]:
    """Hold an exclusive lock on the file and yield its descriptor; say so if another process holds it.

    A killed process drops it, unless it handed the descriptor on: then it is held until the last holder ends or unlocks it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another sandbox command that works on {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file so that a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, ``None`` where there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return value if isinstance(value, dict) else None


def remove_tree(path: Path) -> None:
    """Remove a folder if it is there; it must not be a link nor hold a mount."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def discard(path: Path) -> None:
    """Remove a folder so that a kill in the middle leaves either all of it or nothing of it under its name."""
    trash = path.with_name(f"{path.name}.discarded")
    remove_tree(trash)
    if path.exists():
        path.rename(trash)
        remove_tree(trash)


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a text file, empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
