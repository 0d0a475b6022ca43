# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which level of the x86-64 architecture a processor has. Pure."""

from __future__ import annotations

import re

# The levels of the x86-64 psABI, in the words of /proc/cpuinfo (pni is SSE3, abm has LZCNT).
_ADDED = {
    2: frozenset(("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")),
    3: frozenset(("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")),
    4: frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}


def cpu_level(cpuinfo: str) -> int | None:
    """Return the level, 1 to 4, from the text of /proc/cpuinfo; None if it is no x86-64 processor or the text says no flags."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = frozenset(found[1].split()) if found else frozenset()
    if "lm" not in flags:
        return None
    level = 1
    for higher, added in _ADDED.items():
        if not added <= flags:
            break
        level = higher
    return level
