# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: each error names file, field and value, and no number comes from a guess."""

from __future__ import annotations

import copy
import random
import typing as t

import pytest
from plan_world import CONFIGS, SEED, inputs, outcome

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import rules_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import Card
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import evaluate
from ansible_collections.kpro.llm.plugins.module_utils._vram.model import model_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.not_modelled import OPTIONS
from ansible_collections.kpro.llm.plugins.module_utils._vram.options import known_names, options_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned

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
        ({"config": {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "x"}}, ["m/config.json", "DeepseekV32ForCausalLM", "not modelled", "index"]),
        ({"config": {"model_type": "qwen3_5"}}, ["m/config.json", "architectures", "missing"]),
        ({"config": {}}, ["m/config.json", "no model configuration"]),
        ({"config": config(hidden_size=None)}, ["m/config.json (text_config)", "hidden_size", "missing"]),
        ({"config": config(linear_key_head_dim="wide")}, ["linear_key_head_dim", "'wide'"]),
        ({"config": config(num_hidden_layers=0)}, ["num_hidden_layers", "0", "at least 1"]),
        ({"config": config(layer_types=["full_attention"])}, ["layer_types", "1 entries for 64 layers"]),
        ({"config": config(layer_types=["sliding_attention"] * 64)}, ["layer_types", "'sliding_attention' for layer 0", "not modelled"]),
        ({"config": config(layer_types=["full_attention", "linear_attention"] * 32)}, ["layer_types", "'full_attention' for layer 0"]),
        ({"config": config(full_attention_interval=100)}, ["full_attention_interval", "100", "none of 64 layers"]),
        ({"config": config(full_attention_interval=None)}, ["full_attention_interval", "missing"]),
        ({"config": config(head_dim=None)}, ["head_dim", "missing"]),
        ({"config": config(num_key_value_heads=None)}, ["num_key_value_heads", "missing"]),
        ({"config": config(partial_rotary_factor=None)}, ["partial_rotary_factor", "missing"]),
        ({"config": config(attn_output_gate="yes")}, ["attn_output_gate", "'yes'", "true or false"]),
        ({"config": config(tie_word_embeddings="no")}, ["tie_word_embeddings", "'no'"]),
        ({"config": config(mtp_num_hidden_layers="one")}, ["mtp_num_hidden_layers", "'one'"]),
        (
            {"config": config(mtp_num_hidden_layers=2), "args": {"tp_size": 2, "speculative_algorithm": "NEXTN"}},
            ["mtp_num_hidden_layers", "2", "more than one"],
        ),
        ({"config": config(rope_parameters={"factor": 4})}, ["rope_parameters", "not modelled"]),
        ({"config": config(rope_scaling={"factor": "wide"})}, ["factor", "'wide'"]),
        ({"config": config(rope_scaling=[4])}, ["rope_scaling", "[4]"]),
        ({"config": {**config(), "text_config": "text"}}, ["m/config.json", "text_config", "'text'"]),
        ({"config": {**config(), "vision_config": None}}, ["vision_config", "missing"]),
        ({"config": {**config(), "vision_config": {"depth": 27}}}, ["m/config.json (vision_config)", "hidden_size", "missing"]),
        ({"config": {**config(), "quantization_config": "fp8"}}, ["quantization_config", "'fp8'"]),
        ({"config": {**config(), "quantization_config": {"quant_method": "fp8", "weight_block_size": 128}}}, ["weight_block_size", "128"]),
        ({"config": {**CONFIGS["qwen3-30b-a3b"], "decoder_sparse_step": "two"}}, ["decoder_sparse_step", "'two'"]),
        ({"config": {**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": 3}}, ["mlp_only_layers", "3", "a list"]),
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
        ({"args": {"tp_size": 2, "speculative_num_draft_tokens": 2**40}}, ["speculative_num_draft_tokens", "above 256", "not modelled"]),
        ({"args": {"tp_size": 2, "dtype": "float32"}}, ["dtype", "'float32'", "not modelled"]),
        ({"args": {"tp_size": 2, "attention_backend": "fa4"}}, ["attention_backend", "'fa4'", "not modelled"]),
        ({"args": {"tp_size": 2, "base_gpu_id": 1}}, ["base_gpu_id", "1"]),
        ({"args": {"tp_size": 2, "cuda_graph_bs_decode": [1, 2]}}, ["cuda_graph_bs_decode", "automatic mem_fraction_static", "Give mem_fraction_static"]),
        ({"args": {"tp_size": 2, "enable_deterministic_inference": True}}, ["enable_deterministic_inference", "disable_radix_cache"]),
        ({"environment": {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}}, ["variable SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "'1'", "not modelled"]),
        ({"environment": {"SGLANG_VLM_CACHE_SIZE_MB": "much"}}, ["variable SGLANG_VLM_CACHE_SIZE_MB", "'much'"]),
        ({"environment": {"SGLANG_MAMBA_CONV_DTYPE": "int8"}}, ["variable SGLANG_MAMBA_CONV_DTYPE", "'int8'"]),
        ({"cards": (Card(122_000, 121_000, "NVIDIA GB10"),), "args": {}}, ["GPU NVIDIA GB10", "shares its memory", "not modelled"]),
        ({"cards": (Card(196_608, 196_000, "AMD Instinct MI300X"),), "args": {}}, ["MI300X", "not modelled"]),
        ({"args": {"tp_size": 2, "quantization": "fp8"}}, ["quantization", "fp8", "full weights are allocated first"]),
        ({"version": "newest"}, ["sglang_version", "'newest'"]),
        ({"version": "0.5.8"}, ["0.5.8", "from 0.5.9 on"]),
        ({"weights_gib": -3.0}, ["weights_gib", "-3.0"]),
        ({"free_before_gib": 0.0}, ["free_before_load_gib", "0.0"]),
        ({"config": CONFIGS["qwen3-14b"], "args": {"speculative_algorithm": "NEXTN"}}, ["mtp_num_hidden_layers"]),
        ({"config": {**config(), "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}}, ["kv_cache_dtype", "auto"]),
        ({"config": CONFIGS["kimi-k2.5-mla"], "weights_gib": 20.0, "version": "0.5.13"}, ["mem_fraction_static", "latent attention"]),
        ({"cards": (Card(4096, 4000),) * 2}, ["mem_fraction_static", "4096 MiB"]),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_the_error_names_what_is_wrong(request_: dict[str, t.Any], words: list[str]) -> None:
    with pytest.raises(KproError) as error:
        plan_of(**request_)
    for word in words:
        assert word in error.value.sentence


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_option_that_changes_the_memory_otherwise_is_refused_unless_it_changes_nothing(name: str) -> None:
    version = next(version for version in ("0.5.23", "0.5.10.post1", "0.5.9") if name in known_names(version))
    rules, _warnings = rules_of(version)
    with pytest.raises(KproError, match=f"option {name}: the value 'other' changes the memory in a way that is not modelled") as error:
        options_of({name: "other"}, version, rules)
    assert "sglang_server__plan: off" in error.value.remedy
    for neutral in OPTIONS[name]:
        assert dict(options_of({name: neutral, "mem_fraction_static": 0.8}, version, rules).rest) == {name: neutral}


def test_what_decides_the_automatic_fraction_is_taken_with_a_given_one() -> None:
    options = inputs("0.5.23", tp_size=2, mem_fraction_static=0.8, cuda_graph_bs_decode=[1, 2]).options
    assert dict(options.rest) == {"cuda_graph_bs_decode": [1, 2]}


def test_pages_that_attention_forces_are_counted() -> None:
    def page(**args: t.Any) -> int:
        return outcome("0.5.23", tp_size=2, mem_fraction_static=0.85, **args).resolved.page

    assert [page(attention_backend="trtllm_mha"), page(attention_backend="trtllm_mha", page_size=128), page(attention_backend="fa3")] == [64, 128, 1]
    with pytest.raises(KproError, match="attention_backend: trtllm_mha changes prefix cache and page size"):
        outcome("0.5.9", tp_size=2, mem_fraction_static=0.85, attention_backend="trtllm_mha")


def test_what_a_quantised_checkpoint_keeps_in_16_bit_is_counted_layer_by_layer() -> None:
    usual = ["lm_head", "model.visual", "model.language_model.layers.0.linear_attn.in_proj_a", "model.language_model.layers.0.mlp.gate", "mtp.fc"]
    made = copy.deepcopy(CONFIGS["qwen3.6-27b-fp8"])
    made["quantization_config"]["modules_to_not_convert"] = usual
    assert plan_of(config=made)["weights_gib"] == plan_of(config=CONFIGS["qwen3.6-27b-fp8"])["weights_gib"]
    made["quantization_config"]["modules_to_not_convert"] = [*usual, "model.language_model.layers.3.self_attn"]
    # Query with gate, key, value and output of one layer on one of two GPUs, a byte more each.
    more_gib = 5120 * (24 * 2 + 2 * 4 + 24) * 256 / 2 / 2**30
    assert plan_of(config=made)["weights_gib"] == pytest.approx(plan_of(config=CONFIGS["qwen3.6-27b-fp8"])["weights_gib"] + more_gib, abs=0.01)
    assert plan_of(config=made, weights_gib=15.0)["weights_gib"] == 15.0


@pytest.mark.parametrize(
    ("rope", "fields", "context"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, {}, 4 * 40960),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, {}, 40960),
        ({"rope_type": "llama3", "factor": 8.0}, {}, 40960),
        (None, {"max_sequence_length": 8192}, 8192),
    ],
)
def test_the_longest_context_is_the_one_that_the_engine_derives(rope: t.Any, fields: dict[str, int], context: int) -> None:
    assert model_of({**CONFIGS["qwen3-14b"], "rope_scaling": rope, **fields}).max_position == context


def test_nonsense_ends_in_an_error_or_in_a_plan_and_never_in_a_traceback() -> None:
    dice = random.Random(1)
    odd: tuple[t.Any, ...] = (None, True, 0, -1, 3, 2**40, 0.5, float("nan"), "", "x", [], ["a"], {}, {"a": 1}, "auto")
    verdicts = set()
    for _number in range(600):
        made = copy.deepcopy(CONFIGS[dice.choice(sorted(CONFIGS))])
        for _times in range(dice.choice((0, 1, 1, 2))):
            section = dice.choice([made, *(value for value in made.values() if isinstance(value, dict) and value)])
            section[dice.choice([*section, "rope_scaling", "layer_types", "quantization_config"])] = copy.deepcopy(dice.choice(odd))
        args = {
            "tp_size": dice.choice((1, 2, 4)),
            dice.choice([*sorted(OPTIONS), "page_size", "chunked_prefill_size", "mem_fraction_static"]): dice.choice(odd),
        }
        request = Request(made, "c", (), (Card(49140, 48691),) * 4, dice.choice(("0.5.9", "0.5.13", "0.5.23")), args)
        goal = dice.choice((None, None, {"context_tokens": 8192, "speculation": dice.choice(("off", "preferred"))}))
        try:
            verdicts.add(planned(request, goal)["verdict"])
        except KproError as error:
            assert error.what and error.reason
    assert "OK" in verdicts


def test_options_may_come_as_text_as_ansible_gives_them() -> None:
    as_text = {name: str(value) for name, value in SEED.items()}
    assert outcome(**as_text, disable_radix_cache="no").sizing == outcome(**SEED).sizing


def test_long_names_with_dashes_and_old_names_are_taken() -> None:
    assert inputs("0.5.23", **{"--tensor-parallel-size": 2, "mamba_scheduler_strategy": "no_buffer"}).options.tp_size == 2
    assert inputs("0.5.23", mamba_scheduler_strategy="no_buffer").options.mamba_radix_cache_strategy == "no_buffer"
    assert inputs("0.5.9", cuda_graph_max_bs_decode=4).options.cuda_graph_max_bs_decode == 4


def test_options_that_do_not_concern_memory_are_kept() -> None:
    assert dict(inputs(tool_call_parser="qwen3_coder", enable_metrics=True).options.rest) == {"tool_call_parser": "qwen3_coder", "enable_metrics": True}


def test_a_senselessly_large_number_is_no_reason_to_hang() -> None:
    assert outcome("0.5.23", tp_size=2, mem_fraction_static=0.85, chunked_prefill_size=2**50).boots


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
