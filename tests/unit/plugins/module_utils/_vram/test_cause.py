# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Causes, their direction, and advice that holds."""

from __future__ import annotations

import dataclasses
import re
import typing as t

import pytest
from plan_world import SEED, inputs, outcome, seed

from ansible_collections.kpro.llm.plugins.module_utils._vram.advice import advise, irrelevant_options, variations
from ansible_collections.kpro.llm.plugins.module_utils._vram.advisories import advisories_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.cause import cause_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import Inputs, Outcome, evaluate, leftovers
from ansible_collections.kpro.llm.plugins.module_utils._vram.result import plan

BASE = {"tp_size": 2, "mem_fraction_static": 0.85, "context_length": 65536}


def with_free(start: Inputs, *free_mib: int) -> Inputs:
    cards = tuple(dataclasses.replace(card, free_mib=free) for card, free in zip(start.cards, free_mib, strict=True))
    return dataclasses.replace(start, cards=cards)


def kind(found: Outcome) -> tuple[str, str]:
    cause = cause_of(found)
    return (cause.kind, cause.direction) if cause else ("", "")


@pytest.mark.parametrize(
    ("version", "args", "expected"),
    [
        ("0.5.9", {**SEED, "free_before_gib": 46.9}, ("state_copies", "raise_fraction_or_reduce_demand")),
        ("0.5.9", {**BASE, "max_mamba_cache_size": 400}, ("state_slots", "raise_fraction_or_reduce_demand")),
        ("0.5.23", {**BASE, "max_mamba_cache_size": 400}, ("state_slots", "raise_fraction_or_reduce_demand")),
        ("0.5.23", {**BASE, "max_mamba_cache_size": 4}, ("slots_too_few", "raise_fraction_or_reduce_demand")),
        ("0.5.23", {**BASE, "mem_fraction_static": 0.5}, ("weights_over_fraction", "raise_fraction_or_reduce_demand")),
        ("0.5.9", {**BASE, "mem_fraction_static": 0.975}, ("slack_small", "lower_fraction")),
        ("0.5.9", {**SEED, "max_running_requests": 4, "mem_fraction_static": 0.94, "free_before_gib": 46.9}, ("slack_exhausted", "lower_fraction")),
        ("0.5.23", {**BASE, "context_length": 262144}, ("cache_shorter_than_context", "raise_fraction_or_reduce_demand")),
        ("0.5.23", {"tp_size": 1, "mem_fraction_static": 0.9}, ("weights_too_large", "reduce_demand")),
        ("0.5.23", {**BASE, "context_length": 400000}, ("options_refused", "change_options")),
        ("0.5.23", {**BASE, "mamba_radix_cache_strategy": "no_buffer"}, ("options_refused", "change_options")),
        ("0.5.23", {**BASE, "mamba_radix_cache_strategy": "extra_buffer_lazy", "disable_overlap_schedule": True}, ("options_refused", "change_options")),
        ("0.5.10.post1", {**BASE, "mamba_scheduler_strategy": "extra_buffer", "disable_radix_cache": True}, ("options_refused", "change_options")),
        ("0.5.23", BASE, ("", "")),
    ],
)
def test_cause_and_direction(version: str, args: dict[str, t.Any], expected: tuple[str, str]) -> None:
    assert kind(outcome(version, **args)) == expected


def test_errors_at_sizing_never_ask_for_a_lower_fraction_nor_later_ones_for_a_higher() -> None:
    for version in ("0.5.9", "0.5.13", "0.5.23"):
        for percent in range(34, 99, 8):
            for requests in (None, 2, 16, 64):
                args = {**SEED, "mem_fraction_static": percent / 100, "max_running_requests": requests, "disable_radix_cache": version == "0.5.13"}
                found = outcome(version, **args)
                for item in advise(found):
                    if item.option == "mem_fraction_static":
                        upwards = item.after > percent / 100
                        assert upwards == (found.verdict == "SHORT" or found.stage == "sizing"), (version, args, item)


def test_advice_is_better_than_what_it_replaces() -> None:
    rank = ["FAIL", "RISK", "SHORT", "OK"]
    for args in (SEED, {**SEED, "mem_fraction_static": 0.93}, {**BASE, "max_mamba_cache_size": 400}, {**BASE, "context_length": 262144}):
        found = outcome("0.5.9", **args)
        advice = advise(found)
        assert advice and all(rank.index(item.outcome.verdict) > rank.index(found.verdict) for item in advice)


