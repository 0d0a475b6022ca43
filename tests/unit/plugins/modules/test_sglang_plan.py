# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module from options to result; GPUs of the target come from a stand-in nvidia-smi on PATH."""

from __future__ import annotations

import json
import os
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from sglang_standins import Ended, run_module

from ansible_collections.kpro.llm.plugins.doc_fragments import plan_inputs
from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.options import rung_texts
from ansible_collections.kpro.llm.plugins.module_utils._vram.target_edge import check_system
from ansible_collections.kpro.llm.plugins.modules import sglang_plan

SEED: dict[str, t.Any] = {
    "tp_size": 2,
    "mem_fraction_static": 0.85,
    "context_length": 65536,
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def plan(**options: t.Any) -> Ended:
    defaults = {"model_profile": "Qwen/Qwen3.6-27B", "sglang_version": "0.5.9", "args": SEED}
    return run_module(sglang_plan.main, **{name: value for name, value in {**defaults, **options}.items() if value is not None})


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., None]:
    """Makes nvidia-smi answer for two A6000 with so much free memory each."""

    def install(*free_mib: int) -> None:
        rows = [
            f"{index}, GPU-{index}, NVIDIA RTX A6000, 00000000:0{index}:00.0, 49140, {49140 - free}, {free}, 8.6, Enabled, Disabled, 300.00, 580.173.02"
            for index, free in enumerate(free_mib)
        ]
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable} -SE\nprint({chr(10).join(rows)!r})\n", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_the_founding_case_as_a_task_sees_it() -> None:
    ended = plan(gpu_type="a6000", gpu_count=2, free_before_load_gib=46.9)
    result = ended.result
    assert ended.rc == 0 and result["verdict"] == "FAIL" and not result["changed"]
    assert result["cause"]["kind"] == "state_copies" and "context_length" in result["cause"]["irrelevant"]
    assert result["advice"][0]["to"] == 8 and result["advice"][0]["predicted"]["max_total_num_tokens"] > 370_000
    assert any("set to 48" in str(text) for text in result["notes"])


def test_it_changes_nothing_in_check_mode_too() -> None:
    wet, dry = plan(gpu_type="a6000", gpu_count=2), plan(gpu_type="a6000", gpu_count=2, _ansible_check_mode=True)
    assert wet.result == dry.result


def test_the_gpus_of_the_target_are_read(cards: t.Callable[..., None]) -> None:
    cards(48_691, 48_691)
    result = plan(sglang_version="0.5.23").result
    assert [gpu["name"] for gpu in result["gpus"]] == ["RTX A6000", "RTX A6000"]
    assert result["free_before_load_gib"] == pytest.approx(46.9, abs=0.01) and result["verdict"] == "OK"


def test_memory_that_something_else_holds_is_named(cards: t.Callable[..., None]) -> None:
    cards(48_691, 30_691)
    result = plan(sglang_version="0.5.23").result
    assert result["verdict"] == "FAIL" and result["cause"]["kind"] == "gpus_unbalanced" and "GPU 1" in result["cause"]["message"]
    assert any("GPU 1 has 30.0 GiB free, 17.6 GiB less than an idle card" in note for note in result["notes"])


def test_a_target_without_a_gpu_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = plan()
    assert ended.rc == 1 and "GPUs of the target" in ended.result["msg"] and "gpu_type" in ended.result["msg"]


def test_a_model_folder_is_read(tmp_path: Path) -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
    config |= {"head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 40960}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    options = {"model_profile": None, "model_path": str(tmp_path), "args": {"mem_fraction_static": 0.8}, "gpus": [{"total_mib": 16376, "free_mib": 15900}]}
    assert plan(**options).result["weights_gib"] == pytest.approx(1.13, abs=0.01)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 4)
    broken = plan(**options)
    assert broken.rc == 1 and str(tmp_path / "model.safetensors") in broken.result["msg"]


def test_free_memory_of_given_gpus_defaults_to_an_idle_card() -> None:
    idle = plan(gpus=[{"total_mib": 49140, "name": "RTX A6000"}] * 2).result
    typed = plan(gpu_type="a6000", gpu_count=2).result
    assert idle["free_before_load_gib"] == typed["free_before_load_gib"]


def test_a_goal_gives_what_to_start_with() -> None:
    goal = {"context_tokens": 65536, "concurrent_requests": 8, "speculation": "preferred", "prefix_cache": True}
    result = plan(sglang_version="0.5.23", args={}, gpu_type="a6000", gpu_count=2, goal=goal).result
    assert result["goal"]["satisfied"] and result["resolved_args"]["max_running_requests"] == 8


