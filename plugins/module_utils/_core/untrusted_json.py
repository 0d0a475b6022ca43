# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON that somebody else wrote: bounded in length and depth, and wrong in one way only. Pure."""

from __future__ import annotations

import json
import typing as t

# No file that a model is made of nests deeper than a few dozen levels; what we print of it has to be written again by others.
DEEPEST = 100
# Counts, sizes and offsets: all fit into 63 bits.
LARGEST = 2**63 - 1


class BadJson(ValueError):
    """It is not the JSON that was expected; the text is the reason, for one sentence."""


def parsed(text: str | bytes, longest_bytes: int) -> t.Any:
    """Return the value.

    :raises BadJson: if it is too long, nests too deeply, or is no JSON.
    """
    if len(text) > longest_bytes:
        raise BadJson(f"it is longer than {longest_bytes >> 20} MiB")
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadJson("it nests too deeply") from None
    except ValueError as error:
        raise BadJson("it is no JSON") from error
    if _deeper(value):
        raise BadJson("it nests too deeply")
    return value


def object_of(text: str | bytes, longest_bytes: int) -> dict[str, t.Any]:
    """Return the value as :func:`parsed`, if it is a JSON object.

    :raises BadJson: if it is none.
    """
    value = parsed(text, longest_bytes)
    if not isinstance(value, dict):
        raise BadJson("it holds no JSON object")
    return value


def count_of(value: t.Any, largest: int = LARGEST) -> int:
    """Return a count or a size.

    :raises BadJson: if it is no whole number from 0 to ``largest``; ``true`` and ``1.0`` are none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise BadJson(f"{_words(value)} is no whole number from 0 to {largest}")
    return value


def _words(value: t.Any) -> str:
    if isinstance(value, (str, float, bool)) or value is None:
        return repr(value)[:40]
    if isinstance(value, int):
        return "a negative number" if value < 0 else "a huge number"
    return f"a {'list' if isinstance(value, list) else 'mapping'}"


def _deeper(value: t.Any) -> bool:
    level = [value]
    for _depth in range(DEEPEST):
        level = [one for each in level for one in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: t.Any) -> t.Iterable[t.Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in found if isinstance(one, (dict, list))]
