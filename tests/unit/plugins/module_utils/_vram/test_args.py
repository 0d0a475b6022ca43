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

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.args import resolved_args
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import evaluate
from ansible_collections.kpro.llm.plugins.module_utils._vram.options import Options, known_names, options_of

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


# A value of each option other than its default, with which an A6000 pair still starts.
GIVEN: dict[str, t.Any] = {
    "tp_size": 4, "dp_size": 2, "attn_dp_size": 2, "attn_cp_size": 2, "enable_dp_attention": True, "mem_fraction_static": 0.84, "context_length": 65536,
    "max_running_requests": 3, "max_total_tokens": 100_000, "chunked_prefill_size": 2048, "max_prefill_tokens": 8192, "page_size": 64,
    "kv_cache_dtype": "fp8_e4m3", "mamba_ssm_dtype": "bfloat16", "max_mamba_cache_size": 30, "mamba_full_memory_ratio": 1.5,
    "mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 128, "disable_radix_cache": True, "disable_overlap_schedule": True,
    "speculative_algorithm": "EAGLE", "speculative_num_steps": 2, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 3,
    "cuda_graph_max_bs_decode": 4, "disable_cuda_graph": True, "disable_decode_cuda_graph": True, "disable_prefill_cuda_graph": True,
    "disable_piecewise_cuda_graph": True, "enable_piecewise_cuda_graph": True, "enable_torch_compile": True, "enable_hierarchical_cache": True,
    "enable_deterministic_inference": True, "language_only": True, "language_model_only": True, "linear_attn_backend": "flashinfer",
    "attention_backend": "triton", "mm_feature_transport": "cuda_ipc", "quantization": "fp8", "swa_full_tokens_ratio": 0.5,
}  # fmt: skip


def test_no_option_that_is_given_gets_lost() -> None:
    names = {field.name for field in dataclasses.fields(Options)} - {"rest"}
    assert set(GIVEN) == names
    needs = {
        "dp_size": {"enable_dp_attention": True},
        "enable_dp_attention": {"dp_size": 2},
        "enable_deterministic_inference": {"disable_radix_cache": True},
        "speculative_num_steps": {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 3},
        "speculative_eagle_topk": {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4},
        "speculative_num_draft_tokens": {"speculative_algorithm": "EAGLE", "speculative_num_steps": 2},
    }
    for name in names:
        version = next(version for version in ("0.5.23", "0.5.10.post1", "0.5.9") if name in known_names(version))
        config = "qwen3.6-27b-fp8" if name == "quantization" else "qwen3.6-27b"
        given = {"tp_size": 2, "mem_fraction_static": 0.85, **needs.get(name, {}), name: GIVEN[name]}
        found = outcome(version, config, count=4, **given)
        assert found.boots, name
        assert resolved_args(found)[name] == GIVEN[name], name


def test_slots_that_are_given_stay_given_where_the_start_fails() -> None:
    found = outcome("0.5.23", tp_size=2, mem_fraction_static=0.85, max_mamba_cache_size=400)
    assert not found.boots and resolved_args(found)["max_mamba_cache_size"] == 400
