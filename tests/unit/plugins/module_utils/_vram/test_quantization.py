# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram import quantization
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card
from ansible_collections.kpro.llm.plugins.module_utils._vram.kept_in_16_bit import PARTLY, PLAIN, QUANTIZED, kept_in_16_bit
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned


def config(method: str, **more: t.Any) -> dict[str, t.Any]:
    return {"quantization_config": {"quant_method": method, **more}}


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, ""),
        (config("fp8"), "fp8"),
        (config("modelopt", quant_algo="NVFP4"), "modelopt_fp4"),
        (config("modelopt", quant_algo="FP8"), "modelopt_fp8"),
        (config("modelopt", quant_algo="MIXED_PRECISION"), "modelopt_mixed"),
        ({"text_config": config("awq")}, "awq"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
    ],
)
def test_the_engine_s_name_of_the_quantisation(given: dict[str, t.Any], method: str) -> None:
    assert quantization.method_of(given) == method


@pytest.mark.parametrize(
    ("method", "card", "version", "words"),
    [
        # A lane's engine refuses what the newer one loads through 16 bit kernels.
        ("modelopt_fp4", "a6000", "0.5.10.post1", "'modelopt_fp4' from compute capability 10.0 on, and RTX A6000 has 8.6"),
        ("modelopt_fp4", "a6000", "0.5.23", ""),
        ("modelopt_fp8", "a6000", "0.5.23", "'modelopt_fp8' from compute capability 8.9 on, and RTX A6000 has 8.6"),
        ("modelopt_fp8", "rtx4090", "0.5.23", ""),
        ("w4afp8", "l40s", "0.5.23", "from compute capability 9.0 on"),
        ("fp8", "a6000", "0.5.23", ""),
        ("bitsandbytes", "a6000", "0.5.23", ""),
    ],
)
def test_a_card_of_too_old_a_generation_is_refused_before_the_download(method: str, card: str, version: str, words: str) -> None:
    cards = [idle_card(card)] * 2
    if not words:
        assert quantization.check_quantization(config(method), "config.json", cards, version) == []
        return
    with pytest.raises(KproError, match=words) as caught:
        quantization.check_quantization(config(method), "config.json", cards, version)
    assert "BF16" in caught.value.remedy


def test_what_is_not_known_is_said_and_refuses_nothing() -> None:
    cards = [idle_card("a6000")]
    assert "'novel'" in quantization.check_quantization(config("novel"), "config.json", cards, "0.5.23")[0]
    nameless = [type(cards[0])(49140, 48000)]
    assert "generation of the cards is not known" in quantization.check_quantization(config("modelopt_fp8"), "config.json", nameless, "0.5.23")[0]


def test_a_plan_refuses_it_too() -> None:
    shape = {**config_of("Qwen/Qwen3.6-27B"), **config("modelopt", quant_algo="FP8")}
    request = Request(shape, "config.json", [], (idle_card("a6000"),) * 2, "0.5.23", {"tp_size": 2})
    with pytest.raises(KproError, match=r"compute capability 8\.9"):
        planned(request)


USUAL = ["lm_head", "model.language_model.embed_tokens", "model.visual.*", "model.language_model.layers.0.linear_attn.in_proj_a", "mtp.fc"]
USUAL += ["model.language_model.layers.0.linear_attn.conv1d", "model.language_model.layers.0.input_layernorm", "mtp.pre_fc_norm_embedding"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], QUANTIZED),
        (["model.language_model.layers.0.mlp.down_proj"], QUANTIZED),
        (["mtp"], PLAIN),
        (["mtp.*"], PLAIN),
        (["model.mtp.layers.0"], PLAIN),
        (["mtp.layers.0.self_attn", "mtp.layers.0.mlp"], PLAIN),
        (["mtp.layers.0.mlp.down_proj"], PARTLY),
        (["mtp.layers.0.self_attn"], PARTLY),
    ],
)
def test_what_a_checkpoint_keeps_of_its_head_in_16_bit(more: list[str], expected: str) -> None:
    assert kept_in_16_bit([*USUAL, *more]) == expected


def test_a_head_in_16_bit_is_planned_as_one_and_a_mixed_one_is_not_guessed() -> None:
    def loaded(*names: str) -> float:
        shape = {**config_of("Qwen/Qwen3.6-27B-FP8")}
        shape["quantization_config"] = {**shape["quantization_config"], "modules_to_not_convert": [*USUAL, *names]}
        args = {"tp_size": 2, "mem_fraction_static": 0.85, "speculative_algorithm": "NEXTN"}
        return float(planned(Request(shape, "config.json", [], (idle_card("h100"),) * 2, "0.5.23", args))["draft"]["loaded_gib"])

    assert loaded("mtp") == pytest.approx(2.82, abs=0.01) and loaded() < loaded("mtp") - 0.15
    with pytest.raises(KproError, match="keeps a part of its head"):
        loaded("mtp.layers.0.mlp.down_proj")
