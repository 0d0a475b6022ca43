# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hash-locked requirements and what is installed of them, as values."""

from __future__ import annotations

import hashlib
import re
import typing as t

from .._core.errors import KproError

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?==(?P<version>[^\s;*]+)")
INFO_FOLDER = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-(?P<version>[^-]+)\.dist-info$")


def normal_name(name: str) -> str:
    """Return a package name as the index spells it (PEP 503): "flash_attn.4" -> "flash-attn-4"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str, what: str = "lock file") -> dict[str, str]:
    """Return version by normal name of each pin.

    :raises KproError: a line that is not an exact pin with at least one SHA-256 hash, a package named twice, or no pin at all.
    """
    pins: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not line:
            continue
        words = line.split()
        hashes = [word for word in words if word.startswith("--hash=sha256:")]
        match = _PIN.fullmatch(words[0].rstrip(";"))
        if not match or not hashes or any(word.startswith("-") and word not in hashes for word in words):
            raise KproError(what, f"not an exact pin with SHA-256 hashes: {line[:80]}", "Remake the lock with uv pip compile --generate-hashes")
        name = normal_name(match["name"])
        if name in pins:
            raise KproError(what, f"{name} is named twice", "Remake the lock for one platform")
        pins[name] = match["version"]
    if not pins:
        raise KproError(what, "it names no package", "Remake the lock with uv pip compile --generate-hashes")
    return pins


def lock_key(text: str) -> str:
    """Return eight hexadecimal digits for the pins and hashes of a lock, whatever its comments and layout."""
    words = sorted(word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.replace("\\", " ").split())
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]


def installed_from_names(entries: t.Iterable[str]) -> dict[str, str]:
    """Return version by normal name from the entries of a ``site-packages`` folder."""
    found = {}
    for entry in entries:
        match = INFO_FOLDER.match(entry)
        if match:
            found[normal_name(match["name"])] = match["version"]
    return found


def package_changes(present: t.Mapping[str, str], wanted: t.Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    """Return (name, version now, version wanted) of each package that differs, by name; None: absent."""
    names = sorted(set(present) | set(wanted))
    return [(name, present.get(name), wanted.get(name)) for name in names if present.get(name) != wanted.get(name)]


def change_sentence(changes: t.Sequence[tuple[str, str | None, str | None]]) -> str:
    """Return how many packages come, go and change, as words."""
    added = sum(1 for _name, old, _new in changes if old is None)
    removed = sum(1 for _name, _old, new in changes if new is None)
    parts = [(added, "to add"), (removed, "to remove"), (len(changes) - added - removed, "to change")]
    return ", ".join(f"{count} {word}" for count, word in parts if count) or "no package differs"
