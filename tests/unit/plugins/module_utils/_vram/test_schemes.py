# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quantised weights in whole plans: bytes by generation, what can't be divided, and what has no kernel."""

from __future__ import annotations

import typing as t

import pytest
from plan_world import CONFIGS

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}


def plan(config: t.Mapping[str, t.Any], card: str, tp: int, goal: t.Any = None, **args: t.Any) -> dict[str, t.Any]:
    count = args.pop("count", tp)
    given = {"tp_size": tp} if tp else {}
    return planned(Request(config, "config.json", (), (idle_card(card),) * count, "0.5.23", {**given, **args}), goal)


def test_fp8_on_ampere_has_a_scale_in_16_bit_for_each_output_and_group() -> None:
    """128 times as many scales, of half the size: 0.354 GiB of the 27B on one GPU."""
    ada = plan(CONFIGS["qwen3.6-27b-fp8"], "l40s", 1)["weights_gib"]
    for card in ("a6000", "a40", "a100-40"):
        assert plan(CONFIGS["qwen3.6-27b-fp8"], card, 1)["weights_gib"] - ada == pytest.approx(0.354, abs=0.02), card
    assert plan(CONFIGS["qwen3.6-27b"], "a6000", 2)["weights_gib"] == plan(CONFIGS["qwen3.6-27b"], "rtx6000ada", 2)["weights_gib"]


@pytest.mark.parametrize(
    ("name", "tp", "starts"),
    [
        ("qwen3-30b-a3b", 1, True),
        ("qwen3-30b-a3b", 2, True),
        ("qwen3-30b-a3b", 4, False),  # 768 / 4 = 192
        ("qwen3-30b-a3b", 8, False),
        ("qwen3-235b-a22b", 4, True),  # 1536 / 4 = 384
        ("qwen3-235b-a22b", 8, False),
        ("qwen3.6-35b-a3b", 4, True),
        ("qwen3.6-35b-a3b", 8, False),  # 512 / 8 = 64
    ],
)
def test_experts_whose_width_is_no_multiple_of_the_block_are_refused(name: str, tp: int, starts: bool) -> None:
    found = plan({**CONFIGS[name], "quantization_config": BLOCKS}, "h200", tp)
    assert (found["verdict"] != "FAIL") == starts, found["cause"]
    if not starts:
        assert found["cause"]["stage"] == "options" and "no multiple of the quantisation's block" in found["cause"]["message"]
        assert any(item["option"] == "tp_size" and item["to"] < tp for item in found["advice"])


def test_a_search_does_not_choose_what_the_engine_refuses_to_load() -> None:
    fp8 = {**CONFIGS["qwen3.6-35b-a3b"], "quantization_config": BLOCKS}
    found = plan(fp8, "h100", 0, {"context_tokens": 32768, "concurrent_requests": 4}, count=8)
    assert found["verdict"] == "OK" and found["resolved_args"]["tp_size"] == 4


@pytest.mark.parametrize("card", ["a6000", "a40", "rtx3090", "a100-80"])
def test_experts_in_fp8_have_no_kernel_before_ada(card: str) -> None:
    config = {**CONFIGS["qwen3-30b-a3b"], "quantization_config": BLOCKS}
    with pytest.raises(KproError, match=r"no kernel for experts in FP8 below compute capability 8\.9"):
        plan(config, card, 2)
    assert plan(config, "rtx4090", 2)["verdict"] != "FAIL"


@pytest.mark.parametrize(
    ("quantization", "bytes_each"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.5 + (2 + 0.5) / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}, 0.5 + 2 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": None}, 0.5 + 1 / 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}}},
                "ignore": ["lm_head"],
            },
            0.5 + 2 / 128,
        ),
    ],
)
def test_bytes_of_a_parameter_follow_from_the_config(quantization: dict[str, t.Any], bytes_each: float) -> None:
    config = CONFIGS["qwen3-32b"]
    vocabulary = 2 * 151936 * 5120
    rest = 32_762_123_264 - vocabulary
    found = plan({**config, "quantization_config": quantization}, "h100", 1)
    # The allocator rounds each tensor up to 2 MiB.
    assert 0 <= found["weights_gib"] - (vocabulary * 2 + rest * bytes_each) / 2**30 < 0.35


def test_a_checkpoint_that_brings_scales_for_its_cache_gets_an_fp8_cache() -> None:
    for algorithm, each in (("FP8", 1), (None, 2)):
        config = {**CONFIGS["qwen3-32b"], "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": algorithm}}
        found = plan(config, "h100", 1, mem_fraction_static=0.8)
        assert found["kv_bytes_per_token"] == 64 * 8 * 2 * 128 * each
