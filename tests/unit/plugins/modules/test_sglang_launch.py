# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module from options to result."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
import yaml
from sglang_standins import Ended, run_module

from ansible_collections.kpro.llm.plugins.module_utils._launch.answer_edge import SPEC, needs_files
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of
from ansible_collections.kpro.llm.plugins.modules import sglang_launch

QWEN = "Qwen/Qwen3.6-27B"
OPTIONS = {"context_length": 65536, "mem_fraction_static": 0.85, "max_running_requests": 8, "mamba_ssm_dtype": "float32"}
A6000 = {"uuid": "GPU-a", "name": "NVIDIA RTX A6000", "memory_mib": 49140, "compute_capability": "8.6", "bus_id": "0000:01:00.0", "ecc": None}
PAIR = [A6000, {**A6000, "uuid": "GPU-b"}]


def launch(**options: t.Any) -> Ended:
    defaults = {"lane": "cu13", "gpus": PAIR, "model_profile": QWEN, "options": OPTIONS}
    return run_module(sglang_launch.main, **{name: value for name, value in {**defaults, **options}.items() if value is not None})


def test_records_of_gpu_info_are_taken_as_they_are() -> None:
    result = launch().result
    assert (result["verdict"], result["tp_size"], [gpu["uuid"] for gpu in result["gpus"]]) == ("OK", 2, ["GPU-a", "GPU-b"])
    assert result["changed"] is False and "attention_backend" in result["rungs"][0]["options"]


def test_the_first_targets_numbers_are_those_with_the_cards_own_reserve(pytestconfig: pytest.Config) -> None:
    """Two A6000, the shipped options: the preflight said 178,472 and 244,332 tokens, the role 176,859 and 244,967.

    The second rung has 366,480 since it keeps slots of state for its requests only.
    """
    shipped = yaml.safe_load((pytestconfig.rootpath / "inventories" / "kpro5").read_text(encoding="utf-8"))["llm_container"]["vars"]
    result = launch(options=shipped["sglang_server__options"], profiles=shipped["sglang_server__profiles"], tp_size="2").result
    assert [row["max_total_num_tokens"] for row in result["rungs"][:2]] == [178472, 366480]


@pytest.mark.parametrize("memory_mib", [122502, None])
def test_a_gpu_that_shares_its_memory_is_refused_whether_or_not_the_driver_tells_it(memory_mib: int | None) -> None:
    ended = launch(gpus=[{"uuid": "GPU-a", "name": "NVIDIA GB10", "memory_mib": memory_mib}])
    assert ended.rc == 1 and "GB10: it shares its memory" in ended.result["msg"]
    assert launch(gpus=[{"uuid": "GPU-a", "name": "NVIDIA GB10", "memory_mib": memory_mib}], plan="off").rc == 0


def test_what_could_not_start_is_refused_with_what_did_not_happen() -> None:
    small = [{**gpu, "memory_mib": 24564} for gpu in PAIR]
    assert launch(gpus=small).result["verdict"] == "FAIL"
    ended = launch(gpus=small, refuse="nothing was changed")
    assert ended.rc == 1
    assert ended.result["msg"].startswith("The engine would not start, so nothing was changed: ") and "What helps, as computed: " in ended.result["msg"]


def test_the_count_of_a_type_may_be_what_the_inventory_says_of_the_container() -> None:
    def gpus(**options: t.Any) -> int:
        return len(launch(gpus=None, gpu_type="a6000", **options).result["gpus"])

    assert (gpus(gpu_count=2), gpus(gpu_count="2"), gpus(gpu_count=["GPU-a", "GPU-b"]), gpus(gpu_count="all", tp_size="2")) == (2, 2, 2, 2)
    assert gpus() == gpus(gpu_count="all") == 1
    assert "is no number of GPUs" in launch(gpus=None, gpu_type="a6000", gpu_count="many").result["msg"]


