# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: each error names file, field and value, and no number comes from a guess."""

from __future__ import annotations

import copy
import typing as t

import pytest
from plan_world import CONFIGS, SEED, inputs, outcome

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._plan_core import Card, evaluate
from ansible_collections.kpro.llm.plugins.module_utils._plan_model import model_of
from ansible_collections.kpro.llm.plugins.module_utils._plan_request import Request, planned

TWO = (Card(49140, 48691), Card(49140, 48691))


def config(**changes: t.Any) -> dict[str, t.Any]:
    """A copy of a config with fields of its text part changed; None removes one."""
    made = copy.deepcopy(CONFIGS["qwen3.6-27b"])
    for name, value in changes.items():
        made["text_config"][name] = value
        if value is None:
            del made["text_config"][name]
    return made


def plan_of(**request: t.Any) -> dict[str, t.Any]:
    given = {"config": config(), "where": "m/config.json", "entries": (), "cards": TWO, "version": "0.5.23", "args": {"tp_size": 2}, **request}
    return planned(Request(**given))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"config": {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1"}}, ["m/config.json", "FalconH1ForCausalLM", "not modelled"]),
        ({"config": {"model_type": "qwen3_5"}}, ["m/config.json", "architectures", "missing"]),
        ({"config": {}}, ["m/config.json", "no model configuration"]),
        ({"config": config(hidden_size=None)}, ["m/config.json (text_config)", "hidden_size", "missing"]),
        ({"config": config(linear_key_head_dim="wide")}, ["linear_key_head_dim", "'wide'"]),
        ({"config": config(num_hidden_layers=0)}, ["num_hidden_layers", "0", "at least 1"]),
        ({"config": config(layer_types=["full_attention"])}, ["layer_types", "1 entries for 64 layers"]),
        ({"config": config(partial_rotary_factor=3)}, ["partial_rotary_factor", "3"]),
        ({"config": config(mamba_ssm_dtype="int8")}, ["mamba_ssm_dtype", "int8"]),
        ({"config": config(dtype="float8")}, ["dtype", "float8"]),
        ({"args": {"tp_size": 3}, "cards": (*TWO, Card(49140, 48691))}, ["num_key_value_heads", "4", "tp_size 3"]),
        ({"args": {"tp_size": 5}, "cards": TWO * 3}, ["divide"]),
        ({"args": {"tp_size": 4}}, ["tp_size is 4", "number of GPUs is 2"]),
        ({"cards": ()}, ["gpus", "no GPU"]),
        ({"cards": (Card(49140, 48691), Card(24564, 24063))}, ["unequal cards", "24564 MiB", "49140 MiB"]),
        ({"cards": (Card(49140, 49141), Card(49140, 48691))}, ["GPU 0", "free_mib 49141", "total_mib 49140"]),
        ({"args": {"tp_size": 2, "mem_fraction_static": 1.0}}, ["mem_fraction_static", "1.0", "outside (0, 1)"]),
        ({"args": {"tp_size": 2, "mem_fraction_static": -0.1}}, ["mem_fraction_static", "-0.1"]),
        ({"args": {"tp_size": 2, "mem_fraction_static": "much"}}, ["mem_fraction_static", "'much'"]),
        ({"args": {"tp_sise": 2}}, ["tp_sise", "tp_size"]),
        ({"args": {"max_running_request": 8}}, ["max_running_request", "'max_running_requests'"]),
        ({"args": {"zzz": 8}}, ["zzz", "no option of that name"]),
        ({"args": {"tp_size": 2, "tensor_parallel_size": 2}}, ["tensor_parallel_size", "twice"]),
        ({"args": {"tp_size": 2, "max_running_requests": 0}}, ["max_running_requests", "0", "at least 1"]),
        ({"args": {"tp_size": 2, "disable_radix_cache": "perhaps"}}, ["disable_radix_cache", "'perhaps'"]),
        ({"args": {"tp_size": 2, "kv_cache_dtype": "fp4_e2m1"}}, ["kv_cache_dtype", "fp4_e2m1", "not modelled"]),
        ({"args": {"tp_size": 2, "speculative_algorithm": "EAGLE3"}}, ["speculative_algorithm", "EAGLE3", "not modelled"]),
        ({"args": {"tp_size": 2, "pp_size": 2}}, ["pp_size", "2", "not modelled"]),
        ({"args": {"tp_size": 2, "lora_paths": ["a=b"]}}, ["lora_paths", "not modelled"]),
        ({"args": {"tp_size": 2, "cpu_offload_gb": 8}}, ["cpu_offload_gb", "8"]),
        ({"args": {"tp_size": 2, "dp_size": 2}}, ["dp_size", "2"]),
        ({"args": {"tp_size": 2, "quantization": "fp8"}}, ["quantization", "fp8", "full weights are allocated first"]),
        ({"version": "newest"}, ["sglang_version", "'newest'"]),
        ({"version": "0.5.8"}, ["0.5.8", "from 0.5.9 on"]),
        ({"weights_gib": -3.0}, ["weights_gib", "-3.0"]),
        ({"free_before_gib": 0.0}, ["free_before_load_gib", "0.0"]),
        ({"config": CONFIGS["qwen3-14b"], "args": {"speculative_algorithm": "NEXTN"}}, ["mtp_num_hidden_layers"]),
        ({"config": CONFIGS["qwen3.8-27b-nvfp4"], "weights_gib": 20.0}, ["kv_cache_dtype", "auto"]),
        ({"config": CONFIGS["kimi-k2.5-mla"], "weights_gib": 20.0}, ["mem_fraction_static", "latent attention"]),
        ({"cards": (Card(4096, 4000),) * 2}, ["mem_fraction_static", "4096 MiB"]),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_the_error_names_what_is_wrong(request_: dict[str, t.Any], words: list[str]) -> None:
    with pytest.raises(KproError) as error:
        plan_of(**request_)
    for word in words:
        assert word in error.value.sentence


def test_options_may_come_as_text_as_ansible_gives_them() -> None:
    as_text = {name: str(value) for name, value in SEED.items()}
    assert outcome(**as_text, disable_radix_cache="no").sizing == outcome(**SEED).sizing


def test_long_names_with_dashes_and_old_names_are_taken() -> None:
    assert inputs("0.5.23", **{"--tensor-parallel-size": 2, "mamba_scheduler_strategy": "no_buffer"}).options.tp_size == 2
    assert inputs("0.5.23", mamba_scheduler_strategy="no_buffer").options.mamba_radix_cache_strategy == "no_buffer"
    assert inputs("0.5.9", cuda_graph_max_bs_decode=4).options.cuda_graph_max_bs_decode == 4


def test_options_that_do_not_concern_memory_are_kept() -> None:
    assert dict(inputs(tool_call_parser="qwen3_coder", enable_metrics=True).options.rest) == {"tool_call_parser": "qwen3_coder", "enable_metrics": True}


def test_values_that_change_nothing_are_no_reason_to_refuse() -> None:
    assert evaluate(inputs(tp_size=2, pp_size=1, cpu_offload_gb=0, disaggregation_mode="null", load_format="auto")).boots


def test_a_version_newer_than_all_is_planned_and_marked() -> None:
    result = plan_of(version="0.6.1")
    assert not result["verified"] and any("newer than 0.5.23" in note for note in result["notes"])
    assert plan_of()["verified"] and not any("newer" in note for note in plan_of()["notes"])


def test_a_config_without_text_part_is_read_the_same() -> None:
    flat = {**CONFIGS["qwen3.6-27b"]["text_config"], "architectures": ["Qwen3_5ForCausalLM"]}
    assert model_of(flat).full_layers == 16 and model_of(flat).linear == model_of(CONFIGS["qwen3.6-27b"]).linear


def test_layer_types_and_interval_agree() -> None:
    types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16
    assert model_of(config(layer_types=types)) == model_of(CONFIGS["qwen3.6-27b"])


def test_rope_parameters_may_stand_in_a_section_of_their_own() -> None:
    made = config(partial_rotary_factor=None, rope_parameters={"rope_theta": 10_000_000, "partial_rotary_factor": 0.25})
    assert model_of(made).rotary_dim == 64
