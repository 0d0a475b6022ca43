# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import random
import typing as t

import pytest
import yaml
from plan_world import CONFIGS

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._launch.decide import decide, deviations_of
from ansible_collections.kpro.llm.plugins.module_utils._launch.model import GpuRecord, LaunchRequest, ModelFacts
from ansible_collections.kpro.llm.plugins.module_utils._service.ladder import ATTENTION_RUNG
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import PROFILES

A6000 = GpuRecord("NVIDIA RTX A6000", 49140, "GPU-a")
QWEN = ModelFacts(CONFIGS["qwen3.6-27b"])
PAIR = LaunchRequest("auto", QWEN, (A6000, dataclasses.replace(A6000, uuid="GPU-b")), driver_version="580.173.02")


def with_(**changes: t.Any) -> LaunchRequest:
    return dataclasses.replace(PAIR, **changes)


def test_lane_and_division_follow_from_driver_and_gpus() -> None:
    launch = decide(PAIR)
    assert (launch.lane, launch.engine_version, launch.tp_size) == ("cu13", "0.5.23", 2)
    assert decide(with_(driver_version="570.1")).lane == "cu12"
    assert decide(with_(gpus=PAIR.gpus[:1])).tp_size == 1


def test_a_gpu_that_does_not_divide_the_model_stays_idle_and_is_told() -> None:
    launch = decide(with_(gpus=(*PAIR.gpus, dataclasses.replace(A6000, uuid="GPU-c"))))
    assert [gpu.uuid for gpu in launch.idle] == ["GPU-c"] and "GPU-c (idle" in launch.given_up[0]


def test_what_the_user_says_wins_over_what_follows_from_the_gpus() -> None:
    assert decide(PAIR).rungs[0].options["attention_backend"] == "flashinfer"
    launch = decide(with_(options={"attention_backend": "triton", "enable_metrics": False}))
    assert launch.rungs[0].options["attention_backend"] == "triton" and launch.rungs[0].options["enable_metrics"] is False
    assert ATTENTION_RUNG not in [rung.name for rung in launch.rungs]


def test_the_last_rung_has_other_kernels() -> None:
    profiles = [{"name": "one", "options": {"max_running_requests": 8}}, {"name": "two", "options": {"max_running_requests": 2}}]
    rungs = decide(with_(profiles=profiles)).rungs
    assert [rung.name for rung in rungs] == ["one", "two", ATTENTION_RUNG]
    assert (rungs[2].options["attention_backend"], rungs[2].options["max_running_requests"]) == ("triton", 2)


def test_copies_that_do_not_arrive_are_switched_off_and_told() -> None:
    launch = decide(with_(peers_off="GPU-a to GPU-b: other bytes arrived"))
    assert launch.environment["NCCL_P2P_DISABLE"] == "1" and launch.rungs[0].options["disable_custom_all_reduce"] is True
    assert "other bytes arrived" in launch.given_up[0]


def test_a_cpu_lane_takes_no_gpu_and_makes_no_plan() -> None:
    launch = decide(with_(lane="cpu", options={"max_running_requests": 2}))
    assert (launch.tp_size, launch.gpus, launch.verdict, launch.kernels) == (1, (), "", "")
    assert launch.rungs[0].options["device"] == "cpu" and launch.rungs[0].options["max_running_requests"] == 2
    assert launch.environment["SGLANG_USE_CPU_ENGINE"] == "1"


def test_without_a_plan_rungs_are_taken_as_they_are_given() -> None:
    launch = decide(with_(plan=False, profiles=[{"name": "one", "options": {"context_length": 4096}}]))
    assert launch.plan == {} and launch.rungs[0].options["context_length"] == 4096 and "max_total_tokens" not in launch.rungs[0].options


def test_gpus_of_unknown_memory_are_not_planned() -> None:
    assert decide(with_(gpus=(A6000, GpuRecord("", None, "GPU-b")))).verdict == ""


@pytest.mark.parametrize("changes", [{"lane": "cpu"}, {"plan": False}, {"gpus": ()}])
def test_a_goal_without_a_plan_is_refused(changes: dict[str, t.Any]) -> None:
    with pytest.raises(KproError, match="needs the memory plan"):
        decide(with_(profiles=[{"name": "one", "options": {}, "goal": {"context_tokens": 4096}}], **changes))


def test_a_gpu_that_shares_its_memory_is_refused() -> None:
    with pytest.raises(KproError, match="GB10"):
        decide(with_(gpus=(GpuRecord("NVIDIA GB10", 122502, "GPU-a"),)))


def test_a_rung_that_is_not_there_has_no_log() -> None:
    with pytest.raises(KproError, match="the ladder has"):
        deviations_of(PAIR, decide(PAIR), 7, "")


def deployments(count: int) -> t.Iterator[LaunchRequest]:
    """Yield random deployments that a person might write."""
    dice = random.Random(12)
    for _number in range(count):
        gpu = dice.choice(sorted(PROFILES))
        number = dice.choice([1, 2, 2, 4])
        lane = dice.choice(["cu13", "cu12"])
        options: dict[str, t.Any] = {"context_length": dice.choice([8192, 32768, 65536]), "max_running_requests": dice.choice([2, 8, 16])}
        if dice.random() < 0.5:
            options["mem_fraction_static"] = dice.choice([0.8, 0.85, 0.9])
        profiles = [{"name": "a", "options": {}}, {"name": "b", "options": {"context_length": 4096, "max_running_requests": 1}}] if dice.random() < 0.5 else []
        gpus = tuple(GpuRecord(f"NVIDIA {PROFILES[gpu].name}", PROFILES[gpu].total_mib, f"GPU-{index}") for index in range(number))
        yield LaunchRequest(lane, ModelFacts(CONFIGS[dice.choice(sorted(CONFIGS))]), gpus, "580.173.02", options=options, profiles=profiles)


def test_a_rung_planned_again_with_its_own_options_gives_the_same_numbers() -> None:
    """The comparison after a start plans what the service was given, which is complete."""
    compared = 0
    for request in deployments(200):
        try:
            launch = decide(request)
        except KproError:
            continue
        for rung in launch.rungs:
            again = decide(dataclasses.replace(request, options=rung.options, environment=rung.environment, profiles=(), tp_size=str(launch.tp_size)))
            shown = ("verdict", "max_total_num_tokens", "max_running_requests", "low_point_gib")
            assert {key: again.rungs[0].foretold[key] for key in shown} == {key: rung.foretold[key] for key in shown}, (request, rung.name)
            compared += 1
    assert compared > 200


def test_the_shipped_inventory_is_planned_as_it_is_started(pytestconfig: pytest.Config) -> None:
    shipped = yaml.safe_load((pytestconfig.rootpath / "inventories" / "kpro5").read_text(encoding="utf-8"))
    values = next(found for found in _mappings(shipped) if "sglang_server__profiles" in found)
    request = with_(options=values["sglang_server__options"], profiles=values["sglang_server__profiles"], tp_size=values["sglang_server__tp_size"])
    assert [rung.foretold["verdict"] for rung in decide(request).rungs][:3] == ["OK", "OK", "OK"]


def _mappings(node: t.Any) -> t.Iterator[dict[str, t.Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _mappings(value)
