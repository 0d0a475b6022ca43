# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forty goals against brute force: what is answered starts as it says, and where it is not satisfied no point of a grid gives all that was asked."""

from __future__ import annotations

import dataclasses
import itertools
import typing as t

import pytest
from plan_world import CONFIGS

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import Inputs, evaluate
from ansible_collections.kpro.llm.plugins.module_utils._vram.goal import Goal, goal_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.options import options_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, inputs_of, planned

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}


def _goal(context: int, requests: int, each: int = 0, speculation: str = "off", **more: t.Any) -> dict[str, t.Any]:
    return {"context_tokens": context, "concurrent_requests": requests, "speculation": speculation, **({"tokens_per_request": each} if each else {}), **more}


GOALS: list[tuple[str, str, int, str, dict[str, t.Any]]] = [
    ("qwen3.6-27b", "a6000", 2, "0.5.23", _goal(65536, 8, 0, "preferred")),
    ("qwen3.6-27b", "a6000", 2, "0.5.23", _goal(65536, 8, 16384, "required")),
    ("qwen3.6-27b", "a6000", 2, "0.5.23", _goal(262144, 4)),
    ("qwen3.6-27b", "a6000", 2, "0.5.23", _goal(131072, 16, 8192)),
    ("qwen3.6-27b", "a6000", 2, "0.5.23", _goal(262144, 64, 65536)),
    ("qwen3.6-27b", "a6000", 2, "0.5.9", _goal(65536, 8, 0, "required")),
    ("qwen3.6-27b", "a6000", 2, "0.5.10.post1", _goal(65536, 8, 4096, "preferred")),
    ("qwen3.6-27b", "a6000", 1, "0.5.23", _goal(32768, 1)),
    ("qwen3.6-27b", "rtx4090", 2, "0.5.23", _goal(32768, 2)),
    ("qwen3.6-27b", "rtx5090", 2, "0.5.23", _goal(32768, 2, 0, "preferred")),
    ("qwen3.6-27b", "rtxpro6000", 1, "0.5.23", _goal(131072, 4, 0, "preferred")),
    ("qwen3.6-27b", "rtxpro6000", 1, "0.5.23", _goal(262144, 8)),
    ("qwen3.6-27b", "h100", 1, "0.5.23", _goal(65536, 4)),
    ("qwen3.6-27b", "h100", 2, "0.5.23", _goal(262144, 16, 32768, "required")),
    ("qwen3.6-27b-fp8", "l40s", 1, "0.5.23", _goal(65536, 4)),
    ("qwen3.6-27b-fp8", "a6000", 1, "0.5.23", _goal(65536, 2)),
    ("qwen3.6-27b-fp8", "rtx4090", 2, "0.5.23", _goal(65536, 4)),
    ("qwen3.6-27b-fp8", "rtx5090", 1, "0.5.23", _goal(16384, 1)),
    ("qwen3-14b", "rtx3090", 1, "0.5.23", _goal(8192, 1)),
    ("qwen3-14b", "rtx3090", 2, "0.5.23", _goal(40960, 8)),
    ("qwen3-14b", "a6000", 1, "0.5.23", _goal(40960, 4, 10000)),
    ("qwen3-14b", "l4", 1, "0.5.23", _goal(8192, 1)),
    ("qwen3-14b", "l4", 2, "0.5.23", _goal(32768, 16, 2000)),
    ("qwen3-14b", "a100-40", 1, "0.5.9", _goal(40960, 2)),
    ("qwen3-32b", "a6000", 2, "0.5.23", _goal(40960, 4)),
    ("qwen3-32b", "a6000", 4, "0.5.23", _goal(40960, 16)),
    ("qwen3-32b", "rtx4090", 4, "0.5.23", _goal(40960, 4)),
    ("qwen3-32b", "h100", 1, "0.5.23", _goal(40960, 1)),
    ("qwen3-30b-a3b", "rtx5090", 2, "0.5.23", _goal(40960, 4)),
    ("qwen3-30b-a3b", "rtx3090", 4, "0.5.23", _goal(32768, 2)),
    ("qwen3-0.6b", "rtx4060ti-16", 1, "0.5.23", _goal(40960, 2)),
    ("qwen3-0.6b", "rtx4080", 1, "0.5.23", _goal(40960, 64, 1024)),
    ("llama-3.1-8b", "rtx4090", 1, "0.5.23", _goal(32768, 1)),
    ("llama-3.1-8b", "rtx4090", 2, "0.5.23", _goal(131072, 2)),
    ("llama-3.1-8b", "a10", 1, "0.5.23", _goal(131072, 1)),
    ("qwen3.5-9b", "rtx4090", 1, "0.5.23", _goal(32768, 2)),
    ("qwen3.5-9b", "rtx3090", 2, "0.5.23", _goal(262144, 4, 16384, "preferred")),
    ("qwen3.6-35b-a3b", "a6000", 2, "0.5.23", _goal(131072, 8)),
    ("qwen3.6-35b-a3b", "rtxpro6000", 1, "0.5.23", _goal(262144, 8, 0, "preferred")),
    ("qwen3-next-80b-a3b", "h100", 4, "0.5.23", _goal(262144, 8)),
]


