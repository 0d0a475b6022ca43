# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest
from plan_world import inputs

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import evaluate
from ansible_collections.kpro.llm.plugins.module_utils._vram.goal import goal_of, search
from ansible_collections.kpro.llm.plugins.module_utils._vram.options import options_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.result import plan


def sought(goal: dict[str, t.Any], version: str = "0.5.23", config: str = "qwen3.6-27b", **extra: t.Any) -> dict[str, t.Any]:
    return plan(inputs(version, config, **extra), goal)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.23"])
def test_eight_long_chats_with_speculation_fit_on_two_a6000(version: str) -> None:
    result = sought({"context_tokens": 65536, "concurrent_requests": 8, "speculation": "required", "prefix_cache": True}, version)
    assert result["goal"]["satisfied"] and result["verdict"] == "OK"
    assert result["max_total_num_tokens"] >= 65536 and result["max_running_requests"] == 8
    assert result["low_point_gib"] >= result["needed_gib"]
    args = result["resolved_args"]
    assert args["speculative_algorithm"] == "NEXTN" and args["disable_radix_cache"] is False and args["tp_size"] == 2
    assert (result["resolved_environment"] == {"SGLANG_ENABLE_SPEC_V2": "1"}) == (version != "0.5.23")


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_the_result_holds_when_it_is_started(version: str) -> None:
    start = inputs(version)
    result = plan(start, {"context_tokens": 131072, "concurrent_requests": 12, "speculation": "preferred"})
    options = options_of(result["resolved_args"], version, start.rules)
    again = evaluate(dataclasses.replace(start, options=options, environment=tuple(result["resolved_environment"].items())))
    assert (again.sizing.tokens, again.sizing.requests) == (result["max_total_num_tokens"], result["max_running_requests"])


def test_no_other_fraction_has_more_slack_on_the_tighter_side() -> None:
    start = inputs("0.5.23")
    best = search(goal_of({"context_tokens": 65536, "concurrent_requests": 8, "speculation": "off"}, start), start)[0]
    token = best.outcome.shape.token_bytes

    def margin(fraction: float) -> float:
        options = dataclasses.replace(best.outcome.inputs.options, mem_fraction_static=fraction)
        other = evaluate(dataclasses.replace(best.outcome.inputs, options=options))
        return min(other.low_point_gib - other.needed_gib, (other.sizing.tokens - 8 * 16384) * token / 2**30)

    assert best.margin_gib == pytest.approx(margin(best.outcome.resolved.fraction))
    assert all(margin(step / 100) <= best.margin_gib + 0.25 for step in range(50, 97))


def test_the_least_loss_is_given_up_first() -> None:
    loose = sought({"context_tokens": 65536, "concurrent_requests": 8, "speculation": "preferred"})
    assert loose["goal"]["given_up"] == []
    tight = sought({"context_tokens": 262144, "concurrent_requests": 32, "tokens_per_request": 8192, "speculation": "off"})
    # Nobody asked for the state's type: all that was asked for is given, and what changed is said.
    assert tight["goal"]["given_up"] == [] and tight["verdict"] == "OK" and tight["goal"]["satisfied"]
    assert "state in float32: bfloat16 instead (check the accuracy)" in tight["notes"]


def test_each_request_has_the_tokens_that_were_asked_for() -> None:
    for each in (2048, 16384, 65536):
        result = sought({"context_tokens": 65536, "concurrent_requests": 8, "tokens_per_request": each})
        requests = result["max_running_requests"]
        assert result["verdict"] == "OK" and result["max_total_num_tokens"] >= max(65536, requests * each)
        assert result["goal"]["satisfied"] == (requests >= 8), (each, result["goal"])


def test_too_many_requests_become_as_many_as_fit() -> None:
    result = sought({"context_tokens": 65536, "concurrent_requests": 500, "speculation": "off", "prefix_cache": True}, mamba_ssm_dtype="float32")
    assert result["verdict"] == "OK" and 20 < result["max_running_requests"] < 500
    assert any(text.startswith("requests at once") for text in result["goal"]["given_up"])