def test_a_goal_without_keys_takes_the_options() -> None:
    result = plan(sglang_version="0.5.23", gpu_type="a6000", gpu_count=2, args={"tp_size": 2, "context_length": 32768}, goal={}).result
    assert result["goal"]["satisfied"] and result["resolved_args"]["context_length"] == 32768


def test_a_report_is_a_page_and_a_table() -> None:
    result = plan(gpu_type="a6000", gpu_count=2, report=True, title="qwen").result
    assert result["html"].startswith("<!DOCTYPE html>") and result["table"][0] == "qwen"


def test_a_log_is_held_against_the_plan() -> None:
    log = "max_total_num_tokens=100000, max_running_requests=7, context_len=65536\n"
    result = plan(sglang_version="0.5.23", gpu_type="a6000", gpu_count=2, log=log).result
    tokens = next(item for item in result["deviations"] if item["name"] == "cache tokens")
    assert tokens["warning"] and tokens["logged"] == 100000
    assert any("planned 191,7" in str(text) and "100,000" in str(text) for text in result["notes"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"args": {"mem_fraction_statik": 0.8}}, "mem_fraction_static"),
        ({"args": {"mem_fraction_static": 1.5}}, "outside (0, 1)"),
        ({"gpu_type": "voodoo2"}, "voodoo2"),
        ({"gpu_count": 0}, "option gpu_count: the value 0"),
        ({"model_profile": "gpt-2"}, "no profile 'gpt-2'"),
        ({"model_config": {"architectures": ["Nope"]}, "model_profile": None}, "option model_config"),
        ({"gpus": [{"total_mib": 100, "free_mib": 200}] * 2, "gpu_type": None}, "free_mib 200"),
        ({"goal": {"context_tokens": 10**7}}, "above the model's"),
        ({"model_path": "/nowhere"}, "mutually exclusive"),
        ({"model_profile": None}, "one of the following"),
    ],
)
def test_bad_input_ends_in_one_sentence(options: dict[str, t.Any], words: str) -> None:
    ended = plan(**{"gpu_type": "a6000", "gpu_count": 2, **options})
    assert ended.rc == 1 and words in ended.result["msg"] and "Traceback" not in str(ended.result)


def test_options_and_documentation_agree() -> None:
    documented = {**yaml.safe_load(sglang_plan.DOCUMENTATION)["options"], **yaml.safe_load(plan_inputs.ModuleDocFragment.DOCUMENTATION)["options"]}
    spec = sglang_plan.argument_spec()
    assert set(documented) == set(spec)
    assert set(documented["goal"]["suboptions"]) == set(spec["goal"]["options"])
    result = plan(gpu_type="a6000", gpu_count=2, report=True, log="", goal={}).result
    result |= plan(gpu_type="a6000", gpu_count=2, profiles=[{"name": "plain", "options": {}}]).result
    assert set(documented["profiles"]["suboptions"]) == set(spec["profiles"]["options"])
    returned = set(yaml.safe_load(sglang_plan.RETURN))
    assert returned == set(result) - {"changed", "warnings", "invocation"}


def test_a_goal_is_something_that_the_service_can_render() -> None:
    goal = {"context_tokens": 65536, "concurrent_requests": 8, "speculation": "required", "prefix_cache": True}
    result = plan(sglang_version="0.5.10.post1", args={}, gpu_type="a6000", gpu_count=2, goal=goal).result
    row = result["rungs"][result["rung"]]
    assert row["environment"] == {"SGLANG_ENABLE_SPEC_V2": "1"} and not row["passed_over"]
    assert "tp_size" not in row["options"] and row["options"]["max_running_requests"] == 8
    text = rung_texts("tp-size: 2\n@KPRO_OPTIONS@\n", result["rungs"], {}, "0.5.10.post1")[0]
    assert "mem-fraction-static: " in text and "max-mamba-cache-size: 40" in text and "mamba-ssm-dtype: " in text


def test_a_rung_may_have_a_goal() -> None:
    rungs = [
        {"name": "eight", "options": {"mamba_ssm_dtype": "float32"}, "goal": {"context_tokens": 65536, "concurrent_requests": 8, "speculation": "required"}}
    ]
    result = plan(sglang_version="0.5.23", args={"tp_size": 2}, gpu_type="a6000", gpu_count=2, profiles=[*rungs, {"name": "plain", "options": {}}]).result
    assert result["rung"] == 0 and result["goal"]["satisfied"]
    assert (result["rungs"][0]["options"]["max_running_requests"], result["rungs"][0]["options"]["speculative_algorithm"]) == (8, "NEXTN")
    assert "speculative_algorithm" not in result["rungs"][1]["options"]
    with pytest.raises(KproError, match="its goal needs the memory plan"):
        rung_texts("@KPRO_OPTIONS@", rungs, {}, "0.5.23")


