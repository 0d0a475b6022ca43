# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inputs that can't be: one sentence each, at once, and a result is always valid JSON."""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
import typing as t

import pytest
from plan_world import CONFIGS

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import Card, card_of, idle_card
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned
from ansible_collections.kpro.llm.plugins.module_utils._vram.table import table
from ansible_collections.kpro.llm.plugins.module_utils._vram.target_edge import cards_of

NAN, INFINITY, HUGE, LONG, DIGITS = math.nan, math.inf, 1e308, 10**400, 10**5000
NO_NUMBERS: tuple[t.Any, ...] = (NAN, INFINITY, -INFINITY, HUGE, LONG, DIGITS, -1, 0, True, "", "many", [], {}, "8\n9", b"8", 1.5)
TWO = (idle_card("a6000"),) * 2


def plan_of(goal: t.Any = None, **changes: t.Any) -> dict[str, t.Any]:
    given = {"config": CONFIGS["qwen3.6-27b"], "where": "config.json", "entries": (), "cards": TWO, "version": "0.5.23", "args": {"tp_size": 2}, **changes}
    return planned(Request(**given), goal)


def config(name: str, value: t.Any, text: bool = True) -> dict[str, t.Any]:
    made = copy.deepcopy(CONFIGS["qwen3.6-27b"])
    (made["text_config"] if text else made)[name] = value
    return made


def cases() -> t.Iterator[tuple[str, dict[str, t.Any], t.Any]]:
    for value in NO_NUMBERS:
        for field in ("hidden_size", "num_hidden_layers", "vocab_size", "linear_num_value_heads"):
            yield f"config {field}", {"config": config(field, value)}, None
        for option in ("max_running_requests", "context_length", "mem_fraction_static", "mamba_full_memory_ratio"):
            if option != "mamba_full_memory_ratio" or value not in (1.5, b"8"):
                yield f"option {option}", {"args": {"tp_size": 2, option: value}}, None
        for key in ("context_tokens", "concurrent_requests", "tokens_per_request"):
            yield f"goal {key}", {}, {key: value}
        yield "card", {"cards": (Card(value, 40000), TWO[1])}, None
        yield "card's free", {"cards": (Card(49140, value), TWO[1])} if value != 0 or value is False else {"cards": (Card(49140, -5), TWO[1])}, None
    for value in (NAN, INFINITY, HUGE, -1.0, 0, LONG, "much", True):
        yield "weights", {"weights_gib": value}, None
        yield "free", {"free_before_gib": value}, None
        yield "stretched rope", {"config": config("rope_scaling", {"factor": value if value != 0 else -1})}, None
    yield "bytes as MiB", {"cards": (Card(49140 << 20, 48000 << 20),) * 2}, None
    yield "all in bytes but the free part", {"cards": (Card(51_527_024_640, 48_000),) * 2}, None
    yield "no card", {"cards": ()}, None
    yield "version", {"version": "9" * 5000 + ".1"}, None
    yield "version of other digits", {"version": "0.5.\u0662\u0663"}, None
    for odd in (None, [], "text", 7, {"architectures": []}, {"architectures": [None]}, {"architectures": [["x"]]}, {"architectures": ["x" * 9999]}):
        yield "config as a whole", {"config": odd}, None
    for name in ("T5ForConditionalGeneration", "BartForConditionalGeneration", "WhisperForConditionalGeneration", "BertModel", "BertForMaskedLM",
                 "XLMRobertaForSequenceClassification", "DeepseekV32ForCausalLM", "SeedOssForCausalLM", "NoSuchForCausalLM"):  # fmt: skip
        yield name, {"config": {**CONFIGS["qwen3-14b"], "architectures": [name]}}, None
    yield "encoder-decoder", {"config": {**CONFIGS["qwen3-14b"], "is_encoder_decoder": True}}, None
    yield "no head", {"config": CONFIGS["qwen3-14b"], "args": {"tp_size": 2, "speculative_algorithm": "NEXTN"}}, None
    yield "options no section", {"args": ["tp_size"]}, None
    yield "environment no section", {"environment": "A=1"}, None
    yield "variable", {"environment": {"SGLANG_VLM_CACHE_SIZE_MB": "9" * 5000}}, None
    for goal in ([], "fast", {"speed": 1}, {"speculation": "sometimes"}, {"prefix_cache": "perhaps"}, {"images": NAN}, {3: 4}):
        yield "goal as a whole", {}, goal
    for block in ([128], [128, NAN], [-1, 128], [HUGE, 1], "128x128", [DIGITS, 1]):
        section = {"quant_method": "fp8", "weight_block_size": block}
        yield "block", {"config": config("quantization_config", section, text=False)}, None
    for bits in (0, NAN, 5, "four", None, DIGITS):
        yield "bits", {"config": config("quantization_config", {"quant_method": "awq", "bits": bits, "group_size": 128}, text=False)}, None


