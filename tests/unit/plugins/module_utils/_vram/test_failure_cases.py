# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded failures of memory and architecture: right action, what has to be said, and what must not be claimed in any wording."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
from plan_world import outcome

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose import diagnose
from ansible_collections.kpro.llm.plugins.module_utils._vram.advice import advise
from ansible_collections.kpro.llm.plugins.module_utils._vram.cause import cause_of

_LINES = (Path(__file__).parents[1] / "fixtures" / "sglang_failure_cases.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [case for case in map(json.loads, _LINES) if case["kind"] in ("sglang-memory", "sglang-arch")]

# Each claim of the cases as the words that would make it.
_RAISE = r"\b(increase|raise|higher)\b[^.;]*mem.fraction|mem.fraction[^.;]*\b(increase|raise|higher)\b"
_LOWER = r"\b(decrease|lower)\b[^.;]*mem.fraction"
CLAIMS = {
    "kill 9120": r"\bkill\b",
    "hardware fault": r"hardware|faulty|broken",
    "weights are too large": r"weights (are|is) too|too large for|weights do not fit",
    "advice to increase --mem-fraction-static": _RAISE,
    "increase --mem-fraction-static": _RAISE,
    "decrease --mem-fraction-static": _LOWER,
    "sigquit as cause": r"sigquit",
    "out of memory": r"out of memory",
    "ready (full)": r"\bready\b",
    "shards corrupt": r"corrupt|damaged",
    "corrupt model": r"corrupt|damaged",
    "GPU occupied": r"occupied|other process|holds",
    "VRAM full": r"vram|(gpu|memory) is full",
    "mem-fraction": r"mem.fraction",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_recorded_failure(case: dict[str, t.Any]) -> None:
    repro, expect = case["repro"], case["expect"]
    found = diagnose(repro.get("lines", []), {name: value for name, value in repro.items() if name != "lines"})
    message = f"{found.cause}. {found.remedy}"
    assert found.action == expect["action"]
    assert [words for words in expect["must_mention"] if words.lower() not in message.lower()] == []
    for claim in expect["must_not_claim"]:
        assert not re.search(CLAIMS[claim], message, re.IGNORECASE), f"{claim}: {message}"


def test_all_ten_are_there() -> None:
    assert len(CASES) == 10 and {case["kind"] for case in CASES} == {"sglang-memory", "sglang-arch"}


def test_the_plan_blames_the_state_pool_too_where_the_engine_blames_the_weights() -> None:
    case = next(case for case in CASES if case["id"] == "LLMX-031")["repro"]
    args = {"tp_size": 2, "context_length": 65536, **case["args"]}
    found = outcome("0.5.23", **args, weights_gib=27.4, free_before_gib=case["gpu_free_before_gib"])
    cause = cause_of(found)
    assert found.verdict == "FAIL" and cause is not None and cause.kind == "state_slots"
    advice = advise(found)
    fewer = next(item for item in advice if item.option == "max_mamba_cache_size")
    assert 100 < fewer.after < 182 and fewer.outcome.verdict == "OK"


def test_the_plan_asks_for_less_after_sizing_where_graphs_do_not_fit() -> None:
    found = outcome("0.5.23", tp_size=2, mem_fraction_static=0.97, context_length=65536, max_running_requests=8)
    cause = cause_of(found)
    assert cause is not None and cause.direction == "lower_fraction"
    assert all(item.after < 0.97 for item in advise(found) if item.option == "mem_fraction_static")
