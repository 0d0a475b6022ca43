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
from .families import DENSE, EVERY_FOURTH, FAMILIES, GDN, HYBRID, HYBRID_MOE, KDA, MAMBA, MOE, OPAQUE, PATTERN, Family, refusal_of
from .kept_in_16_bit import QUANTIZED, kept_in_16_bit
from .quantization import Scheme, scheme_of, section_of
from .shown import shown
from .towers import Tower, tower_of

Config = t.Mapping[str, t.Any]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Architectures whose own class has a head size that does not follow from the others: a config without it says too little.
_HEAD_DIM_ASKED = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM", "MiMoV2FlashForCausalLM")
# A number of a config above this is no count, but a slip or an attack.
MOST = 1 << 31
_MOST_LAYERS = 1024
_MOST_STRETCH = 4096
# The first of these decides (utils/hf_transformers, get_context_length).
_CONTEXT_FIELDS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


@dataclasses.dataclass(frozen=True)
class Linear:
    """Layers with a state of constant size: number and head geometry.

    :param kind: gated delta net, mamba, or kimi delta attention (``families``).
    """

    layers: int
    value_heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    kind: str = GDN


@dataclasses.dataclass(frozen=True)
class Experts:
    """Sparse feed-forward layers.

    :param layers: how many there are; 0: all.
    :param width: of the vectors that the experts take; 0: that of the model.
    """

    count: int
    intermediate: int
    shared_intermediate: int
    layers: int = 0
    width: int = 0
    bias: bool = False


@dataclasses.dataclass(frozen=True)
class Window:
    """Layers that keep the last ``tokens`` only, in a pool of their own."""

    layers: int
    tokens: int
    kv_heads: int
    head_dim: int
    value_dim: int
    heads: int


@dataclasses.dataclass(frozen=True)
class Latent:
    """Multi-head latent attention; ``query_rank`` 0: the query is not compressed."""

    query_rank: int
    rank: int
    nope: int
    rope: int
    value: int


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


_PLAIN = Scheme()


@dataclasses.dataclass(frozen=True)
class Model:
    """A model's shape; numbers are counts, sizes of vectors, or bytes where the name says so.

    :param max_position: tokens of the longest context, as the engine derives it.
    :param full_layers: attention layers that keep every token.
    :param dense_layers: feed-forward layers without experts; ``None``: all, or none in a model with experts.
    :param by_headers: why the weights can't be told from the config; empty if they can.
    :param draft_quantized: what a quantised checkpoint does with its head (``kept_in_16_bit``).
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
    output_bias: bool = False
    output_gate: bool = False
    latent_dim: int = 0
    latent: Latent | None = None
    window: Window | None = None
    value_dim: int = 0
    shares_value: bool = False
    dense_layers: int | None = None
    gated: bool = True
    linear: Linear | None = None
    experts: Experts | None = None
    vision: Vision | None = None
    tower: Tower | None = None
    vision_complexity: float = 0.0
    multimodal: bool = False
    mtp_layers: int = 0
    scheme: Scheme = _PLAIN
    by_headers: str = ""
    draft_quantized: str = QUANTIZED
    ssm_dtype: str = "float32"

    def __hash__(self) -> int:
        # Weights are looked up by it hundreds of times in one search.
        return hash((self.architecture, self.layers, self.hidden, self.vocab, self.scheme.method))

    @property
    def quantization(self) -> str:
        """The engine's name of the quantisation; empty without one."""
        return self.scheme.method

    @property
    def expert_layers(self) -> int:
        """Feed-forward layers with experts."""
        return 0 if self.experts is None else self.experts.layers or self.layers

    @property
    def plain_layers(self) -> int:
        """Feed-forward layers without experts."""
        return self.layers - self.expert_layers if self.dense_layers is None else self.dense_layers


