# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Over how many GPUs the engine divides a model."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError

AUTO = "auto"
MOST_HEADS = 1 << 20
# Each GPU gets the same number of these.
DIVIDED = (
    ("num_attention_heads", "attention heads"),
    ("linear_num_value_heads", "value heads of the linear attention"),
)


def wanted_count(gpus: t.Any, there: int) -> int:
    """Return how many GPUs the container gets; a number given on the command line is a text.

    :param gpus: the inventory's choice: ``all``, a number, or a list.
    :param there: how many the node has.
    """
    if gpus == "all":
        return there
    if str(gpus).isdecimal():
        return int(gpus)
    return len(gpus) if isinstance(gpus, (list, tuple)) else 0


def tp_size(wanted: t.Any, gpus: int, config: t.Mapping[str, t.Any], *, on_cpu: bool = False) -> int:
    """Return over how many GPUs the model is divided.

    :param wanted: a number, which counts as it is, or ``auto``: as many of the GPUs as divide the model, by powers of two (what NCCL and the engine's
        own kernels are made for).
    :param gpus: how many the container has.
    :param config: the model's config.json; empty if it is not known.
    :param on_cpu: the engine uses no GPU.
    :raises KproError: if it is neither.
    """
    if wanted == AUTO:
        return 1 if on_cpu else max((number for number in (1, 2, 4, 8, 16) if number <= gpus and _divides(number, config)), default=1)
    if not str(wanted).isdecimal() or int(wanted) < 1:
        raise KproError(f"sglang_server__tp_size '{wanted}'", "it is no number of GPUs", f"Choose {AUTO} or a number from 1 on")
    return int(wanted)


def heads(config: t.Mapping[str, t.Any], key: str) -> int:
    """Return a count of a model's config, 0 if it has none there, or no number."""
    text = config.get("text_config")
    found = (text if isinstance(text, dict) and text else config).get(key)
    return int(found) if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= MOST_HEADS else 0


def _divides(number: int, config: t.Mapping[str, t.Any]) -> bool:
    if any(heads(config, key) % number for key, _words in DIVIDED):
        return False
    shared = heads(config, "num_key_value_heads")
    # Fewer key-value heads than GPUs are repeated, which has to come out even.
    return not shared or (shared % number == 0 if shared >= number else number % shared == 0)
