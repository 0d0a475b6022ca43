# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares measured numbers with expected ones."""

from __future__ import annotations

import re
import typing as t

# Below this share of the expected value a number is worth a warning; single answers vary, sizes do not.
_TOLERANCE = {"context_length": 1.0, "tokens_per_s": 0.5, "decode_tokens_per_s": 0.5, "kv_tokens": 0.9, "max_running_requests": 1.0}
_WORDS = {
    "context_length": "context length (tokens)",
    "tokens_per_s": "tokens per second",
    "decode_tokens_per_s": "tokens per second while an answer is written",
    "kv_tokens": "size of the KV pool (tokens)",
    "max_running_requests": "number of requests at once",
}
# The engine's own gauges that say how large its pools came out.
_POOL_METRICS = {"max_total_num_tokens": "kv_tokens", "max_running_requests": "max_running_requests"}
_METRIC = re.compile(r"^sglang:(?P<name>\w+)(?:\{[^}]*\})? (?P<value>[-+.\deE]+)$", re.MULTILINE)


def pools_of(metrics: str) -> dict[str, float]:
    """Return the sizes of the engine's pools from the text of ``/metrics``; of several ranks the smallest counts."""
    found: dict[str, float] = {}
    for match in _METRIC.finditer(metrics):
        name = _POOL_METRICS.get(match["name"])
        if name:
            found[name] = min(float(match["value"]), found.get(name, float("inf")))
    return found


def shortfalls(measured: t.Mapping[str, float], expected: t.Mapping[str, t.Any], whose: str = "") -> list[str]:
    """Return a sentence for each known value that is smaller than expected by more than its tolerance.

    :param whose: where the expectation comes from ("the memory plan"); empty: not said.
    """
    found = []
    for name, share in _TOLERANCE.items():
        have, want = measured.get(name), expected.get(name)
        if have is None or not want or float(have) >= float(want) * share:
            continue
        less = round(100 * (1 - float(have) / float(want)))
        than = f"the {float(want):g} of {whose}" if whose else f"the expected {float(want):g}"
        found.append(f"{_WORDS[name]} is {have:g}, {less} % below {than}")
    return found


def device_fault(server_info: t.Any, expected: str) -> list[str]:
    """Return a warning if the engine says that it runs on another device than expected (it falls back to the CPU without a word).

    :param server_info: data of ``/server_info``; anything else says nothing.
    """
    device = str(server_info.get("device") or "") if isinstance(server_info, dict) else ""
    if not expected or not device or device == expected:
        return []
    return [f"the engine runs on {device}, not on {expected}: it is slow for as long as it lives. Look at the GPUs, then restart the service"]