def test_when_no_fraction_works_none_is_advised() -> None:
    # Weights and graphs together need more than the card has: below it fails at sizing, above it fails afterwards.
    found = seed(free_before_gib=32.0, max_running_requests=10)
    assert found.verdict == "FAIL" and "mem_fraction_static" not in {item.option for item in advise(found)}


def test_where_both_errors_alternate_something_else_has_to_shrink() -> None:
    result = plan(inputs(**SEED, free_before_gib=32.0, max_running_requests=10))
    assert result["cause"]["direction"] == "reduce_demand"
    words = re.search(r"no fraction works: up to ([\d.]+) the pools get too little, and from ([\d.]+) on too little is left", result["cause"]["message"])
    assert words is not None
    low, high = (seed(free_before_gib=32.0, max_running_requests=10, mem_fraction_static=float(words[number])) for number in (1, 2))
    assert (low.stage, high.stage) == ("sizing", "pools")
    assert result["advice"] and all(item["option"] != "mem_fraction_static" for item in result["advice"])


def test_where_no_fraction_gives_context_and_slack_it_is_said_too() -> None:
    result = plan(inputs("0.5.23", **{**BASE, "context_length": 262144}, max_mamba_cache_size=170))
    assert result["verdict"] == "SHORT" and result["cause"]["direction"] == "reduce_demand"
    assert "no other fraction gives both the context and enough slack" in result["cause"]["message"]
    helped = plan(inputs("0.5.23", **{**BASE, "mem_fraction_static": 0.7, "context_length": 262144}))
    assert helped["cause"]["direction"] == "raise_fraction_or_reduce_demand" and helped["advice"][0]["option"] == "mem_fraction_static"


def test_a_lower_fraction_is_one_that_leaves_enough_if_there_is_one() -> None:
    found = outcome("0.5.9", **{**SEED, "max_running_requests": 4, "mem_fraction_static": 0.97, "free_before_gib": 46.9})
    lower = next(item for item in advise(found) if item.option == "mem_fraction_static")
    assert lower.outcome.verdict == "OK" and lower.outcome.low_point_gib == pytest.approx(lower.outcome.needed_gib, abs=0.06)


def test_the_nearest_higher_fraction_is_found_although_more_memory_gives_more_slots() -> None:
    args = {"tp_size": 1, "context_length": 65536, "speculative_algorithm": "NEXTN", "max_running_requests": 8}
    found = outcome("0.5.23", "qwen3.6-27b-fp8", gpu="l40s", count=1, **args, mem_fraction_static=0.8)
    higher = next(item for item in advise(found) if item.option == "mem_fraction_static")
    good = [step for step in range(801, 951) if _verdict(found, step) == "OK"]
    assert higher.outcome.verdict == "OK" and min(good) <= higher.after * 1000 <= min(good) + 7


def _verdict(found: Outcome, step: int) -> str:
    return evaluate(dataclasses.replace(found.inputs, options=dataclasses.replace(found.inputs.options, mem_fraction_static=step / 1000))).verdict


def test_the_best_advice_comes_first() -> None:
    for args in (SEED, {**SEED, "max_running_requests": 40}, {**SEED, "mem_fraction_static": 0.97, "max_running_requests": 4}):
        verdicts = [item.outcome.verdict for item in advise(seed(**args))]
        assert verdicts == sorted(verdicts, key=("OK", "SHORT", "RISK").index)


def test_too_little_for_a_single_slot_is_said_in_so_many_words() -> None:
    found = outcome("0.5.23", "qwen3.6-27b-fp8", gpu="l40s", count=1, mem_fraction_static=0.8, speculative_algorithm="NEXTN")
    cause = cause_of(found)
    assert cause is not None and cause.message.endswith("too little for one slot of state of 146.8 MiB and its 4 copies for draft tokens")


