# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of an input in messages."""

from __future__ import annotations

import math
import typing as t

_LONGEST = 80


def shown(value: t.Any) -> str:
    """Return a value for a message, in one line, however long it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = "a number of thousands of digits"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def number_of(value: t.Any) -> float:
    """Return a finite number, or NaN for all else."""
    if isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
