# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shape of a model as its ``config.json`` gives it. PRIVATE: for use in kpro.llm only.

Sources: the model classes of SGLang 0.5.9 and 0.5.23 (models/qwen3_5.py, configs/qwen3_next.py, configs/mamba_utils.py).
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError

Config = t.Mapping[str, t.Any]

DENSE, MOE, HYBRID, HYBRID_MOE, LATENT, OPAQUE = "dense", "moe", "hybrid", "hybrid_moe", "latent", "opaque"

# What each architecture is. OPAQUE and LATENT: cache shape known, weights only from safetensors headers or a logged value.
ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": DENSE,
    "MistralForCausalLM": DENSE,
    "Qwen2ForCausalLM": DENSE,
    "Qwen3ForCausalLM": DENSE,
    "Qwen3MoeForCausalLM": MOE,
    "Qwen3NextForCausalLM": HYBRID_MOE,
    "Qwen3_5ForCausalLM": HYBRID,
    "Qwen3_5MoeForCausalLM": HYBRID_MOE,
    "Qwen3_5ForConditionalGeneration": HYBRID,
    "Qwen3_5MoeForConditionalGeneration": HYBRID_MOE,
    "LlavaForConditionalGeneration": OPAQUE,
    "KimiK25ForConditionalGeneration": LATENT,
}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True)
class Linear:
    """Linear-attention (gated delta net) layers: number and head geometry."""

    layers: int
    value_heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int


@dataclasses.dataclass(frozen=True)
class Experts:
    """Sparse feed-forward layers."""

    count: int
    intermediate: int
    shared_intermediate: int


@dataclasses.dataclass(frozen=True)
class Vision:
    """Vision tower of the Qwen3-VL family."""

    depth: int
    hidden: int
    intermediate: int
    channels: int
    patch: int
    temporal_patch: int
    merge: int
    positions: int
    deepstack: int
    out_hidden: int


@dataclasses.dataclass(frozen=True)
class Model:
    """A model's shape; numbers are counts, sizes of vectors, or bytes where the name says so."""

    architecture: str
    kind: str
    hidden: int
    layers: int
    full_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    max_position: int
    rotary_dim: int
    weight_bytes: int
    attention_bias: bool = False
    output_gate: bool = False
    latent_dim: int = 0
    linear: Linear | None = None
    experts: Experts | None = None
    vision: Vision | None = None
    vision_complexity: float = 0.0
    multimodal: bool = False
    mtp_layers: int = 0
    quantization: str = ""
    quantized_block: tuple[int, int] = (0, 0)
    ssm_dtype: str = "float32"


