# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text of others, fit to be printed at a terminal. Pure.

Names, logs and answers of targets, hubs and models may hold terminal escapes, carriage returns or characters that turn the
reading direction: printed as they are, they move the cursor, hide words or forge lines. Here they become visible.
"""

from __future__ import annotations

import re
import typing as t
import unicodedata

# Control, format (with all that turns the reading direction), surrogate, and the two separators that end a line.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Colours are no text, and harmless to lose: many a log has them.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_LINE = 2000


def printable(text: str) -> str:
    """Return text with each character that a terminal would obey made visible; lines and tabs stay."""
    if text.isprintable():
        return text
    bare = _COLOUR.sub("", text).replace("\r\n", "\n")
    return "".join(one if one in "\n\t" else _visible(one) for one in bare)


def one_line(text: str, limit: int = _LONGEST_LINE) -> str:
    """Return the same as :func:`printable` on one line, cut at ``limit`` characters."""
    if not text.isprintable():
        text = printable(re.sub(r"\r?\n|\r|\t", " ", text[: 4 * limit]))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def printable_values(value: t.Any) -> t.Any:
    """Return lists and mappings with all their texts, keys too, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key) if isinstance(key, str) else key: printable_values(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_values(one) for one in value]
    return value


def hides(text: str) -> bool:
    """Tell whether text holds a character that can't be seen, or that a terminal would obey."""
    return not text.isprintable() and any(unicodedata.category(one) in _HIDDEN for one in text)


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return {"\r": "\\r", "\n": "\\n", "\t": "\\t"}.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )
