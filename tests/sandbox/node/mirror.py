# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Debian mirror to build from: the one that this machine's own apt uses (pure functions)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

COMPONENTS = "main contrib"


@dataclass(frozen=True)
class Source:
    """One address of apt with the suites fetched from it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def _one_line_sources(text: str) -> Iterable[Source]:
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", "", line.split("#", 1)[0]).split()
        if len(words) >= 3 and words[0] == "deb":
            yield Source(words[1], (words[2],), tuple(words[3:]))


def _deb822_sources(text: str) -> Iterable[Source]:
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and key:
                fields[key] += " " + line.strip()
            elif ":" in line:
                key, _unused, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        for uri in fields.get("uris", "").split():
            yield Source(uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split()))


def parse_sources(files: dict[str, str]) -> list[Source]:
    """Parse apt source files (name -> text), ``.list`` and ``.sources``."""
    found: list[Source] = []
    for name, text in sorted(files.items()):
        found += _deb822_sources(text) if name.endswith(".sources") else _one_line_sources(text)
    return found


def mirror_lines(sources: Iterable[Source], codename: str, suite: str, override: str = "") -> list[str]:
    """Return the lines to give to mmdebstrap for ``suite``; none means its own default.

    A source counts as Debian's if it serves the machine's own release with component main.
    """
    if override:
        return [f"deb {override} {suite} {COMPONENTS}"]
    main = security = ""
    for source in sources:
        if "main" not in source.components or not re.match(r"https?://", source.uri):
            continue
        uri = source.uri.rstrip("/")
        if codename in source.suites:
            main = main or uri
        elif f"{codename}-security" in source.suites:
            security = security or uri
    if not main:
        return []
    lines = [f"deb {main} {suite} {COMPONENTS}", f"deb {main} {suite}-updates {COMPONENTS}"]
    if security:
        lines.append(f"deb {security} {suite}-security {COMPONENTS}")
    return lines