class _Fields:
    """Reads fields of one section of the config and names field and value when one is wrong."""

    def __init__(self, config: Config, where: str) -> None:
        self.config, self.where = config, where

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.config.get(name, default)
        if value is None:
            raise KproError(self.where, f"the field {name!r} is missing", "Give the model's own config.json, unabridged", field=name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            reason = f"the field {name!r} is {value!r}, and must be a whole number of at least {least}"
            raise KproError(self.where, reason, "Give the model's own config.json", field=name, value=value)
        return value

    def ratio(self, name: str) -> float:
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        value = self.config.get(name, rope.get(name, 1.0))
        if not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise KproError(self.where, f"the field {name!r} is {value!r}, and must be in (0, 1]", field=name, value=value)
        return float(value)


def model_of(config: Config, where: str = "config.json") -> Model:
    """Return the shape that a parsed ``config.json`` describes.

    :param where: what to call the config in an error.
    :raises KproError: for an architecture that isn't modelled and for a missing or senseless field.
    """
    if not isinstance(config, t.Mapping) or not config:
        raise KproError(where, "it holds no model configuration", "Give the parsed config.json of the model")
    architecture, kind = _architecture(config, where)
    section = config.get("text_config")
    text: Config = section if isinstance(section, t.Mapping) else config
    fields = _Fields(text, where if text is config else f"{where} (text_config)")
    if kind == LATENT:
        return _latent_model(config, fields, architecture)
    linear = _linear(fields, fields.number("num_hidden_layers")) if kind in (HYBRID, HYBRID_MOE) else None
    vision = _vision(config.get("vision_config"), where)
    quantization, block = _quantization(config, text, where)
    return Model(
        architecture=architecture,
        kind=kind,
        **_attention_fields(fields, linear),
        intermediate=fields.number("intermediate_size", 0 if kind in (MOE, HYBRID_MOE) else None, least=0 if kind in (MOE, HYBRID_MOE) else 1),
        vocab=fields.number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        max_position=fields.number("max_position_embeddings"),
        weight_bytes=_weight_bytes(config, text, where),
        attention_bias=bool(text.get("attention_bias", False)) or architecture == "Qwen2ForCausalLM",
        output_gate=bool(text.get("attn_output_gate", linear is not None)),
        linear=linear,
        experts=_experts(fields) if kind in (MOE, HYBRID_MOE) else None,
        vision=vision,
        vision_complexity=_vision_complexity(config),
        multimodal=vision is not None or architecture.endswith("ForConditionalGeneration"),
        mtp_layers=int(text.get("mtp_num_hidden_layers", text.get("num_nextn_predict_layers", 0)) or 0),
        quantization=quantization,
        quantized_block=block,
        ssm_dtype=_ssm_dtype(text, where) if linear else "",
    )


def _attention_fields(fields: _Fields, linear: Linear | None) -> dict[str, int]:
    hidden, layers, heads = (fields.number(name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    head_dim = fields.number("head_dim", hidden // heads or 1)
    return {
        "hidden": hidden,
        "layers": layers,
        "full_layers": layers - (linear.layers if linear else 0),
        "heads": heads,
        "kv_heads": fields.number("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rotary_dim": int(head_dim * fields.ratio("partial_rotary_factor")),
    }


def _architecture(config: Config, where: str) -> tuple[str, str]:
    names = config.get("architectures")
    if not isinstance(names, (list, tuple)) or not names:
        raise KproError(where, "the field 'architectures' is missing", "Give the model's own config.json", field="architectures")
    name = str(names[0])
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        reason = f"the architecture {name!r} (model_type {config.get('model_type')!r}) is not modelled"
        raise KproError(where, reason, f"The planner makes no guess; it knows {known}", field="architectures", value=name)
    return name, ARCHITECTURES[name]


def _linear(fields: _Fields, layers: int) -> Linear:
    types = fields.config.get("layer_types")
    if types:
        if len(types) != layers:
            reason = f"the field 'layer_types' has {len(types)} entries for {layers} layers"
            raise KproError(fields.where, reason, "Give the model's own config.json", field="layer_types")
        full = sum(1 for name in types if name == "full_attention")
    else:
        full = layers // fields.number("full_attention_interval")
    return Linear(
        layers - full,
        fields.number("linear_num_value_heads"),
        fields.number("linear_num_key_heads"),
        fields.number("linear_key_head_dim"),
        fields.number("linear_value_head_dim"),
        fields.number("linear_conv_kernel_dim", 4),
    )


def _experts(fields: _Fields) -> Experts:
    return Experts(
        fields.number("num_experts"),
        fields.number("moe_intermediate_size"),
        fields.number("shared_expert_intermediate_size", 0, least=0),
    )


def _vision(config: t.Any, where: str) -> Vision | None:
    if not isinstance(config, t.Mapping) or "depth" not in config:
        return None
    fields = _Fields(config, f"{where} (vision_config)")
    return Vision(
        depth=fields.number("depth"),
        hidden=fields.number("hidden_size"),
        intermediate=fields.number("intermediate_size"),
        channels=fields.number("in_channels", 3),
        patch=fields.number("patch_size"),
        temporal_patch=fields.number("temporal_patch_size", 1),
        merge=fields.number("spatial_merge_size", 1),
        positions=fields.number("num_position_embeddings", 0, least=0),
        deepstack=len(config.get("deepstack_visual_indexes") or ()),
        out_hidden=fields.number("out_hidden_size"),
    )


def _vision_complexity(config: Config) -> float:
    """Vision tower against a ViT-L/14, as server_args.py adjust_mem_fraction_for_vlm counts it; 0 without a vision_config.

    The layer count is looked up under a name that the Qwen configs do not have, so it counts as 24 there.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, t.Mapping):
        return 0.0
    return vision.get("num_hidden_layers", 24) * vision.get("hidden_size", 1024) ** 2 / (24 * 1024**2)


def _quantization(config: Config, text: Config, where: str) -> tuple[str, tuple[int, int]]:
    section = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if not section:
        return "", (0, 0)
    method = str(section.get("quant_method", "unknown"))
    block = section.get("weight_block_size") or (0, 0)
    if len(block) != 2:
        raise KproError(where, f"the field 'weight_block_size' is {block!r}, and must be two numbers", field="weight_block_size")
    return method, (int(block[0]), int(block[1]))


def _weight_bytes(config: Config, text: Config, where: str) -> int:
    name = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    name = name.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise KproError(where, f"the field 'dtype' is {name!r}, which is not modelled", field="dtype", value=name)
    # The engine loads a float32 checkpoint as a 16 bit model (model_config.py, _get_and_verify_dtype).
    return 2


def _ssm_dtype(text: Config, where: str) -> str:
    name = str(text.get("mamba_ssm_dtype") or "float32")
    if name not in DTYPE_BYTES:
        raise KproError(where, f"the field 'mamba_ssm_dtype' is {name!r}", "Use float32, bfloat16 or float16", field="mamba_ssm_dtype")
    return name


def _latent_model(config: Config, fields: _Fields, architecture: str) -> Model:
    layers = fields.number("num_hidden_layers")
    quantization, block = _quantization(config, fields.config, fields.where)
    return Model(
        architecture=architecture,
        kind=LATENT,
        hidden=fields.number("hidden_size"),
        layers=layers,
        full_layers=layers,
        heads=int(fields.config.get("num_attention_heads", 0)),
        kv_heads=1,
        head_dim=0,
        intermediate=0,
        vocab=fields.number("vocab_size"),
        tied=False,
        max_position=fields.number("max_position_embeddings"),
        rotary_dim=0,
        weight_bytes=2,
        latent_dim=fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim"),
        multimodal=architecture.endswith("ForConditionalGeneration"),
        quantization=quantization,
        quantized_block=block,
    )
