# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES, Facts, Lane, choose_lane, choose_python, contract_problems
from ansible_collections.kpro.llm.plugins.module_utils._engine.option_names import BY_VERSION
from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import NEWEST, TABLE, release_of, rules_of
from ansible_collections.kpro.llm.plugins.module_utils._environment.lock import parse_lock

LOCKS = Path(__file__).resolve().parents[5] / "roles/sglang_runtime/files/locks"


@pytest.mark.parametrize(
    ("driver", "lane"),
    [
        ("580.173.02", "cu13"),
        ("580.142", "cu13"),
        ("620.10", "cu13"),
        ("579.99.99", "cu12"),
        ("570.195.03", "cu12"),
    ],
)
def test_auto_takes_the_newest_lane_that_the_driver_can_run(driver: str, lane: str) -> None:
    assert choose_lane("auto", driver).name == lane


@pytest.mark.parametrize(("driver", "says"), [("550.163.01", "older than 570"), ("", "no NVIDIA driver")])
def test_auto_without_a_fitting_driver_says_which_one_to_install(driver: str, says: str) -> None:
    with pytest.raises(KproError, match=says) as failure:
        choose_lane("auto", driver)
    assert "580" in failure.value.remedy


def test_an_unknown_lane_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(KproError, match="cu13, cu12, cpu"):
        choose_lane("cu11", "580.173.02")


@pytest.mark.parametrize(
    ("lane", "wanted", "distribution", "python"),
    [
        ("cu13", "auto", "3.11", "3.11"),
        ("cu13", "auto", "3.13", "3.12"),
        ("cu13", "3.12", "3.11", "3.12"),
        ("cpu", "auto", "3.13", "3.11"),
    ],
)
def test_python_is_the_distributions_where_it_is_locked(lane: str, wanted: str, distribution: str, python: str) -> None:
    assert choose_python(LANES[lane], wanted, distribution) == python


def test_a_python_without_a_lock_file_is_refused() -> None:
    with pytest.raises(KproError, match="no lock file"):
        choose_python(LANES["cpu"], "3.12", "3.12")


@pytest.mark.parametrize("lane", LANES.values(), ids=lambda lane: lane.name)
def test_each_lock_file_of_a_lane_pins_its_engine_and_torch(lane) -> None:
    for python in lane.pythons:
        pins = parse_lock((LOCKS / lane.lock_file(python)).read_text())
        assert pins["sglang"] == lane.engine_version
        assert re.sub(r"\+.*", "", pins["torch"]) == lane.torch_version


@pytest.mark.parametrize("name", ["cu13", "cu12"])
def test_each_cuda_lane_brings_flash_attention_4(name: str) -> None:
    for python in LANES[name].pythons:
        assert "flash-attn-4" in parse_lock((LOCKS / LANES[name].lock_file(python)).read_text())


def test_a_contract_that_holds_has_no_problems() -> None:
    facts = Facts("580.173.02", "0.5.23", "13.0", ["13.0"], "3.12.7", "2.36", "x86_64", "qwen3_5", 2)
    assert contract_problems(LANES["cu13"], facts) == []


def test_what_is_unknown_is_not_judged() -> None:
    for lane in LANES.values():
        assert contract_problems(lane, Facts()) == []


@pytest.mark.parametrize(
    ("lane", "facts", "mentions", "never"),
    [
        # LLMX-125: torch moved to a CUDA major that the driver does not support.
        ("cu13", Facts(driver_version="570.195.03"), ["570", "580", "cu12"], ["nvidia-smi"]),
        # LLMX-122: the resolver had backtracked to an old engine.
        ("cu13", Facts(engine_version="0.5.9"), ["0.5.9", "0.5.23"], ["latest"]),
        # LLMX-109: kernels compiled at start, and no toolkit.
        ("cu13", Facts(toolkits=[]), ["nvcc", "13.0", "cuda-minimal-build-13-0"], ["memory"]),
        # LLMX-154: the distribution's nvcc beside a newer torch.
        ("cu13", Facts(toolkits=["12.0"]), ["12.0", "13.0"], ["driver"]),
        ("cu12", Facts(toolkits=["13.0"]), ["13.0", "12.8", "cuda-minimal-build-12-8"], []),
        ("cu13", Facts(python="3.13.5"), ["3.13", "3.12"], []),
        ("cu12", Facts(glibc="2.31"), ["2.31", "2.34"], []),
        ("cpu", Facts(architecture="aarch64"), ["aarch64", "x86_64"], []),
    ],
)
def test_each_broken_clause_is_named_with_its_numbers(lane: str, facts: Facts, mentions: list[str], never: list[str]) -> None:
    (problem,) = contract_problems(LANES[lane], facts)
    assert all(word in problem for word in mentions)
    assert not any(word in problem for word in never)


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_text", "Qwen3_6"])
def test_the_engine_with_the_tensor_parallel_bug_is_refused_for_dense_models(model_type: str) -> None:
    facts = Facts(engine_version="0.5.9", model_type=model_type, tp_size=2)
    assert any("all-reduce" in problem for problem in contract_problems(LANES["cu12"], facts))


@pytest.mark.parametrize(
    "facts",
    [
        Facts(engine_version="0.5.9", model_type="qwen3_5", tp_size=1),
        Facts(engine_version="0.5.9", model_type="qwen3_5_moe", tp_size=2),
        Facts(engine_version="0.5.10.post1", model_type="qwen3_5", tp_size=2),
    ],
)
def test_the_tensor_parallel_guard_hits_nothing_else(facts: Facts) -> None:
    assert not any("all-reduce" in problem for problem in contract_problems(LANES["cu12"], facts))


def test_all_broken_clauses_are_told_at_once() -> None:
    assert len(contract_problems(LANES["cu13"], Facts(driver_version="550.163.01", python="3.13", glibc="2.31"))) == 3


@pytest.mark.parametrize("lane", LANES.values(), ids=lambda lane: lane.name)
def test_the_memory_plan_knows_the_engine_of_each_lane(lane: Lane) -> None:
    rules, warnings = rules_of(lane.engine_version)
    assert rules.verified and not warnings


def test_the_newest_lane_is_the_newest_release_that_the_plan_knows() -> None:
    newest = max((lane.engine_version for lane in LANES.values()), key=release_of)
    assert newest == NEWEST and release_of(TABLE[-1].first) <= release_of(NEWEST)


def test_the_option_names_of_the_newest_lane_are_known() -> None:
    assert max(BY_VERSION, key=release_of) == NEWEST
