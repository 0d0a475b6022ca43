# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options and environment that change the memory in ways that the plan does not model, as data.

Found by reading which options and variables the engine's own sizing, loading and default-choosing code asks for (0.5.9, 0.5.10.post1, 0.5.23).
"""

from __future__ import annotations

import re
import typing as t

from .._core.errors import KproError
from .shown import shown

REMEDY = "The planner makes no guess. Plan without it, or start without a plan (sglang_server__plan: off)"

# Attention that leaves the page size alone; others force one of their own (_mla_backend_page_constraints, _fa4_page_constraint).
PLAIN_ATTENTION = ("fa3", "flashinfer", "triton", "torch_native", "flex_attention")

# Given another value than these, an option is refused.
OPTIONS: dict[str, tuple[t.Any, ...]] = {
    "base_gpu_id": (0,),
    "config": (),
    "cpu_offload_gb": (0,),
    "custom_weight_loader": ([],),
    "dcp_size": (1,),
    "decode_attention_backend": PLAIN_ATTENTION,
    "decoupled_spec_role": ("null",),
    "decrypted_config_file": (),
    "decrypted_draft_config_file": (),
    "device": ("cuda",),
    "disaggregation_mode": ("null",),
    "dllm_algorithm": (),
    "dtype": ("auto", "half", "float16", "bfloat16"),
    "dwdp_size": (1,),
    "enable_dense_mlp_attn_tp": (False,),
    "enable_double_sparsity": (False,),
    "enable_dp_lm_head": (False,),
    "enable_hisparse": (False,),
    "enable_int8_mamba_checkpoint": (False,),
    "enable_kv_cache_sharding": (False,),
    "enable_linear_replayssm": (False,),
    "enable_linear_replayssm_spec": (False,),
    "enable_lora": (False,),
    "enable_mis": (False,),
    "enable_multi_layer_eagle": (False,),
    "enable_page_major_kv_layout": (False,),
    "enable_paged_experts": (False,),
    "enable_pd_role_switch": (False,),
    "enable_pdmux": (False,),
    "enable_shared_experts_attn_tp": (False,),
    "enable_symm_mem": (False,),
    "enable_two_batch_overlap": (False,),
    "enable_unified_cache_external_linker": (False,),
    "enable_unified_memory": (False,),
    "encoder_only": (False,),
    "ep_num_redundant_experts": (0,),
    "gpu_id_step": (1,),
    "is_embedding": (False,),
    "json_model_override_args": ("{}", ""),
    "kt_weight_path": (),
    "load_format": ("auto", "safetensors"),
    "lora_paths": ([],),
    "mm_enable_dp_encoder": (False,),
    "model_impl": ("auto", "sglang"),
    "modelopt_quant": (),
    "moe_a2a_backend": ("none",),
    "moe_dense_tp_size": (),
    "moe_dp_size": (1,),
    "multi_item_scoring_delimiter": (),
    "nnodes": (1,),
    "offload_group_size": (-1, 0),
    "ple_offload_embedding": (False,),
    "pp_size": (1,),
    "prefill_attention_backend": PLAIN_ATTENTION,
    "prefill_only_disable_kv_cache": (False,),
    "quantize_and_serve": (False,),
    "rl_quant_profile": (),
    "shared_experts_tp_size": (),
    "speculative_adaptive": (False,),
    "speculative_draft_attention_backend": PLAIN_ATTENTION,
    "speculative_draft_kv_cache_dtype": ("auto",),
    "speculative_draft_model_path": (),
    "speculative_draft_model_quantization": (),
    "speculative_draft_window_size": (),
    "speculative_token_map": (),
    "torchao_config": ("",),
    "uno_lora_path": (),
    "weight_cache_mode": ("off",),
}

# These decide how much the automatic fraction leaves, which is modelled without them.
DECIDE_FRACTION = frozenset(
    {
        "cuda_graph_backend_decode",
        "cuda_graph_backend_prefill",
        "cuda_graph_bs",
        "cuda_graph_bs_decode",
        "cuda_graph_bs_prefill",
        "cuda_graph_config",
        "cuda_graph_max_bs_prefill",
        "enforce_piecewise_cuda_graph",
        "piecewise_cuda_graph_max_tokens",
        "piecewise_cuda_graph_tokens",
    }
)

# Switches of the engine's environment that change the sums.
VARIABLES = ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK")
_NUMBERS = ("SGLANG_VLM_CACHE_SIZE_MB", "SGLANG_MM_FEATURE_CACHE_MB", "SGLANG_SWA_EVICTION_INTERVAL")
_TYPES = ("SGLANG_MAMBA_SSM_DTYPE", "SGLANG_MAMBA_CONV_DTYPE")
_TRUE = ("1", "true", "yes", "on", "t", "y")


def check_option(name: str, value: t.Any) -> None:
    """Refuse an option of :data:`OPTIONS` whose value is none of those that change nothing.

    :raises KproError: naming option and value.
    """
    neutral = OPTIONS[name]
    if any(value == item for item in neutral) or shown(value).strip("'\"").lower() in {str(item).lower() for item in neutral}:
        return
    reason = f"the value {shown(value)} changes the memory in a way that is not modelled"
    raise KproError(f"option {name}", reason, REMEDY, field=name)


def check_fraction(names: t.Iterable[str]) -> None:
    """Refuse options that decide about the automatic fraction, for a start without one of its own.

    :raises KproError: naming the first.
    """
    found = sorted(DECIDE_FRACTION & set(names))
    if found:
        reason = "the engine's automatic mem_fraction_static depends on it in a way that is not modelled"
        raise KproError(f"option {found[0]}", reason, "Give mem_fraction_static", field=found[0])


def check_environment(environment: t.Mapping[str, t.Any]) -> None:
    """Refuse variables of the engine's process that are not modelled or that it could not read.

    :raises KproError: naming variable and value.
    """
    if not isinstance(environment, t.Mapping):
        raise KproError("option environment", f"it is {shown(environment)}, and must be a section of variables", field="environment")
    for name in VARIABLES:
        if switch(environment, name, False):
            reason = f"the value {environment[name]!r} changes the memory in a way that is not modelled"
            raise KproError(f"variable {name}", reason, REMEDY, field=name, value=environment[name])
    for name in _NUMBERS:
        if name in environment and not re.fullmatch(r"[0-9]{1,9}", shown(environment[name]).strip("'\"")):
            raise KproError(f"variable {name}", f"the value {shown(environment[name])} is no whole number below a thousand million", field=name)
    for name in _TYPES:
        if str(environment.get(name, "float32")) not in ("float32", "bfloat16", "float16"):
            reason = f"the value {environment[name]!r} is none of float32, bfloat16, float16"
            raise KproError(f"variable {name}", reason, field=name, value=environment[name])


def switch(environment: t.Mapping[str, t.Any], name: str, default: bool) -> bool:
    """Return whether a variable of the engine's process is on."""
    value = environment.get(name)
    return default if value is None else str(value).lower() in _TRUE