def test_an_engine_of_no_lane_gets_what_it_is_given_and_nothing_else() -> None:
    result = launch(lane="", engine_version="0.5.23", plan="off").result
    assert result["rungs"][0]["options"] == {"enable_metrics": True, **OPTIONS}
    assert (result["kernels"], result["environment"], result["engine_version"]) == ("", {}, "0.5.23")
    assert "neither a lane nor engine_version" in launch(lane="").result["msg"]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([7], "7 is no record of a GPU"),
        ([{"name": "x", "memory_mib": "much"}], "GPU x: its memory_mib is 'much'"),
        ([{"uuid": "GPU-a", "memory_mib": 0}], "GPU GPU-a: its memory_mib is 0"),
    ],
)
def test_what_is_no_gpu_is_named(gpus: list[t.Any], words: str) -> None:
    ended = launch(gpus=gpus)
    assert ended.rc == 1 and words in ended.result["msg"]


def test_options_of_the_first_release_still_work_and_the_new_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    old = {
        "gpu_memory_mib": [49140, 49140],
        "attention": {"options": {"attention_backend": "triton"}, "fallback": {"sampling_backend": "pytorch"}},
        "hardware": {"options": {"disable_custom_all_reduce": True}, "environment": {"NCCL_P2P_DISABLE": "1"}, "given_up": ["direct copies"]},
    }
    ended = launch(gpus=["GPU-a", "GPU-b"], replaced=old)
    result = ended.result
    assert ended.rc == 0 and result["verdict"] == "OK" and result["given_up"] == ["direct copies"]
    first, last = result["rungs"]
    assert (first["options"]["attention_backend"], first["options"]["disable_custom_all_reduce"]) == ("triton", True)
    assert (last["name"], last["options"]["sampling_backend"]) == ("other attention kernels", "pytorch")
    assert result["environment"]["NCCL_P2P_DISABLE"] == "1"
    warned = capsys.readouterr().err
    assert all(f"{name} (role sglang_server: sglang_server__{name}) works in this release only" in warned for name in old) and "sglang_server__gpus" in warned
    launch(replaced={"gpu_memory_mib": [], "attention": {}, "hardware": {}})
    assert "this release only" not in capsys.readouterr().err


def test_the_users_word_wins_over_old_names() -> None:
    old = {"attention": {"options": {"attention_backend": "triton"}, "fallback": {"attention_backend": "triton"}}, "gpu_memory_mib": [1, 1]}
    result = launch(options={**OPTIONS, "attention_backend": "flashinfer"}, replaced=old).result
    assert result["rungs"][0]["options"]["attention_backend"] == "flashinfer" and len(result["rungs"]) == 1 and result["verdict"] == "OK"
    assert "there was no such option" in launch(replaced={"colour": "green"}).result["msg"]


def test_the_target_is_asked_only_where_its_files_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(QWEN)), encoding="utf-8")

    def there(**options: t.Any) -> bool:
        spec = {name: option.get("default") for name, option in SPEC.items()}
        return needs_files({**spec, "lane": "cu13", "gpus": PAIR, "model_path": str(tmp_path), **options})

    assert there()
    assert not any((there(plan="off"), there(lane="cpu"), there(gpus=["GPU-a"]), there(gpus=[]), there(model_path=None)))
    result = launch(model_profile=None, model_path=str(tmp_path)).result
    assert result["rungs"] == launch().result["rungs"]


def test_a_report_needs_a_plan() -> None:
    assert launch(report=True, title="kpro5").result["html"]
    assert "the memory of GPU-a is not known" in launch(report=True, gpus=["GPU-a"]).result["msg"]


def test_a_log_is_set_beside_the_plan_of_its_rung() -> None:
    result = launch(log="Load weight begin. avail mem=46.90 GB\n").result
    assert all(set(row) >= {"name", "planned", "logged", "percent", "warning"} for row in result["deviations"])
    assert "the ladder has" in launch(log="", rung=9).result["msg"]


def test_options_and_documentation_agree() -> None:
    documented = yaml.safe_load(sglang_launch.DOCUMENTATION)["options"]
    assert set(documented) == set(SPEC)
    assert set(documented["goal"]["suboptions"]) == set(SPEC["goal"]["options"])
    assert set(documented["profiles"]["suboptions"]) == set(SPEC["profiles"]["options"])
    assert {name: option.get("default") for name, option in documented.items()} == {name: option.get("default") for name, option in SPEC.items()}
    returned = launch(report=True, log="").result
    assert set(yaml.safe_load(sglang_launch.RETURN)) == set(returned) - {"changed", "warnings", "invocation"}
