# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of the memory plan share: recorded configs and logs, and the founding case."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import Inputs, Outcome, evaluate
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, inputs_of

FIXTURES = Path(__file__).parent / "fixtures" / "plan"
CONFIGS: dict[str, t.Any] = json.loads((FIXTURES / "model_configs.json").read_text(encoding="utf-8"))
LOGS: list[dict[str, t.Any]] = json.loads((FIXTURES / "startup_logs.json").read_text(encoding="utf-8"))["cases"]

# The bring-up that failed: two cards of 48 GB, 46.9 GiB free on each before loading.
SEED: dict[str, t.Any] = {
    "tp_size": 2,
    "mem_fraction_static": 0.85,
    "context_length": 65536,
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
SEED_FREE_GIB = 46.9


def inputs(version: str = "0.5.9", config: str = "qwen3.6-27b", gpu: str = "a6000", count: int = 2, **args: t.Any) -> Inputs:
    """Return checked inputs on idle cards; ``free_before_gib``, ``weights_gib`` and ``environment`` are no engine options."""
    extra = {name: args.pop(name) for name in ("free_before_gib", "weights_gib", "environment") if name in args}
    cards = tuple(idle_card(gpu) for _number in range(count))
    return inputs_of(Request(CONFIGS[config], config, (), cards, version, args, **extra))[0]


def outcome(version: str = "0.5.9", config: str = "qwen3.6-27b", **args: t.Any) -> Outcome:
    """Return what a start on idle cards does."""
    return evaluate(inputs(version, config, **args))


def seed(version: str = "0.5.9", **changes: t.Any) -> Outcome:
    """Return what the founding start does, with changes."""
    return outcome(version, **{**SEED, "free_before_gib": SEED_FREE_GIB, **changes})
