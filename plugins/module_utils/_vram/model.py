# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shape of a model as its ``config.json`` gives it.

Sources: the model classes of SGLang 0.5.9 and 0.5.23 (models/qwen3_5.py, configs/qwen3_next.py, configs/mamba_utils.py).
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .kept_in_16_bit import QUANTIZED, kept_in_16_bit

Config = t.Mapping[str, t.Any]

DENSE, MOE, HYBRID, HYBRID_MOE, LATENT, OPAQUE = "dense", "moe", "hybrid", "hybrid_moe", "latent", "opaque"

# The kind of each architecture. OPAQUE and LATENT: cache shape known, weights only from safetensors headers or a logged value.
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
# Where a missing field has the default of every transformers release; elsewhere it depends on the class, and is asked for.
_HEAD_DIM_FOLLOWS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "LlavaForConditionalGeneration")
# The first of these decides (utils/hf_transformers, get_context_length).
_CONTEXT_FIELDS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


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
    """A model's shape; numbers are counts, sizes of vectors, or bytes where the name says so.

    :param max_position: tokens of the longest context, as the engine derives it.
    :param unquantized: first module that a quantised checkpoint keeps in 16 bit although its kind usually is not.
    :param draft_quantized: what such a checkpoint does with its head (``_plan_unquantized``).
    """

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
    unquantized: str = ""
    draft_quantized: str = QUANTIZED
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

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise KproError(self.where, f"the field {name!r} is {value!r}, and must be true or false", field=name, value=value)
        return default if value is None else value

    def section(self, name: str) -> Config:
        value = self.config.get(name)
        if value is not None and not isinstance(value, t.Mapping):
            raise KproError(self.where, f"the field {name!r} is {value!r}, and must be a section of fields", field=name, value=value)
        return value or {}

    def ratio(self, name: str, default: float | None) -> float:
        rope = self.section("rope_parameters") or self.section("rope_scaling")
        value = self.config.get(name, rope.get(name, default))
        if value is None:
            raise KproError(self.where, f"the field {name!r} is missing", "Give the model's own config.json, unabridged", field=name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise KproError(self.where, f"the field {name!r} is {value!r}, and must be in (0, 1]", field=name, value=value)
        return float(value)

    def context(self) -> int:
        """Tokens of the longest context, with the factor by which the engine stretches it."""
        self.number("max_position_embeddings")
        tokens = self.number(next(name for name in _CONTEXT_FIELDS if self.config.get(name) is not None))
        own, other = self.section("rope_scaling"), self.section("rope_parameters")
        factor = _stretch(own, self.where)
        if not own and _stretch(other, self.where) != 1:
            reason = "'factor' in 'rope_parameters' stretches the context in a way that is not modelled"
            raise KproError(self.where, reason, "Write it as 'rope_scaling'", field="rope_parameters", value=dict(other))
        return int(factor * tokens)


def _stretch(rope: Config, where: str) -> float:
    if "original_max_position_embeddings" in rope or "llama3" in (rope.get("rope_type"), rope.get("type")):
        return 1.0
    factor = rope.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor < 1:
        raise KproError(where, f"the field 'factor' of the rope is {factor!r}, and must be a number of at least 1", field="factor", value=factor)
    return float(factor)


def model_of(config: Config, where: str = "config.json") -> Model:
    """Return the shape that a parsed ``config.json`` describes.

    :param where: what to call the config in an error.
    :raises KproError: for an architecture that isn't modelled and for a missing or senseless field.
    """
    if not isinstance(config, t.Mapping) or not config:
        raise KproError(where, "it holds no model configuration", "Give the parsed config.json of the model")
    architecture, kind = _architecture(config, where)
    outer = _Fields(config, where)
    text = outer.section("text_config")
    fields = _Fields(text, f"{where} (text_config)") if text else outer
    if kind == LATENT:
        return _latent_model(config, fields, architecture)
    linear = _linear(fields, fields.number("num_hidden_layers")) if kind in (HYBRID, HYBRID_MOE) else None
    vision = _vision(outer, kind) if architecture.endswith("ForConditionalGeneration") else None
    quantization = _quantization(outer, fields)
    return Model(
        architecture=architecture,
        kind=kind,
        **_attention_fields(fields, linear, architecture),
        intermediate=fields.number("intermediate_size", 0 if kind in (MOE, HYBRID_MOE) else None, least=0 if kind in (MOE, HYBRID_MOE) else 1),
        vocab=fields.number("vocab_size"),
        tied=_tied(outer, fields),
        max_position=fields.context(),
        weight_bytes=_weight_bytes(config, fields.config, where),
        attention_bias=fields.flag("attention_bias", False) or architecture == "Qwen2ForCausalLM",
        output_gate=fields.flag("attn_output_gate", linear is not None),
        linear=linear,
        experts=_experts(fields, kind) if kind in (MOE, HYBRID_MOE) else None,
        vision=vision,
        vision_complexity=_vision_complexity(outer),
        multimodal=architecture.endswith("ForConditionalGeneration"),
        mtp_layers=_draft_layers(fields),
        **quantization,
        ssm_dtype=_ssm_dtype(fields.config, where) if linear else "",
    )


def _tied(outer: _Fields, inner: _Fields) -> bool:
    """The outer field counts (models/qwen3_vl.py, "Propagate tie_word_embeddings from parent config")."""
    name = "tie_word_embeddings"
    return outer.flag(name, inner.flag(name, False))


def _draft_layers(fields: _Fields) -> int:
    name = "num_nextn_predict_layers" if fields.config.get("mtp_num_hidden_layers") is None else "mtp_num_hidden_layers"
    return 0 if fields.config.get(name) is None else fields.number(name, least=0)


def _attention_fields(fields: _Fields, linear: Linear | None, architecture: str) -> dict[str, t.Any]:
    hidden, layers, heads = (fields.number(name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    head_dim = fields.number("head_dim", (hidden // heads or 1) if architecture in _HEAD_DIM_FOLLOWS else None)
    return {
        "hidden": hidden,
        "layers": layers,
        "full_layers": layers - (linear.layers if linear else 0),
        "heads": heads,
        "kv_heads": fields.number("num_key_value_heads", heads if architecture == "LlamaForCausalLM" else None),
        "head_dim": head_dim,
        "rotary_dim": int(head_dim * fields.ratio("partial_rotary_factor", None if linear else 1.0)),
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
    """The engine counts by the interval alone (configs/qwen3_next.py, layers_block_type), so that a list has to agree with it."""
    interval = fields.number("full_attention_interval", 4)
    full = layers // interval
    if not full:
        reason = f"the field 'full_attention_interval' is {interval}, so that none of {layers} layers has full attention, which is not modelled"
        raise KproError(fields.where, reason, field="full_attention_interval", value=interval)
    types = fields.config.get("layer_types")
    if types is not None:
        if not isinstance(types, (list, tuple)) or len(types) != layers:
            reason = f"the field 'layer_types' has {len(types) if isinstance(types, (list, tuple)) else 'no'} entries for {layers} layers"
            raise KproError(fields.where, reason, "Give the model's own config.json", field="layer_types")
        expected = ["full_attention" if number % interval == 0 else "linear_attention" for number in range(1, layers + 1)]
        odd = next((number for number in range(layers) if types[number] != expected[number]), None)
        if odd is not None:
            reason = f"the field 'layer_types' has {types[odd]!r} for layer {odd}, and the interval of {interval} gives {expected[odd]!r}"
            raise KproError(fields.where, reason, "Another order of layers is not modelled", field="layer_types", value=types[odd])
    elif fields.config.get("full_attention_interval") is None:
        fields.number("full_attention_interval")
    return Linear(
        layers - full,
        fields.number("linear_num_value_heads"),
        fields.number("linear_num_key_heads"),
        fields.number("linear_key_head_dim"),
        fields.number("linear_value_head_dim"),
        fields.number("linear_conv_kernel_dim", 4),
    )


def _experts(fields: _Fields, kind: str) -> Experts:
    for name, usual in (("mlp_only_layers", []), ("decoder_sparse_step", 1), ("first_k_dense_replace", 0)):
        value = fields.config.get(name)
        if value is not None and value != usual:
            raise KproError(fields.where, f"the field {name!r} is {value!r}: layers without experts are not modelled", field=name, value=value)
    return Experts(
        fields.number("num_experts"),
        fields.number("moe_intermediate_size"),
        fields.number("shared_expert_intermediate_size", None if kind == HYBRID_MOE else 0, least=0),
    )


def _vision(outer: _Fields, kind: str) -> Vision | None:
    config = outer.section("vision_config")
    if kind == OPAQUE:
        return None
    if not config:
        raise KproError(outer.where, "the field 'vision_config' is missing", "Give the model's own config.json, unabridged", field="vision_config")
    fields = _Fields(config, f"{outer.where} (vision_config)")
    indexes = config.get("deepstack_visual_indexes")
    if indexes is not None and not isinstance(indexes, (list, tuple)):
        raise KproError(fields.where, f"the field 'deepstack_visual_indexes' is {indexes!r}, and must be a list", field="deepstack_visual_indexes")
    return Vision(
        depth=fields.number("depth"),
        hidden=fields.number("hidden_size"),
        intermediate=fields.number("intermediate_size"),
        channels=fields.number("in_channels", 3),
        patch=fields.number("patch_size"),
        temporal_patch=fields.number("temporal_patch_size"),
        merge=fields.number("spatial_merge_size"),
        positions=fields.number("num_position_embeddings"),
        deepstack=len(indexes or ()),
        out_hidden=fields.number("out_hidden_size"),
    )


def _vision_complexity(outer: _Fields) -> float:
    """Vision tower against a ViT-L/14, as server_args.py adjust_mem_fraction_for_vlm counts it; 0 without a vision_config.

    The layer count is looked up under a name that the Qwen configs do not have, so it counts as 24 there.
    """
    vision = outer.section("vision_config")
    if not vision:
        return 0.0
    fields = _Fields(vision, f"{outer.where} (vision_config)")
    return fields.number("num_hidden_layers", 24) * fields.number("hidden_size", 1024) ** 2 / (24 * 1024**2)


def _quantization(outer: _Fields, inner: _Fields) -> dict[str, t.Any]:
    section = outer.section("quantization_config") or inner.section("quantization_config") or outer.section("compression_config")
    if not section:
        return {}
    block = section.get("weight_block_size") or (0, 0)
    sizes = block if isinstance(block, (list, tuple)) else ()
    if len(sizes) != 2 or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        reason = f"the field 'weight_block_size' is {block!r}, and must be two whole numbers"
        raise KproError(outer.where, reason, field="weight_block_size", value=block)
    named = section.get("modules_to_not_convert") or section.get("ignored_layers") or section.get("ignore") or ()
    odd, draft = kept_in_16_bit(named if isinstance(named, (list, tuple)) else [str(named)])
    method = str(section.get("quant_method", "unknown"))
    return {"quantization": method, "quantized_block": (sizes[0], sizes[1]), "unquantized": odd, "draft_quantized": draft}


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
    return Model(
        architecture=architecture,
        kind=LATENT,
        hidden=fields.number("hidden_size"),
        layers=layers,
        full_layers=layers,
        heads=fields.number("num_attention_heads", 1),
        kv_heads=1,
        head_dim=0,
        intermediate=0,
        vocab=fields.number("vocab_size"),
        tied=False,
        max_position=fields.context(),
        rotary_dim=0,
        weight_bytes=2,
        latent_dim=fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim"),
        multimodal=architecture.endswith("ForConditionalGeneration"),
        **_quantization(_Fields(config, fields.where), fields),
    )