def test_what_fits_on_no_card_says_so() -> None:
    result = sought({"context_tokens": 65536}, gpu="rtx4090", count=1)
    assert result["verdict"] == "FAIL" and result["cause"]["kind"] == "weights_too_large"
    assert result["goal"]["given_up"] == ["everything: nothing that was tried starts with a cache that serves a request"]


def test_a_context_that_fits_not_is_shortened_and_never_lengthened() -> None:
    assert sought({"context_tokens": 500}, gpu="rtx4090", count=1)["resolved_args"]["context_length"] == 500
    result = sought(
        {"context_tokens": 262144, "concurrent_requests": 4, "speculation": "off"}, "0.5.23", "qwen3.6-27b-fp8", gpu="l40s", count=1, kv_cache_dtype="bfloat16"
    )
    assert result["verdict"] == "OK" and 65536 < result["resolved_args"]["context_length"] < 262144
    assert result["goal"]["given_up"][0].startswith("context: ")


def test_a_variant_that_is_not_modelled_does_not_end_the_search() -> None:
    result = sought({"context_tokens": 32768, "prefix_cache": True}, enable_deterministic_inference=True)
    assert result["verdict"] == "OK" and "prefix cache: off, no reuse between chats" in result["goal"]["given_up"]


def test_an_eight_bit_cache_is_tried_only_where_the_card_computes_it() -> None:
    def dtypes(gpu: str) -> set[str]:
        start = inputs("0.5.23", "qwen3-14b", gpu=gpu, count=1)
        return {choice.outcome.resolved.kv_dtype for choice in search(goal_of({"context_tokens": 32768}, start), start)}

    assert dtypes("a6000") == {"auto"} and dtypes("l40s") == {"auto", "fp8_e4m3"}


def test_cards_as_the_driver_names_them_are_known_by_their_generation() -> None:
    start = inputs("0.5.23", "qwen3-14b", gpu="h100", count=1)
    named = dataclasses.replace(start, cards=(dataclasses.replace(start.cards[0], name="H100 80GB HBM3"),))
    assert {choice.outcome.resolved.kv_dtype for choice in search(goal_of({"context_tokens": 32768}, named), named)} == {"auto", "fp8_e4m3"}


def test_a_division_that_is_given_is_kept_and_another_is_searched() -> None:
    goal = {"context_tokens": 8192}
    assert sought(goal, config="qwen3-14b", tp_size=1)["resolved_args"]["tp_size"] == 1
    assert sought(goal, config="qwen3-14b")["resolved_args"]["tp_size"] == 2


def test_given_options_are_kept() -> None:
    result = sought({"context_tokens": 32768, "speculation": "preferred"}, mem_fraction_static=0.8, mamba_ssm_dtype="bfloat16", tool_call_parser="qwen3_coder")
    assert result["resolved_args"]["mem_fraction_static"] == 0.8 and result["resolved_args"]["mamba_ssm_dtype"] == "bfloat16"
    assert result["resolved_args"]["tool_call_parser"] == "qwen3_coder" and result["goal"]["given_up"] == []


def test_gaps_are_filled_from_the_options() -> None:
    start = inputs("0.5.23", tp_size=2, context_length=40000, max_running_requests=3, speculative_algorithm="NEXTN")
    goal = goal_of({}, start)
    assert (goal.context_tokens, goal.concurrent_requests, goal.speculation, goal.prefix_cache) == (40000, 3, "preferred", True)
    assert goal_of({}, inputs("0.5.23")).context_tokens == 262144


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ({"speed": 3}, "key speed"),
        ({"context_tokens": -1}, "context_tokens"),
        ({"context_tokens": 300000}, "above the model's 262144"),
        ({"concurrent_requests": "many"}, "concurrent_requests"),
        ({"speculation": "maybe"}, "maybe"),
    ],
)
def test_a_senseless_goal_is_refused(goal: dict[str, t.Any], words: str) -> None:
    with pytest.raises(KproError, match=words):
        goal_of(goal, inputs("0.5.23"))


def test_speculation_that_the_model_has_not_is_an_error_only_if_it_is_required() -> None:
    assert sought({"speculation": "preferred"}, config="qwen3-14b", count=1)["verdict"] == "OK"
    with pytest.raises(KproError, match="mtp_num_hidden_layers"):
        sought({"speculation": "required"}, config="qwen3-14b", count=1)
