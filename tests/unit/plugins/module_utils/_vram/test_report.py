# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import html.parser
import re

import pytest
import yaml
from plan_world import CONFIGS, SEED, inputs

from ansible_collections.kpro.llm.plugins.module_utils._vram.compare import deviations, read
from ansible_collections.kpro.llm.plugins.module_utils._vram.ladder import planned_ladder
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import PROFILES, config_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.report import report
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request
from ansible_collections.kpro.llm.plugins.module_utils._vram.result import plan
from ansible_collections.kpro.llm.plugins.module_utils._vram.table import start_lines, table

FAILED = plan(inputs(**SEED, free_before_gib=46.9))
GOOD = plan(inputs("0.5.23"), {"context_tokens": 65536, "concurrent_requests": 8, "speculation": "required"})

LOG = """
[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=46.90 GB
[2026-11-29 12:00:00 TP1] Load weight begin. avail mem=46.95 GB
[2026-11-29 12:03:00 TP1] Load weight end. elapsed=61.20 s, type=Qwen3_5ForConditionalGeneration, avail mem=21.27 GB, mem usage=25.63 GB.
[2026-11-29 12:03:00 TP0] Load weight end. elapsed=61.20 s, type=Qwen3_5ForConditionalGeneration, avail mem=21.27 GB, mem usage=25.62 GB.
[2026-11-29 12:03:10 TP0] Load weight end. elapsed=3.20 s, type=Qwen3_5ForCausalLMMTP, avail mem=18.40 GB, mem usage=2.82 GB.
[2026-11-29 12:03:12 TP0] Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.05GB, ssm_state size: 2.81GB
[2026-11-29 12:03:13 TP0] Memory pool end. avail mem=6.80 GB
[2026-11-29 12:04:00 TP0] max_total_num_tokens=150000, chunked_prefill_size=4096, max_running_requests=8, context_len=65536
""".splitlines()


