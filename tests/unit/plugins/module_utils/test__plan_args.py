# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting with the resolved options gives the same plan: nothing that decides is left implicit."""

from __future__ import annotations

import dataclasses
import random
import typing as t

import pytest
from plan_world import SEED, inputs, outcome, seed

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._plan_args import resolved_args
from ansible_collections.kpro.llm.plugins.module_utils._plan_core import evaluate
from ansible_collections.kpro.llm.plugins.module_utils._plan_options import options_of

DECIDING = {"mem_fraction_static", "max_running_requests", "mamba_ssm_dtype", "context_length", "chunked_prefill_size", "kv_cache_dtype", "tp_size"}


def random_args(dice: random.Random, version: str) -> dict[str, t.Any]:
    args: dict[str, t.Any] = {"tp_size": 2}
    if dice.random() < 0.6:
        args["mem_fraction_static"] = dice.choice((0.7, 0.8, 0.85, 0.9))
    if dice.random() < 0.5:
        args["max_running_requests"] = dice.choice((1, 4, 8, 16))
    if dice.random() < 0.5:
        args.update({name: value for name, value in SEED.items() if name.startswith("speculative")})
    if dice.random() < 0.3:
        args["disable_radix_cache"] = True
    if dice.random() < 0.3 and version != "0.5.9":
        args["mamba_scheduler_strategy"] = "extra_buffer"
        args.pop("disable_radix_cache", None)
    if dice.random() < 0.3:
        args["mamba_ssm_dtype"] = "bfloat16"
    if dice.random() < 0.3:
        args["max_mamba_cache_size"] = dice.choice((10, 40, 60))
    return args


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.13", "0.5.17", "0.5.23"])
def test_the_resolved_options_give_the_same_plan(version: str) -> None:
    dice = random.Random(version)
    booted = 0
    for _number in range(300):
        start = inputs(version, **random_args(dice, version))
        found = evaluate(start)
        if not found.boots:
            continue
        booted += 1
        again = evaluate(dataclasses.replace(start, options=options_of(resolved_args(found), version, start.rules)))
        assert (again.sizing.slots, again.sizing.tokens, again.sizing.requests) == (found.sizing.slots, found.sizing.tokens, found.sizing.requests)
        assert again.resolved.strategy == found.resolved.strategy and again.resolved.slots_per_request == found.resolved.slots_per_request
    assert booted > 100


def test_all_that_decides_is_there() -> None:
    for version in ("0.5.9", "0.5.23"):
        assert set(resolved_args(seed(version, max_running_requests=4))) >= DECIDING
    assert resolved_args(seed())["max_running_requests"] == 48


def test_names_are_those_of_the_version() -> None:
    assert resolved_args(seed("0.5.9"))["mamba_scheduler_strategy"] == "no_buffer" and "cuda_graph_max_bs" in resolved_args(seed("0.5.9"))
    new = resolved_args(seed("0.5.23"))
    assert new["mamba_radix_cache_strategy"] == "extra_buffer" and new["cuda_graph_max_bs_decode"] == 32


def test_other_options_are_passed_on() -> None:
    args = resolved_args(outcome("0.5.23", tp_size=2, mem_fraction_static=0.85, reasoning_parser="qwen3", language_model_only=True))
    assert args["reasoning_parser"] == "qwen3" and args["language_model_only"] is True


def test_a_dense_model_has_no_options_of_state() -> None:
    args = resolved_args(outcome("0.5.23", "qwen3-14b", tp_size=1, mem_fraction_static=0.85))
    assert not [name for name in args if "mamba" in name]


def test_resolved_options_are_all_known_to_the_version() -> None:
    for version in ("0.5.9", "0.5.10.post1", "0.5.23"):
        found = outcome(version, tp_size=2, mem_fraction_static=0.85)
        try:
            options_of(resolved_args(found), version, found.inputs.rules)
        except KproError as error:
            pytest.fail(f"{version}: {error}")