def test_what_was_given_up_is_a_warning_of_the_task() -> None:
    goal = {"context_tokens": 262144, "concurrent_requests": 32, "speculation": "off"}
    gpus = {"gpu_type": "a6000", "gpu_count": 2, "model_profile": "Qwen/Qwen3.6-27B", "sglang_version": "0.5.23"}
    params = {**dict.fromkeys(sglang_plan.argument_spec()), **gpus, "args": {"tp_size": 2}, "environment": {}}
    for asked in ({"goal": goal}, {"profiles": [{"name": "x", "options": {}, "goal": goal}]}):
        result = sglang_plan.plan({**params, **asked}, False)
        assert result["warnings"][-1] == f"given up for the goal: {result['goal']['given_up'][-1]}"


@pytest.mark.parametrize(
    ("goal", "words"),
    [({"context": 1}, "rung odd: option goal, key context: there is no such key"), ({"context_tokens": "many"}, "key context_tokens: the value 'many'")],
)
def test_a_wrong_goal_of_a_rung_is_named_with_the_rung(goal: dict[str, t.Any], words: str) -> None:
    ended = plan(gpu_type="a6000", gpu_count=2, profiles=[{"name": "odd", "options": {}, "goal": goal}])
    assert ended.rc == 1 and words in ended.result["msg"]


def test_an_error_that_is_no_rungs_is_not_put_down_to_one() -> None:
    for options, words in (({"sglang_version": "abc"}, "option sglang_version: 'abc'"), ({"gpu_count": 1}, "option tp_size: tp_size is 2")):
        ended = plan(**{"gpu_type": "a6000", "gpu_count": 2, "profiles": LADDER, **options})
        assert ended.rc == 1 and ended.result["msg"].startswith(words)


def test_a_card_whose_memory_the_driver_does_not_tell_is_not_guessed(cards: t.Callable[..., None], tmp_path: Path) -> None:
    cards(48_691)
    program = tmp_path / "nvidia-smi"
    program.write_text(program.read_text(encoding="utf-8").replace(", 48691, ", ", [N/A], "), encoding="utf-8")
    ended = plan(args={})
    assert ended.rc == 1 and "GPU 0 of the target: the driver does not tell its free_mib" in ended.result["msg"]


@pytest.mark.parametrize("kernel", ["5.15.167.4-microsoft-standard-WSL2", "6.1.0-18-amd64"])
def test_memory_that_the_system_hides_is_not_counted_on(kernel: str) -> None:
    if "microsoft" not in kernel:
        return check_system(kernel)
    with pytest.raises(KproError, match="WSL holds back memory"):
        check_system(kernel)


LADDER = [
    {"name": "as it was", "options": {}},
    {"name": "eight requests", "options": {"max-running-requests": 8}},
    {"name": "plain", "options": {name: None for name in SEED if name.startswith("speculative")}},
]


def test_the_plan_picks_the_first_rung_that_fits_and_says_why_the_others_do_not() -> None:
    result = plan(gpu_type="a6000", gpu_count=2, profiles=LADDER, report=True).result
    assert (result["rung"], result["verdict"]) == (1, "OK")
    assert [(row["name"], row["verdict"], bool(row["passed_over"])) for row in result["rungs"]] == [
        ("as it was", "FAIL", True),
        ("eight requests", "OK", False),
        ("plain", "OK", False),
    ]
    assert "implicit limit of 48 requests" in result["rungs"][0]["passed_over"] and "'as it was' is passed over" in result["notes"][0]
    options = result["rungs"][1]["options"]
    assert options["max_running_requests"] == 8 and "tp_size" not in options
    assert "speculative_algorithm" not in result["rungs"][2]["options"]
    assert any(line.lstrip().startswith("> 1: eight requests") for line in result["table"])
    # What a rung is started with gives its plan again.
    again = plan(gpu_type="a6000", gpu_count=2, args={"tp_size": 2, **options}).result
    assert again["max_total_num_tokens"] == result["max_total_num_tokens"]


def test_a_ladder_without_a_rung_that_fits_takes_one_that_starts_else_the_first() -> None:
    short = {"name": "short", "options": {"max_running_requests": 39}}
    assert plan(gpu_type="a6000", gpu_count=2, profiles=[LADDER[0], short]).result["rung"] == 1
    result = plan(gpu_type="a6000", gpu_count=2, profiles=[LADDER[0]]).result
    assert (result["rung"], result["verdict"]) == (0, "FAIL")


def test_a_wrong_option_of_a_rung_is_named_with_the_rung() -> None:
    ended = plan(gpu_type="a6000", gpu_count=2, profiles=[{"name": "odd", "options": {"context_lenght": 1}}])
    assert ended.rc == 1 and "odd" in ended.result["msg"] and "context_length" in ended.result["msg"]