class Checker(html.parser.HTMLParser):
    """Counts that tags close, and collects what a page would fetch."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("result", [FAILED, GOOD], ids=["failed", "good"])
def test_the_page_is_whole_and_needs_no_network(result: dict[str, object]) -> None:
    page = report(result, "Plan <of> 'us'")
    checker = Checker()
    checker.feed(page)
    assert not checker.open and not checker.fetched
    assert not re.search(r"https?://|@import|url\(", page) and "Plan &lt;of&gt;" in page
    assert "prefers-color-scheme: dark" in page and len(page) < 60_000


def test_the_bars_add_up_to_the_card() -> None:
    for gpu in FAILED["gpus"] + GOOD["gpus"]:
        assert sum(part["gib"] for part in gpu["parts"]) == pytest.approx(gpu["total_gib"], abs=0.01)
    page = report(GOOD)
    first = re.search(r"<div class='bar' role='img' aria-label='[^']*'>(.*?)</div>", page)
    assert first and sum(float(width) for width in re.findall(r"width:([\d.]+)%", first[1])) == pytest.approx(100, abs=0.1)
    assert page.count("class='gpu'") == 2


def test_each_gpu_has_a_bar_of_its_own_with_what_something_else_holds() -> None:
    start = inputs("0.5.23", tp_size=2, mem_fraction_static=0.85, context_length=65536)
    cards = tuple(dataclasses.replace(card, free_mib=free) for card, free in zip(start.cards, (48_691, 44_691), strict=True))
    result = plan(dataclasses.replace(start, cards=cards))
    bars = [{part["name"]: part["gib"] for part in gpu["parts"]} for gpu in result["gpus"]]
    assert "something else" not in bars[0] and bars[1]["something else"] == pytest.approx(4000 / 1024, abs=0.01)
    assert bars[0]["slack"] - bars[1]["slack"] == pytest.approx(4000 / 1024, abs=0.01)
    assert {name: bars[0][name] for name in ("weights", "state", "cache")} == {name: bars[1][name] for name in ("weights", "state", "cache")}
    assert "<li><i class='foreign'></i>something else <b>3.91</b></li>" in report(result)


def test_the_page_says_what_to_do_and_the_same_numbers_everywhere() -> None:
    page, lines = report(GOOD), table(GOOD)
    assert page.count("Do this: ") == 1 and any(line.strip().startswith("Do this: ") for line in lines)
    assert "whole contexts" in page and "tokens of context" in page and "of the free memory planned" in page
    lowest = next(row["gib"] for row in GOOD["breakdown"] if row["name"] == "lowest point")
    assert GOOD["gpus"][0]["parts"][-1] == {"name": "slack", "gib": pytest.approx(lowest, abs=0.002)}
    assert "against " in page and "class='end'" not in page
    # Amounts are there for a screen reader and for a finger, not only under the mouse.
    assert "aria-label='driver and process " in page and f"slack <b>{lowest:.2f}</b>" in page
    assert "Start with" not in report(FAILED) and "start with:" not in "\n".join(table(FAILED))


def test_alternatives_vary_the_fraction_and_slots_with_the_requests() -> None:
    args = {"tp_size": 2, "mem_fraction_static": 0.85, "context_length": 65536, "max_running_requests": 8, "max_mamba_cache_size": 40}
    labels = [item["label"] for item in plan(inputs("0.5.23", **args))["alternatives"]]
    assert "max_running_requests 8 -> 16, max_mamba_cache_size 80" in labels
    higher = next(label for label in labels if label.startswith("mem_fraction_static 0.85 -> 0.9"))
    assert float(higher.split()[-1]) > 0.94


def test_a_bar_that_overflows_shows_where_the_card_ends() -> None:
    result = plan(inputs("0.5.23", gpu="rtx4090", count=1, tp_size=1, mem_fraction_static=0.9))
    assert sum(part["gib"] for part in result["gpus"][0]["parts"]) > result["gpus"][0]["total_gib"]
    assert "class='end'" in report(result) and "the card ends here: 23.99 GiB" in report(result)


def test_what_to_start_with_is_yaml_for_the_inventory_and_nothing_of_it_is_lost() -> None:
    start = inputs("0.5.10.post1", tp_size=2, json_model_override_args="{}", tool_call_parser="qwen3_coder")
    result = plan(start, {"context_tokens": 65536, "concurrent_requests": 8, "speculation": "required", "prefix_cache": True})
    lines = start_lines(result)
    read_back = yaml.safe_load("\n".join(lines))
    assert {"tp_size": read_back["sglang_server__tp_size"], **read_back["sglang_server__options"]} == result["resolved_args"]
    assert read_back["sglang_server__environment"] == result["resolved_environment"] == {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert "\n".join(lines) in html.unescape(report(result)) and "\n".join(f"    {line}" for line in lines) in "\n".join(table(result))


LADDER = [{"name": "as it was", "options": {}}, {"name": "eight requests " * 6, "options": {"max_running_requests": 8}}]


def test_page_and_table_show_the_ladder_with_whole_names() -> None:
    result = planned_ladder(Request(CONFIGS["qwen3.6-27b"], "m", (), inputs().cards, "0.5.9", SEED), LADDER)
    page, lines = report(result), table(result)
    assert "Fallback ladder" in page and "passed over: speculation reserves 4 copies" in page and "(planned here)" in page
    # Whole, but on a line of its own where it is too long for one of 120 characters.
    assert any(line.strip() == f"> 1: {LADDER[1]['name']}".strip() for line in lines) and max(len(line) for line in lines) <= 120
    assert "Fallback ladder" not in report(GOOD)


def test_alternatives_stand_side_by_side() -> None:
    page = report(FAILED)
    assert page.count("class='card small'") == len(FAILED["alternatives"]) >= 6 and "372,034 tokens" in page


def test_the_table_says_verdict_cause_and_what_to_start_with() -> None:
    text = "\n".join(table(FAILED, "Plan"))
    for words in (
        "FAIL  SGLang 0.5.9, 2 GPU(s) RTX A6000",
        "cause: speculation reserves 4 copies",
        "makes no difference: context_length",
        "372,034",
        "Do this: set max_running_requests to 8",
    ):
        assert words in text
    reached = "\n".join(table(GOOD))
    assert "goal: reached" in reached and "cause" not in reached.partition("start with")[0].replace("cache", "")


def test_the_log_is_held_against_the_plan() -> None:
    logged = read(LOG)
    assert (logged.free_before_gib, logged.weights_gib, logged.state_slots, logged.tokens) == (46.9, 25.63, 40, 150000)
    assert (logged.requests, logged.pool_end_gib) == (8, 6.8)
    found = {each.name: each for each in deviations(GOOD, logged)}
    assert [each.name for each in found.values() if each.notable and each.name != "free at pool end, GiB"] == ["cache tokens"]
    assert f"planned {GOOD['max_total_num_tokens']:,}, the engine has 150,000 (-" in found["cache tokens"].sentence


def test_a_log_without_the_numbers_says_nothing() -> None:
    assert deviations(GOOD, read(["gate: ok", "Uvicorn running"])) == []


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_each_profile_can_be_planned(name: str) -> None:
    assert config_of(name.split("/")[1].lower()) is config_of(name)
    from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import PROFILES as GPUS
    from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card
    from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned

    for gpu in set(GPUS) - {"t4"}:
        if name.endswith("A3B-FP8") and GPUS[gpu].sm < 89:
            continue
        result = planned(Request(config_of(name), name, (), (idle_card(gpu),) * 4, "0.5.23", {"tp_size": 2, "mem_fraction_static": 0.85}))
        assert result["verdict"] in ("OK", "SHORT", "RISK", "FAIL")