def test_an_unbalanced_start_goes_on_where_the_engine_is_told_not_to_check() -> None:
    start = with_free(inputs("0.5.23", **BASE, environment={"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}), 40_691, 48_691)
    assert evaluate(start).boots and evaluate(dataclasses.replace(start, environment=())).stage == "start"


def test_a_process_on_one_card_is_named_with_card_and_size() -> None:
    start = with_free(inputs("0.5.23", **BASE), 30_691, 48_691)
    found = evaluate(start)
    cause = cause_of(found)
    assert found.stage == "start" and cause is not None and cause.direction == "free_gpu" and "GPU 0" in cause.message
    assert "GPU 0 has 30.0 GiB free, 17.6 GiB less" in leftovers(start)[0] and len(leftovers(start)) == 1
    assert [(item.option, item.outcome.verdict) for item in advise(found)] == [("free_mib of GPU 0", "OK")]


@pytest.mark.parametrize(
    ("held_gib", "verdict", "kind_"),
    [(0.5, "OK", ""), (6, "OK", ""), (14, "FAIL", "memory_held"), (21, "FAIL", "memory_held"), (26, "FAIL", "memory_held")],
)
def test_a_process_on_both_cards_costs_what_it_holds(held_gib: float, verdict: str, kind_: str) -> None:
    free = 48_691 - int(held_gib * 1024)
    found = evaluate(with_free(inputs("0.5.9", **SEED, max_running_requests=8), free, free))
    assert (found.verdict, kind(found)[0]) == (verdict, kind_)
    assert bool(leftovers(found.inputs)) == (held_gib > 1)
    if kind_:
        assert advise(found)[0].option == "free_mib of GPU 0, GPU 1"


def test_a_start_that_fails_on_idle_cards_too_is_not_blamed_on_a_process() -> None:
    free = 48_691 - 3 * 1024
    assert kind(evaluate(with_free(inputs("0.5.9", **SEED), free, free)))[0] == "state_copies"


def test_a_working_start_has_no_cause_no_advice_and_nothing_irrelevant() -> None:
    found = outcome("0.5.23", **BASE)
    assert cause_of(found) is None and advise(found) == [] and irrelevant_options(found) == []
    assert {item.option for item in variations(found)} >= {"speculative_algorithm", "mamba_ssm_dtype", "context_length"}


def test_known_faults_of_a_version_are_said() -> None:
    assert any("wrong" in text for text in advisories_of(seed("0.5.9")))
    assert not any("wrong" in text for text in advisories_of(seed("0.5.10.post1", disable_radix_cache=True)))
    assert not any("wrong" in text for text in advisories_of(outcome("0.5.9", tp_size=1, mem_fraction_static=0.85, gpu="a100-80", count=1)))
    fp8 = outcome("0.5.14", "qwen3.6-27b-fp8", **SEED)
    assert any("27998" in text for text in advisories_of(fp8))
    assert any("no FP8 arithmetic" in text for text in advisories_of(fp8))
    assert not any("FP8" in text for text in advisories_of(outcome("0.5.23", "qwen3.6-27b-fp8", gpu="h100", **BASE)))


def test_rules_change_at_the_release_that_changed_them() -> None:
    lazy = {**BASE, "mamba_radix_cache_strategy": "extra_buffer_lazy"}
    assert [kind(outcome(version, **lazy))[0] for version in ("0.5.12", "0.5.13", "0.5.14")] == ["options_refused", "", ""]
    speculating = {**lazy, **{name: value for name, value in SEED.items() if name.startswith("spec")}, "max_running_requests": 4}
    assert [kind(outcome(version, **speculating))[0] for version in ("0.5.13", "0.5.14")] == ["options_refused", ""]
    assert [outcome(version, **BASE, page_size=64).resolved.page for version in ("0.5.9", "0.5.10.post1", "0.5.11", "0.5.13", "0.5.14")] == [64, 64, 1, 1, 64]
    automatic = {"tp_size": 2, "disable_cuda_graph": True, "chunked_prefill_size": 4096}
    assert outcome("0.5.15", **automatic).resolved.fraction > outcome("0.5.14", **automatic).resolved.fraction


def test_settings_that_the_engine_chooses_are_said() -> None:
    notes = " ".join(seed().resolved.notes)
    assert "max_running_requests is set to 48" in notes and "prefix cache is switched off" in notes
    adjusted = seed(speculative_num_draft_tokens=6).resolved
    assert adjusted.draft_tokens == 4 and any("becomes 4" in note for note in adjusted.notes)
    assumed = outcome("0.5.23", tp_size=2, mem_fraction_static=0.85, speculative_algorithm="NEXTN", speculative_num_draft_tokens=6).resolved
    assert (assumed.steps, assumed.topk, assumed.draft_tokens) == (5, 1, 6)