CASES = list(cases())


def test_there_are_two_hundred_of_them() -> None:
    assert len(CASES) >= 200


@pytest.mark.parametrize(("what", "changes", "goal"), CASES, ids=[f"{number} {what}" for number, (what, _changes, _goal) in enumerate(CASES)])
def test_each_is_one_sentence_at_once(what: str, changes: dict[str, t.Any], goal: t.Any) -> None:
    begun = time.monotonic()
    with pytest.raises(KproError) as error:
        plan_of(goal, **changes)
    sentence = error.value.sentence
    assert "\n" not in sentence and len(sentence) < 600 and "Traceback" not in sentence, sentence
    assert time.monotonic() - begun < 2


def test_what_is_taken_gives_json_that_every_reader_takes() -> None:
    """Edges that are no errors: tiny cards, long contexts, many requests, and goals that nothing reaches."""
    names = ("qwen3.6-27b", "qwen3-14b", "qwen3-30b-a3b", "qwen3-0.6b")
    cards = (("rtx4080", 1), ("rtx3090", 1), ("a6000", 2), ("h200", 8))
    goals: tuple[t.Any, ...] = (None, {"context_tokens": 1}, {"concurrent_requests": 1 << 20}, {"context_tokens": 30000, "concurrent_requests": 4000})
    for name, (card, count), goal in itertools.product(names, cards, goals):
        args = {} if goal else {"tp_size": count}
        try:
            found = plan_of(goal, config=CONFIGS[name], cards=(idle_card(card),) * count, args=args)
        except KproError as error:
            assert "\n" not in error.sentence
            continue
        text = json.dumps(found, allow_nan=False)
        assert "Infinity" not in text and json.loads(text) == json.loads(json.dumps(found))
        assert all(len(line) <= 120 for line in table(found))
        if goal:
            assert found["max_total_num_tokens"] >= 0 and (
                found["verdict"] == "FAIL" or found["max_total_num_tokens"] >= min(1024, goal.get("context_tokens", 1024))
            )
        if found["verdict"] == "FAIL":
            assert not any("start with:" in line for line in table(found))


def test_ten_million_cards_are_refused_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(KproError, match="not between 1 and 1024"):
        cards_of(None, "a6000", 10**7)
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("capability", ["nine", "8", "8.6.1", "-8.0", "8,6"])
def test_a_compute_capability_that_is_none(capability: str) -> None:
    with pytest.raises(KproError, match="no compute capability"):
        card_of(49140, 48000, "", capability)


@pytest.mark.parametrize("name", ["Tesla T4", "T4", "Tesla V100-SXM2-32GB", "GeForce RTX 2080 Ti", "Quadro RTX 8000"])
def test_cards_before_ampere_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(KproError, match=r"compiled for compute capability 8\.0 and newer"):
        plan_of(config=CONFIGS["qwen3-0.6b"], cards=(card_of(16384, 16000, name),), args={})
    with pytest.raises(KproError, match=r"8\.0 and newer, and it has 7\.5"):
        plan_of(config=CONFIGS["qwen3-0.6b"], cards=(card_of(16384, 16000, "", "7.5"),), args={})


def test_cards_given_by_numbers_are_checked_by_their_generation() -> None:
    shape = {**CONFIGS["qwen3-14b"], "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None}}
    with pytest.raises(KproError, match=r"from compute capability 8\.9 on, and the card has 8\.6"):
        plan_of(config=shape, cards=(card_of(49140, 48000, "", "8.6"),), args={})
    assert plan_of(config=shape, cards=(card_of(49140, 48000, "", "8.9"),), args={})["verdict"] != "FAIL"
    unknown = plan_of(config=shape, cards=(card_of(49140, 48000),), args={})
    assert any("generation of the cards is not known" in note for note in unknown["notes"])
