# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was measured against what was expected. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import typing as t

# Below this share of the expected value a number is worth a warning; single answers vary, sizes do not.
_TOLERANCE = {"context_length": 1.0, "tokens_per_s": 0.5, "kv_tokens": 0.9}
_WORDS = {"context_length": "context length (tokens)", "tokens_per_s": "tokens per second", "kv_tokens": "size of the KV pool (tokens)"}


def shortfalls(measured: t.Mapping[str, float], expected: t.Mapping[str, t.Any]) -> list[str]:
    """Return a sentence for each known value that is smaller than expected by more than its tolerance."""
    found = []
    for name, share in _TOLERANCE.items():
        have, want = measured.get(name), expected.get(name)
        if have is None or not want or float(have) >= float(want) * share:
            continue
        less = round(100 * (1 - float(have) / float(want)))
        found.append(f"{_WORDS[name]} is {have:g}, {less} % below the expected {float(want):g}")
    return found
