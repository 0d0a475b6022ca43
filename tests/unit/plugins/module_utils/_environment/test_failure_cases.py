# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded failures of Python environments, held against what looks before anything is built: its action and its words."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES, Facts, contract_problems
from ansible_collections.kpro.llm.plugins.module_utils._environment.plan import Wanted, check_wanted
from ansible_collections.kpro.llm.plugins.module_utils._environment.source_package import SourcePackage, after_kill, job_count, missing_wheel

_LINES = (Path(__file__).parents[1] / "fixtures" / "sglang_failure_cases.jsonl").read_text(encoding="utf-8").splitlines()
CASES = {case["id"]: case for case in map(json.loads, _LINES) if case["kind"] == "python-env"}
HASH = f"--hash=sha256:{'a' * 64}"


def silent_source_build(repro: dict[str, t.Any]) -> tuple[str, str]:
    source = SourcePackage("flash-attn", "2.8.3", "", "/srv/wheels", tags={"torch": repro["torch"], "Python": repro["python"]})
    return "warn_and_continue", missing_wheel(source)


def build_out_of_memory(repro: dict[str, t.Any]) -> tuple[str, str]:
    limit_mib = repro["cgroup"]["memory_max"] >> 20
    assert job_count(repro["cores"], limit_mib, 6144) == 5
    found = after_kill(repro["cores"], limit_mib, 6144, repro["cgroup"]["events"]["oom_kill"], repro["lines"])
    assert found is not None and found[1] == 5
    return "fix_and_continue", found[0]


def lock_with_another_version(wanted_version: str, resolved: str) -> tuple[str, str]:
    wanted = Wanted("/opt/x", f"sglang=={resolved} {HASH}\n", f"uv==0.13.9 {HASH}\n", "sglang", wanted_version, "3.12")
    with pytest.raises(KproError) as failure:
        check_wanted(wanted)
    return "stop_and_report", failure.value.sentence


def contract(lane: str, facts: Facts) -> tuple[str, str]:
    (problem,) = contract_problems(LANES[lane], facts)
    return "stop_and_report", problem


ANSWERS: dict[str, Callable[[dict[str, t.Any]], tuple[str, str]]] = {
    "LLMX-011": silent_source_build,
    "LLMX-040": lambda repro: lock_with_another_version("0.5.23", repro["resolved"]["sglang"]["version"]),
    "LLMX-050": build_out_of_memory,
    "LLMX-109": lambda repro: contract("cu13", Facts(toolkits=[repro["which_nvcc"]] if repro["which_nvcc"] else [])),
    "LLMX-122": lambda repro: lock_with_another_version(repro["wanted"].split(">=")[1], repro["resolved"]["sglang"]),
    "LLMX-125": lambda repro: contract("cu13", Facts(driver_version=repro["driver"])),
    "LLMX-154": lambda repro: contract("cu13", Facts(toolkits=[repro["nvcc_release"]])),
}


def test_every_recorded_case_is_answered() -> None:
    assert ANSWERS.keys() == CASES.keys()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_recorded_failure_is_met_before_anything_is_built(name: str) -> None:
    expect = CASES[name]["expect"]
    action, message = ANSWERS[name](CASES[name]["repro"])
    assert action == expect["action"]
    assert [words for words in expect["must_mention"] if words.lower() not in message.lower()] == []
    assert [claim for claim in expect["must_not_claim"] if claim.lower() in message.lower()] == []


def test_a_wheel_that_is_not_kept_is_no_reason_to_build_in_silence() -> None:
    source = SourcePackage("flash-attn", "2.8.3", "", "/srv/wheels")
    assert not source.build and dataclasses.replace(source, build=True).build
