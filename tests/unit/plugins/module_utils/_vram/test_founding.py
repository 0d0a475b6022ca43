# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The failure that this collection was made for, to the token."""

from __future__ import annotations

import typing as t

import pytest
from plan_world import SEED, SEED_FREE_GIB, inputs, seed

from ansible_collections.kpro.llm.plugins.module_utils._vram.advice import advise, irrelevant_options
from ansible_collections.kpro.llm.plugins.module_utils._vram.cause import breakdown, cause_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.result import plan


def test_it_fails_for_the_copies_of_the_implicit_48_requests() -> None:
    found = seed()
    cause = cause_of(found)
    assert found.verdict == "FAIL" and found.stage == "sizing" and cause is not None
    assert found.sizing.tokens == pytest.approx(-97_600, rel=0.003)
    assert cause.kind == "state_copies" and "implicit limit of 48 requests" in cause.message and "73.4 MiB" in cause.message
    assert cause.direction == "raise_fraction_or_reduce_demand"


def test_the_sum_is_the_one_worked_out_by_hand() -> None:
    rows = {row.name: row.gib for row in breakdown(seed())}
    by_hand = {
        "free before loading": 46.90,
        "slack": 7.03,
        "weights": 25.61,
        "rest": 14.22,
        "speculative copies": 13.76,
        "state slots": 3.44,
        "cache": -2.98,
    }
    assert {name: rows[name] for name in by_hand} == pytest.approx(by_hand, abs=0.006)


def test_what_everybody_guessed_makes_no_difference() -> None:
    assert {"context_length", "kv_cache_dtype", "chunked_prefill_size", "cuda_graph_max_bs"} <= set(irrelevant_options(seed()))


def test_the_advice_is_eight_requests_and_each_item_holds_when_it_is_followed() -> None:
    start = inputs(**SEED, free_before_gib=SEED_FREE_GIB)
    advice = plan(start)["advice"]
    first = advice[0]
    assert (first["option"], first["from"], first["to"]) == ("max_running_requests", "48 (implicit)", 8)
    assert first["predicted"]["max_total_num_tokens"] == pytest.approx(372_000, rel=0.001) and first["predicted"]["verdict"] == "OK"
    for item in advice:
        changes = {item["option"]: item["to"], **item["also"]}
        if item["option"] == "speculative_algorithm":
            changes = dict.fromkeys(name for name in SEED if name.startswith("speculative"))
        followed = seed(**changes)
        assert followed.boots and followed.sizing.tokens == item["predicted"]["max_total_num_tokens"], item


# One change at a time, figures worked out from the engine's code by hand.
@pytest.mark.parametrize(
    ("changes", "verdict", "tokens"),
    [
        ({"max_running_requests": 8}, "OK", 372_158),
        ({"max_running_requests": 34}, "OK", 66_788),
        ({"max_running_requests": 35}, "SHORT", 55_043),
        ({"max_running_requests": 39}, "SHORT", 8_063),
        ({"max_running_requests": 40}, "FAIL", None),
        ({"mamba_ssm_dtype": "bfloat16"}, "OK", 178_838),
        ({"mamba_ssm_dtype": "bfloat16", "max_running_requests": 16}, "OK", 370_358),
        ({"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}, "OK", 127_862),
        ({"speculative_num_steps": 2, "speculative_num_draft_tokens": 3}, "SHORT", 15_110),
        ({"mem_fraction_static": 0.913}, "FAIL", None),
        ({"mem_fraction_static": 0.914}, "RISK", 715),
        ({"mamba_scheduler_strategy": "extra_buffer", "max_running_requests": 8}, "OK", 207_728),
    ],
)
def test_one_change_at_a_time(changes: dict[str, t.Any], verdict: str, tokens: int | None) -> None:
    found = seed(**changes)
    assert found.verdict == verdict
    if tokens is not None:
        assert found.sizing.tokens == pytest.approx(tokens, abs=130)


def test_without_speculation_it_boots_with_93_slots() -> None:
    found = seed(**dict.fromkeys(name for name in SEED if name.startswith("speculative")))
    assert (found.verdict, found.sizing.slots, found.sizing.requests) == ("OK", 93, 31)
    assert found.sizing.tokens == pytest.approx(247_661, abs=130)


def test_extra_buffer_with_48_requests_leaves_none() -> None:
    found = seed(mamba_scheduler_strategy="extra_buffer")
    cause = cause_of(found)
    assert found.sizing.failure == "no_requests" and found.sizing.slots == 3 and cause is not None and cause.kind == "slots_too_few"


@pytest.mark.parametrize("version", ["0.5.10.post1", "0.5.11", "0.5.12", "0.5.13"])
def test_these_versions_refuse_the_flags(version: str) -> None:
    found = seed(version)
    cause = cause_of(found)
    assert found.verdict == "FAIL" and found.stage == "options" and cause is not None and "disable_radix_cache" in cause.message
    assert any(item.option == "disable_radix_cache" and item.outcome.boots for item in advise(found))


@pytest.mark.parametrize(("version", "requests"), [("0.5.14", 8), ("0.5.15", 8), ("0.5.17", 7), ("0.5.18", 7), ("0.5.20", 7), ("0.5.23", 7)])
def test_newer_versions_boot_unchanged(version: str, requests: int) -> None:
    found = seed(version)
    assert found.verdict == "OK" and found.sizing.requests == requests
    assert 190_000 <= found.sizing.tokens <= 193_000


def test_exactly_eight_requests_on_the_newest_version() -> None:
    found = seed("0.5.23", max_running_requests=8, max_mamba_cache_size=40)
    assert found.sizing.requests == 8 and found.sizing.tokens == pytest.approx(178_594, abs=130)
    assert seed("0.5.23", mamba_ssm_dtype="bfloat16").sizing.requests == 15


def test_the_automatic_fraction_is_the_engines() -> None:
    automatic = dict.fromkeys(("mem_fraction_static", *(name for name in SEED if name.startswith("speculative"))))
    assert seed(**automatic).resolved.fraction == pytest.approx(0.793, abs=0.0005)
    assert seed(mem_fraction_static=None).resolved.fraction == pytest.approx(0.755, abs=0.0005)