class _Fields:
    """Reads fields of one section of the config and names field and value when one is wrong."""

    def __init__(self, config: Config, where: str) -> None:
        self.config, self.where = config, where

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.config.get(name)
        value = default if value is None else value
        if value is None:
            raise KproError(self.where, f"the field {name!r} is missing", "Give the model's own config.json, unabridged", field=name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            reason = f"the field {name!r} is {shown(value)}, and must be a whole number of at least {least}"
            raise KproError(self.where, reason, "Give the model's own config.json", field=name)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise KproError(self.where, f"the field {name!r} is {shown(value)}, and must be true or false", field=name)
        return default if value is None else value

    def section(self, name: str) -> Config:
        value = self.config.get(name)
        if value is not None and not isinstance(value, t.Mapping):
            raise KproError(self.where, f"the field {name!r} is {shown(value)}, and must be a section of fields", field=name)
        return value or {}

    def ratio(self, name: str, default: float | None) -> float:
        rope = self.section("rope_parameters") or self.section("rope_scaling")
        value = self.config.get(name, rope.get(name, default))
        if value is None:
            raise KproError(self.where, f"the field {name!r} is missing", "Give the model's own config.json, unabridged", field=name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise KproError(self.where, f"the field {name!r} is {shown(value)}, and must be in (0, 1]", field=name)
        return float(value)

    def context(self) -> int:
        """Tokens of the longest context, with the factor by which the engine stretches it."""
        if all(self.config.get(name) is None for name in _CONTEXT_FIELDS):
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
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= _MOST_STRETCH:
        reason = f"the field 'factor' of the rope is {shown(factor)}, and must be a number of at least 1 and at most {_MOST_STRETCH}"
        raise KproError(where, reason, field="factor")
    return float(factor)


def model_of(config: Config, where: str = "config.json") -> Model:
    """Return the shape that a parsed ``config.json`` describes.

    :param where: what to call the config in an error.
    :raises KproError: for an architecture that isn't modelled and for a missing or senseless field.
    """
    if not isinstance(config, t.Mapping) or not config:
        raise KproError(where, "it holds no model configuration", "Give the parsed config.json of the model")
    architecture, family = _architecture(config, where)
    outer, fields = _places(config, family, where)
    _check_known_parts(fields, family, architecture)
    layers = _layer_count(fields)
    attention, linear = _attention_fields(fields, family, architecture, layers), _linear(fields, family, architecture, layers)
    kept_layers = _kept_layers(fields, family, architecture, layers, linear)
    window = _window(fields, family, attention, layers)
    sparse = _experts(fields, family, architecture, layers)
    if not kept_layers:
        raise KproError(fields.where, "none of its layers keeps tokens, which is not modelled", field="layer_types")
    return Model(
        architecture=architecture,
        kind=_kind(family, sparse, linear),
        **{**attention, "full_layers": kept_layers - (window.layers if window else 0), **_global_heads(fields, architecture)},
        layers=layers,
        dense_layers=_dense_layers(fields, architecture, layers),
        vocab=fields.number("vocab_size"),
        tied=_tied(outer, fields, family),
        max_position=fields.context(),
        weight_bytes=_weight_bytes(config, fields.config, where),
        attention_bias=_bias(fields, family, architecture) or family.qkv_bias,
        output_bias=_bias(fields, family, architecture) and family.output_bias,
        output_gate=fields.flag("attn_output_gate", linear.kind == GDN) if linear else False,
        intermediate=_intermediate(fields, family, sparse, architecture),
        gated=family.gated,
        linear=linear,
        experts=sparse,
        window=window,
        **_images(outer, fields, family),
        by_headers=_by_headers(fields, family, architecture),
        mtp_layers=_draft_layers(fields),
        **_scheme(outer, fields, where),
        ssm_dtype=_ssm_dtype(fields.config, where) if linear else "",
    )


def _places(config: Config, family: Family, where: str) -> tuple[_Fields, _Fields]:
    """The config as a whole, and its part on the language model, which is the same where there is no such part."""
    outer = _Fields({**dict(family.defaults), **config}, where)
    text = outer.section("text_config")
    return outer, _Fields({**dict(family.defaults), **text}, f"{where} (text_config)") if text else outer


# Fields of parts that a row has to know; a config that has them without is of another make.
_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_PARTS = {
    "kv_lora_rank": "compressed keys and values",
    "index_topk": "an index of the tokens",
    "linear_attn_config": "linear attention",
    "block_configs": "layers that differ from one another",
    "hybrid_layer_pattern": "layers with windows in a pattern",
    "attention_other_setting": "heads that differ from layer to layer",
    "full_attention_interval": "linear attention",
    "mamba_d_state": "mamba layers",
    "hybrid_override_pattern": "layers of several kinds",
}
_KNOWN_PARTS: dict[str, t.Callable[[Family], bool]] = {
    "kv_lora_rank": lambda family: family.latent,
    "linear_attn_config": lambda family: family.state == KDA,
    "hybrid_layer_pattern": lambda family: family.window == PATTERN,
    "full_attention_interval": lambda family: family.state == GDN,
    "mamba_d_state": lambda family: family.state == MAMBA,
    "hybrid_override_pattern": lambda family: family.state == MAMBA,
}


def _check_known_parts(fields: _Fields, family: Family, architecture: str) -> None:
    """Refuse a config with parts that this architecture is not planned with."""
    for name, what in _PARTS.items():
        if fields.config.get(name) and not _KNOWN_PARTS.get(name, lambda _family: False)(family):
            reason = f"the field {name!r} says {what}, which is not modelled for {architecture}"
            raise KproError(fields.where, reason, "The planner makes no guess", field=name)
    many = next((name for name in _EXPERT_COUNTS if isinstance(fields.config.get(name), int) and fields.config[name] > 1), None)
    if many and not family.experts:
        reason = f"the field {many!r} is {shown(fields.config[many])}, and experts are not modelled for {architecture}"
        raise KproError(fields.where, reason, "The planner makes no guess", field=many)
    types = fields.config.get("layer_types")
    odd = (
        next((name for name in types if name not in ("full_attention", "sliding_attention", "chunked_attention")), None)
        if isinstance(types, (list, tuple))
        else None
    )
    if odd is not None and not family.state:
        reason = f"the field 'layer_types' has {shown(odd)}, which is not modelled for {architecture}"
        raise KproError(fields.where, reason, "The planner makes no guess", field="layer_types")


def _kind(family: Family, sparse: Experts | None, linear: Linear | None) -> str:
    if family.kind in (MOE, HYBRID_MOE) and sparse is None:
        return HYBRID if linear else DENSE
    return family.kind


def _layer_count(fields: _Fields) -> int:
    pattern = fields.config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return len(pattern.replace("|", ""))
    types = fields.config.get("layers_block_type")
    if isinstance(types, (list, tuple)) and types and fields.config.get("num_hidden_layers") is None:
        return len(types)
    layers = fields.number("num_hidden_layers")
    if layers > _MOST_LAYERS:
        reason = f"the field 'num_hidden_layers' is {layers}, and no model has more than {_MOST_LAYERS} layers"
        raise KproError(fields.where, reason, field="num_hidden_layers", value=layers)
    return layers


def _types(fields: _Fields, layers: int, valid: t.Collection[str]) -> list[str]:
    """The kinds of the layers, by the config's list."""
    types = fields.config.get("layer_types")
    if types is None:
        raise KproError(fields.where, "the field 'layer_types' is missing", "Give the model's own config.json, unabridged", field="layer_types")
    if not isinstance(types, (list, tuple)) or len(types) != layers:
        count = len(types) if isinstance(types, (list, tuple)) else "no"
        raise KproError(fields.where, f"the field 'layer_types' has {count} entries for {layers} layers", field="layer_types")
    odd = next((number for number, name in enumerate(types) if name not in valid), None)
    if odd is not None:
        reason = f"the field 'layer_types' has {shown(types[odd])} for layer {odd}, which is not modelled"
        raise KproError(fields.where, reason, field="layer_types", value=types[odd])
    return [str(name) for name in types]


def _blocks(fields: _Fields, layers: int) -> list[str]:
    """The kinds of the blocks of Nemotron-H: mamba, attention, mlp or moe."""
    pattern, names = fields.config.get("hybrid_override_pattern"), {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    if isinstance(pattern, str) and pattern:
        found = [names.get(sign, sign) for sign in pattern.replace("|", "")]
    else:
        types = fields.config.get("layers_block_type")
        if not isinstance(types, (list, tuple)):
            raise KproError(fields.where, "the field 'hybrid_override_pattern' is missing", field="hybrid_override_pattern")
        found = [str(name) for name in types]
    odd = next((name for name in found if name not in names.values()), None)
    if odd is not None or len(found) != layers:
        reason = f"the field 'hybrid_override_pattern' has {shown(odd) if odd else len(found)}, which is not modelled for {layers} layers"
        raise KproError(fields.where, reason, field="hybrid_override_pattern", value=odd)
    return found


def _kept_layers(fields: _Fields, family: Family, architecture: str, layers: int, linear: Linear | None) -> int:
    """Layers with attention, whether they keep every token or a window."""
    if architecture == "NemotronHForCausalLM":
        return _blocks(fields, layers).count("attention")
    if linear is None or architecture == "FalconH1ForCausalLM":
        return layers
    return layers - linear.layers


def _dense_layers(fields: _Fields, architecture: str, layers: int) -> int | None:
    """Where a layer is one block only, or has both kinds of feed-forward."""
    if architecture == "NemotronHForCausalLM":
        return _blocks(fields, layers).count("mlp")
    return layers if architecture.startswith("Gemma4") and fields.config.get("enable_moe_block") else None


def _images(outer: _Fields, fields: _Fields, family: Family) -> dict[str, t.Any]:
    if not family.multimodal:
        return {}
    tower = None
    if family.tower not in ("headers", "qwen3_vl") and not fields.config.get("kv_lora_rank"):
        tower = tower_of(family.tower, outer.section("vision_config"), fields.number("hidden_size"), outer.where)
    return {
        "multimodal": True,
        "vision": _vision(outer) if family.tower == "qwen3_vl" else None,
        "tower": tower,
        "vision_complexity": _vision_complexity(outer),
    }


def _by_headers(fields: _Fields, family: Family, architecture: str) -> str:
    if family.kind == OPAQUE or family.tower == "headers":
        return "its weights can't be told from the config"
    if fields.config.get("hidden_size_per_layer_input") or fields.config.get("num_kv_shared_layers"):
        return "its layers have embeddings or caches of their own, whose weights can't be told from the config"
    return ""


def _bias(fields: _Fields, family: Family, architecture: str) -> bool:
    return fields.flag(family.bias, architecture == "GptOssForCausalLM")


def _scheme(outer: _Fields, fields: _Fields, where: str) -> dict[str, t.Any]:
    for place in (outer, fields):
        place.section("quantization_config")
    section = section_of({**outer.config, "text_config": fields.config})
    if not section:
        return {}
    scheme = scheme_of({**outer.config, "text_config": fields.config}, where)
    return {"scheme": scheme, "draft_quantized": kept_in_16_bit(scheme.kept)}


def _tied(outer: _Fields, inner: _Fields, family: Family) -> bool:
    """The outer field counts (models/qwen3_vl.py, "Propagate tie_word_embeddings from parent config")."""
    name = "tie_word_embeddings"
    return outer.flag(name, inner.flag(name, family.tied))


def _draft_layers(fields: _Fields) -> int:
    name = "num_nextn_predict_layers" if fields.config.get("mtp_num_hidden_layers") is None else "mtp_num_hidden_layers"
    return 0 if fields.config.get(name) is None else fields.number(name, least=0)


def _attention_fields(fields: _Fields, family: Family, architecture: str, layers: int) -> dict[str, t.Any]:
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads", 1 if family.latent and family.tower == "headers" else None)
    if family.latent:
        rope = fields.number("qk_rope_head_dim")
        # Where the weights come from headers, a config may be cut down to what the cache needs.
        usual = 128 if family.tower == "headers" else None
        sizes = fields.number("kv_lora_rank"), fields.number("qk_nope_head_dim", usual), rope, fields.number("v_head_dim", usual)
        latent = Latent(fields.number("q_lora_rank", 0, least=0), *sizes)
        return {
            "hidden": hidden, "heads": heads, "kv_heads": 1, "head_dim": 0, "latent": latent, "latent_dim": latent.rank + rope,
            "rotary_dim": 0 if architecture == "KimiLinearForCausalLM" else rope,
        }  # fmt: skip
    head_dim = fields.number("head_dim", None if architecture in _HEAD_DIM_ASKED or family.state == GDN else hidden // heads or 1)
    strict = family.state == GDN or architecture in _HEAD_DIM_ASKED or architecture in ("MistralForCausalLM", "Qwen2ForCausalLM")
    rotary = fields.ratio("partial_rotary_factor", None if family.state == GDN else 1.0)
    return {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": fields.number("num_key_value_heads", None if strict else heads),
        "head_dim": head_dim,
        "value_dim": fields.number("v_head_dim", head_dim) if family.window == PATTERN else head_dim,
        "rotary_dim": int(head_dim * rotary),
    }


def _global_heads(fields: _Fields, architecture: str) -> dict[str, t.Any]:
    """Gemma 4: its full layers have heads of another size (utils/hf_transformers/config.py)."""
    if not architecture.startswith("Gemma4"):
        return {}
    size = fields.number("global_head_dim", fields.number("head_dim"))
    shared = fields.flag("attention_k_eq_v", False)
    heads = fields.number("num_global_key_value_heads", fields.number("num_key_value_heads")) if shared else fields.number("num_key_value_heads")
    return {"head_dim": size, "value_dim": size, "kv_heads": heads, "shares_value": shared}


def _window(fields: _Fields, family: Family, attention: t.Mapping[str, t.Any], layers: int) -> Window | None:
    """Layers whose cache is a window (configs/model_config.py, get_hybrid_layer_ids)."""
    if not family.window:
        return None
    if family.window == EVERY_FOURTH:
        count, tokens = layers - layers // 4, fields.number("attention_chunk_size", 8192)
    elif family.window == PATTERN:
        pattern = fields.config.get("hybrid_layer_pattern")
        if not isinstance(pattern, (list, tuple)) or len(pattern) != layers:
            raise KproError(fields.where, f"the field 'hybrid_layer_pattern' must have {layers} entries", field="hybrid_layer_pattern")
        count, tokens = sum(each == 1 for each in pattern), fields.number("sliding_window_size", fields.number("sliding_window", 128))
    else:  # by the types of the layers
        count = _types(fields, layers, ("sliding_attention", "full_attention")).count("sliding_attention")
        tokens = fields.number("sliding_window")
    if not count:
        return None
    size = fields.number("swa_head_dim", attention["head_dim"])
    value = fields.number("swa_v_head_dim", attention["value_dim"] if family.window == PATTERN else size)
    shared, heads = fields.number("swa_num_key_value_heads", attention["kv_heads"]), fields.number("swa_num_attention_heads", attention["heads"])
    return Window(count, tokens, shared, size, value, heads)


def _architecture(config: Config, where: str) -> tuple[str, Family]:
    names = config.get("architectures")
    if not isinstance(names, (list, tuple)) or not names:
        raise KproError(where, "the field 'architectures' is missing", "Give the model's own config.json", field="architectures")
    name = str(names[0])
    if name in FAMILIES and config.get("is_encoder_decoder") is not True:
        return name, FAMILIES[name]
    why = refusal_of(name, config.get("model_type")) or ("it is an encoder-decoder" if config.get("is_encoder_decoder") is True else "")
    reason = f"the architecture {shown(name)} (model_type {shown(config.get('model_type'))}) is not modelled{f': {why}' if why else ''}"
    raise KproError(where, reason, "The planner makes no guess. docs/planned_models.md lists what it knows", field="architectures", value=name[:200])


def _linear(fields: _Fields, family: Family, architecture: str, layers: int) -> Linear | None:
    if not family.state:
        return None
    if family.state == MAMBA:
        return _mamba(fields, architecture, layers)
    if family.state == KDA:
        return _kimi_delta(fields, layers)
    return _delta_net(fields, layers)


def _mamba(fields: _Fields, architecture: str, layers: int) -> Linear | None:
    """Sizes of Mamba-2 blocks (configs/nemotron_h.py, falcon_h1.py, granitemoehybrid.py)."""
    if architecture == "NemotronHForCausalLM":
        count = _blocks(fields, layers).count("mamba")
        numbers = [fields.number(name) for name in ("mamba_num_heads", "n_groups", "ssm_state_size", "mamba_head_dim", "conv_kernel")]
    else:
        hybrid = architecture == "GraniteMoeHybridForCausalLM"
        count = _types(fields, layers, ("mamba", "attention")).count("mamba") if hybrid else layers
        numbers = [fields.number(name) for name in ("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head")]
        numbers.append(fields.number("mamba_d_conv", 4))
    heads, groups, state, size, kernel = numbers
    return Linear(count, heads, groups, state, size, kernel, MAMBA) if count else None


def _kimi_delta(fields: _Fields, layers: int) -> Linear:
    section = _Fields(fields.section("linear_attn_config"), f"{fields.where} (linear_attn_config)")
    listed = section.config.get("kda_layers")
    if not isinstance(listed, (list, tuple)) or len(listed) > layers:
        raise KproError(section.where, "the field 'kda_layers' is missing or too long", field="kda_layers")
    heads, size = section.number("num_heads"), section.number("head_dim")
    return Linear(len(listed), heads, heads, size, size, section.number("short_conv_kernel_size"), KDA)


def _delta_net(fields: _Fields, layers: int) -> Linear:
    """The engine counts by the interval alone (configs/qwen3_next.py, layers_block_type), so that a list has to agree with it."""
    interval = fields.number("full_attention_interval", 4)
    full = layers // interval
    if not full:
        reason = f"the field 'full_attention_interval' is {interval}, so that none of {layers} layers has full attention, which is not modelled"
        raise KproError(fields.where, reason, field="full_attention_interval", value=interval)
    types = fields.config.get("layer_types")
    if types is not None:
        types = _types(fields, layers, ("full_attention", "linear_attention"))
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


def _first(fields: _Fields, names: t.Sequence[str]) -> str:
    return next((name for name in names if fields.config.get(name) is not None), names[0])


def _experts(fields: _Fields, family: Family, architecture: str, layers: int) -> Experts | None:
    if not family.experts or family.kind == OPAQUE:
        return None
    name = _first(fields, _EXPERT_COUNTS)
    if (architecture.startswith(("Gemma4", "Granite", "Nemotron")) or family.tower == "headers") and not fields.config.get(name):
        return None
    count = _one(fields, name)
    width = "intermediate_size" if fields.config.get("moe_intermediate_size") is None else "moe_intermediate_size"
    if architecture.startswith(("Qwen", "Deepseek", "Glm", "Bailing", "Ernie", "Kimi", "Gemma4", "Nemotron", "MiMo")):
        width = "moe_intermediate_size"
    found, size = _expert_layers(fields, architecture, layers), _one(fields, width)
    shared, latent = _shared(fields, family, architecture, width), fields.number("moe_latent_size", 0, least=0)
    return Experts(count, size, shared, found, latent, architecture == "GptOssForCausalLM") if found else None


def _one(fields: _Fields, name: str) -> int:
    """A number, where Hunyuan and Ernie give a list of equal ones."""
    value = fields.config.get(name)
    if isinstance(value, (list, tuple)) and value and all(each == value[0] for each in value):
        return _Fields({name: value[0]}, fields.where).number(name)
    return fields.number(name)


def _shared(fields: _Fields, family: Family, architecture: str, width: str) -> int:
    """Width of the experts that every token passes."""
    if architecture in ("Qwen3NextForCausalLM", "Qwen2MoeForCausalLM") or architecture.startswith("Qwen3_5"):
        return fields.number("shared_expert_intermediate_size", least=0)
    if architecture == "NemotronHForCausalLM":
        return fields.number("moe_shared_expert_intermediate_size", 0, least=0) * min(fields.number("n_shared_experts", 0, least=0), 1)
    if architecture.startswith("Granite"):
        return fields.number("shared_intermediate_size", 0, least=0)
    if architecture.startswith("Llama4"):
        return _one(fields, width)
    name = _first(fields, ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"))
    if fields.config.get(name) is None:
        return 0
    value = fields.config[name]
    number = _one(fields, name) if isinstance(value, (list, tuple)) else fields.number(name, least=0)
    return number * _one(fields, width)


def _expert_layers(fields: _Fields, architecture: str, layers: int) -> int:
    """How many layers have experts; the engine's classes count them by fields of their own."""
    if architecture == "NemotronHForCausalLM":
        return _blocks(fields, layers).count("moe")
    named = fields.config.get("moe_layers")
    if architecture.startswith("Llama4") and isinstance(named, (list, tuple)):
        return len({each for each in named if isinstance(each, int) and 0 <= each < layers})
    frequency = fields.config.get("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):
        return sum(1 for each in frequency[:layers] if each)
    step = fields.number(_first(fields, ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_freq")), 1)
    first = fields.number(_first(fields, ("first_k_dense_replace", "moe_layer_start_index")), 0, least=0)
    last = fields.number("moe_layer_end_index", layers - 1, least=0)
    dense = fields.config.get("mlp_only_layers") or []
    if not isinstance(dense, (list, tuple)):
        raise KproError(fields.where, f"the field 'mlp_only_layers' is {shown(dense)}, and must be a list", field="mlp_only_layers")
    # DeepSeek counts from the first layer, the others from one.
    shift = 0 if fields.config.get("moe_layer_freq") is not None else 1
    return sum(1 for number in range(first, min(last + 1, layers)) if (number + shift) % step == 0 and number not in dense)


def _intermediate(fields: _Fields, family: Family, sparse: Experts | None, architecture: str) -> int:
    if architecture == "GraniteMoeHybridForCausalLM" and sparse is None:
        return fields.number("shared_intermediate_size")
    wide = architecture.startswith("Llama4") and fields.config.get("intermediate_size_mlp") is not None
    name = "intermediate_size_mlp" if wide else "intermediate_size"
    if isinstance(fields.config.get(name), (list, tuple)):
        return _one(fields, name)
    optional = sparse is not None or family.tower == "headers"
    return fields.number(name, 0 if optional else None, least=0 if optional else 1)


def _vision(outer: _Fields) -> Vision:
    config = outer.section("vision_config")
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