def start_of(name: str, card: str, count: int, version: str) -> Inputs:
    return inputs_of(Request(CONFIGS[name], name, (), (idle_card(card),) * count, version, {}))[0]


def gives_all(goal: Goal, inputs: Inputs, **values: t.Any) -> bool:
    try:
        found = evaluate(dataclasses.replace(inputs, options=dataclasses.replace(inputs.options, **values)))
    except KproError:
        return False
    enough = found.sizing.tokens >= goal.tokens(goal.context_tokens, goal.concurrent_requests)
    return found.verdict == "OK" and enough and found.sizing.requests >= goal.concurrent_requests


def grid(goal: Goal, inputs: Inputs) -> t.Iterator[dict[str, t.Any]]:
    """Coarse, but over all that a search may choose: division, fraction, slots, state and cache types."""
    fp8 = min(card.sm or 0 for card in inputs.cards) >= 89 or inputs.cards[0].name.startswith(("GeForce RTX 4", "GeForce RTX 5", "L4", "H100", "RTX PRO"))
    states = ("float32", "bfloat16") if inputs.model.linear else (None,)
    slots = [goal.concurrent_requests * number for number in (3, 4, 5)] if inputs.model.linear else [None]
    draft = goal.speculation == "required"
    for tp, fraction, state, number, kv in itertools.product((1, 2, 4), range(50, 99, 2), states, slots, ("auto", "fp8_e4m3") if fp8 else ("auto",)):
        if tp > len(inputs.cards):
            continue
        values: dict[str, t.Any] = {
            "tp_size": tp, "mem_fraction_static": fraction / 100, "mamba_ssm_dtype": state, "max_mamba_cache_size": number, "kv_cache_dtype": kv,
            "context_length": goal.context_tokens, "max_running_requests": goal.concurrent_requests,
        }  # fmt: skip
        if draft:
            steps = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 2}
            values.update(steps, mamba_radix_cache_strategy="extra_buffer")
        yield values


def test_there_are_forty() -> None:
    assert len(GOALS) == 40


@pytest.mark.parametrize(("name", "card", "count", "version", "asked"), GOALS, ids=lambda value: str(value) if not isinstance(value, dict) else "")
def test_the_answer_is_true_and_nothing_on_a_grid_is_better(name: str, card: str, count: int, version: str, asked: dict[str, t.Any]) -> None:
    inputs = start_of(name, card, count, version)
    goal = goal_of(asked, inputs)
    found = planned(Request(CONFIGS[name], name, (), (idle_card(card),) * count, version, {}), asked)
    if found["verdict"] == "FAIL":
        assert not found["goal"]["satisfied"] and found["max_total_num_tokens"] == 0 and found["goal"]["nearest"]
    else:
        options = options_of(found["resolved_args"], version, inputs.rules)
        again = evaluate(dataclasses.replace(inputs, options=options, environment=tuple(sorted(found["resolved_environment"].items()))))
        said = (found["verdict"], found["max_total_num_tokens"], found["max_running_requests"])
        assert (again.verdict, again.sizing.tokens, again.sizing.requests) == said
    requests, context = found["max_running_requests"], found["resolved_args"]["context_length"]
    given = found["verdict"] == "OK" and context >= goal.context_tokens and requests >= goal.concurrent_requests
    given = given and found["max_total_num_tokens"] >= goal.tokens(goal.context_tokens, goal.concurrent_requests)
    given = given and (goal.speculation == "off" or "speculative_algorithm" in found["resolved_args"]) and not found["resolved_args"]["disable_radix_cache"]
    assert found["goal"]["satisfied"] == given
    if not given and goal.speculation != "preferred":
        better = next((values for values in grid(goal, inputs) if gives_all(goal, inputs, **values)), None)
        assert better is None, better
