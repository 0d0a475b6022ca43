# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy

import pytest
from plan_world import CONFIGS

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.model import model_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.weights import MIB, Layout, Tensor, draft_tensors, resident_bytes, target_tensors

GIB = 1 << 30


def weights(config: str, tp: int, attention_tp: int | None = None, vision: bool = True) -> float:
    return resident_bytes(target_tensors(model_of(CONFIGS[config]), Layout(tp, attention_tp or tp, vision))) / GIB


# GiB that engines printed at "Load weight end" (mem usage).
@pytest.mark.parametrize(
    ("config", "tp", "logged", "percent"),
    [
        ("qwen3.6-27b", 1, 51.05, 0.1),
        ("qwen3.5-9b", 2, 8.85, 0.25),
        ("llama-3.1-8b", 1, 15.02, 0.1),
        ("qwen3-14b", 1, 27.57, 0.2),
        ("qwen3-14b", 4, 7.08, 0.1),
        ("qwen3-32b", 4, 15.50, 0.1),
    ],
)
def test_computed_weights_are_the_logged_ones(config: str, tp: int, logged: float, percent: float) -> None:
    assert weights(config, tp) == pytest.approx(logged, rel=percent / 100)


def test_attention_that_is_not_divided_costs_its_copies() -> None:
    assert weights("qwen3-32b", 4, attention_tp=2) == pytest.approx(18.25, rel=0.001)


def test_the_head_as_it_is_loaded_and_as_it_stays() -> None:
    for tp, loaded, stays in ((1, 5.53, 0.79), (2, 2.82, 0.445)):
        stay, drop = draft_tensors(model_of(CONFIGS["qwen3.6-27b"]), Layout(tp, tp))
        assert (resident_bytes(stay) + resident_bytes(drop)) / GIB == pytest.approx(loaded, abs=0.005)
        assert resident_bytes(stay) / GIB == pytest.approx(stays, abs=0.005)


def test_block_fp8_halves_what_it_quantises_and_nothing_else() -> None:
    plain, fp8 = weights("qwen3.6-27b", 2), weights("qwen3.6-27b-fp8", 2)
    assert fp8 == pytest.approx(14.55, abs=0.01)
    config = copy.deepcopy(CONFIGS["qwen3.6-27b-fp8"])
    config["quantization_config"]["weight_block_size"] = [64, 64]
    finer = resident_bytes(target_tensors(model_of(config), Layout(2, 2))) / GIB
    assert fp8 < finer < fp8 * 1.01 < plain


def test_a_text_only_start_loads_no_vision_tower() -> None:
    assert weights("qwen3.6-27b", 1) - weights("qwen3.6-27b", 1, vision=False) == pytest.approx(0.86, abs=0.01)


def test_tied_embeddings_are_there_once() -> None:
    untied = copy.deepcopy(CONFIGS["qwen3-0.6b"])
    untied["tie_word_embeddings"] = False
    more = resident_bytes(target_tensors(model_of(untied), Layout(1, 1))) / GIB - weights("qwen3-0.6b", 1)
    assert more == pytest.approx(151936 * 1024 * 2 / GIB, abs=0.002)


def test_experts_are_divided_like_the_rest() -> None:
    assert weights("qwen3-30b-a3b", 1) == pytest.approx(30.53e9 * 2 / GIB, rel=0.005)
    assert weights("qwen3-30b-a3b", 4) < weights("qwen3-30b-a3b", 1) / 3.8
    assert weights("qwen3.6-35b-a3b", 1) == pytest.approx(35e9 * 2 / GIB, rel=0.03)


def test_the_allocator_rounds_large_pieces_up() -> None:
    assert Tensor("", 10 * MIB + 1, 3).resident == 3 * 12 * MIB
    assert Tensor("", 10 * MIB - 1).resident == 10 * MIB
    assert Tensor("", 1).resident == 512


@pytest.mark.parametrize("config", ["qwen3.8-27b-nvfp4", "kimi-k2.5-mla", "devstral-small-2-24b"])
def test_weights_that_the_config_does_not_tell_are_not_guessed(config: str) -> None:
    with pytest.raises(KproError, match="safetensors headers"):
        weights(config, 1)


def test_a_model_without_a_head_has_no_draft() -> None:
    with pytest.raises(KproError, match="mtp_num_hidden_layers"):
        draft_tensors(model_of(CONFIGS["qwen3-14b"]), Layout(1, 1))
