# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model configurations as data, for a plan before anything is downloaded.

Shapes as published in the models' config.json: only the fields that decide about memory. Qwen3.5-27B, Qwen3.6-27B and
Qwen3.8-27B have the same shape; start-up logs confirm it (weights 51.05 GiB, head 5.53 GiB, 146.81 MiB of state a slot).
The expert sizes of Qwen3.6-35B-A3B are not confirmed by a log.
"""

from __future__ import annotations

import typing as t

from .._core.errors import KproError

_QWEN_27B: dict[str, t.Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
        "max_position_embeddings": 262144,
        "partial_rotary_factor": 0.25,
        "dtype": "bfloat16",
        "intermediate_size": 17408,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
        "out_hidden_size": 5120,
    },
}

_QWEN_35B_A3B: dict[str, t.Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
        "max_position_embeddings": 262144,
        "partial_rotary_factor": 0.25,
        "dtype": "bfloat16",
        "num_experts": 256,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
        "out_hidden_size": 2048,
    },
}

_BLOCK_FP8: dict[str, t.Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}

PROFILES: dict[str, dict[str, t.Any]] = {
    "Qwen/Qwen3.5-27B": _QWEN_27B,
    "Qwen/Qwen3.6-27B": _QWEN_27B,
    "Qwen/Qwen3.6-27B-FP8": {**_QWEN_27B, "quantization_config": _BLOCK_FP8},
    "Qwen/Qwen3.8-27B": _QWEN_27B,
    "Qwen/Qwen3.6-35B-A3B": _QWEN_35B_A3B,
}


def config_of(name: str) -> dict[str, t.Any]:
    """Return the configuration of a model by its repository name, with or without the owner.

    :raises KproError: for a model without a profile.
    """
    for known, config in PROFILES.items():
        if name.strip("/").lower() in (known.lower(), known.split("/")[1].lower()):
            return config
    known_names = ", ".join(PROFILES)
    remedy = f"Known are {known_names}; or give model_config or model_path"
    raise KproError("option model_profile", f"there is no profile {name!r}", remedy, field="model_profile", value=name)
