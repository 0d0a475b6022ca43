# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of a model's weights on one GPU, from its shape.

Source: the model classes of SGLang 0.5.9 and 0.5.23; the rounding is PyTorch's caching allocator (requests from 10 MiB on are rounded up to
2 MiB, smaller ones share blocks). Checked against start-up logs: median error 0.15 %.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from .._core.errors import KproError
from .families import KDA, MAMBA
from .model import Model
from .quantization import Part, Scheme, fault_of

MIB = 1 << 20
_LARGE = 10 * MIB
_VOCABULARY_PADDING = 64
# Tiles of the kernels for MXFP4 experts, to which their width is filled up: on most cards, and on Blackwell's.
_MXFP4_TILE, _MXFP4_TILE_BLACKWELL, _BLACKWELL = 64, 256, 100


@dataclasses.dataclass(frozen=True)
class Layout:
    """How tensors are spread: ``tp`` GPUs for feed-forward and vocabulary, ``attention_tp`` for attention.

    :param generation: compute capability of the cards times ten; None if it is not known.
    """

    tp: int
    attention_tp: int
    with_vision: bool = True
    generation: int | None = None


@dataclasses.dataclass(frozen=True)
class Tensor:
    """``count`` equal tensors of ``nbytes`` each on one GPU."""

    group: str
    nbytes: float
    count: int = 1

    @property
    def resident(self) -> float:
        """Bytes that they occupy, with the allocator's rounding."""
        size = -(-self.nbytes // (2 * MIB)) * 2 * MIB if self.nbytes >= _LARGE else -(-self.nbytes // 512) * 512
        return size * self.count


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix of ``count`` layers, on one GPU.

    :param module: as the checkpoint names it below a layer; empty if it is never quantised.
    :param experts: how many of them lie in one tensor; 0: it is no expert's.
    """

    group: str
    part: Part
    count: int
    module: str = ""
    experts: int = 0
    biases: int = 0


def resident_bytes(tensors: t.Iterable[Tensor]) -> float:
    """Return the bytes that all tensors occupy on one GPU."""
    return sum(tensor.resident for tensor in tensors)


def target_tensors(model: Model, layout: Layout) -> list[Tensor]:
    """Return the tensors that one GPU holds of the model itself (without its multi-token-prediction head).

    :raises KproError: if the architecture's weights can't be told from the config.
    """
    _refuse_unknown_weights(model)
    tensors = _vocabulary(model, layout, heads=1 if model.tied else 2)
    for matrix in matrices(model, layout):
        tensors += _tensors(model, layout, matrix, model.scheme)
    tensors += _small(model, layout)
    tensors.append(Tensor("norms", 2 * model.hidden * 2, model.layers))
    tensors.append(Tensor("rope", model.max_position * model.rotary_dim * 4))
    if layout.with_vision:
        tensors += _vision(model, layout)
    return tensors


def draft_tensors(model: Model, layout: Layout) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of the multi-token-prediction head: (those that stay, those dropped once it uses the target's own)."""
    if not model.mtp_layers:
        reason = "speculation with the model's own head needs the field 'mtp_num_hidden_layers', and the config has none"
        raise KproError(f"model {model.architecture}", reason, "Turn speculation off", field="mtp_num_hidden_layers")
    _refuse_unknown_weights(model)
    stay: list[Tensor] = []
    sparse = model.experts is not None
    for matrix in _attention(model, layout, 1) + (_sparse(model, layout, 1) if sparse else _mlp(model, layout, "feed-forward", "mlp", model.intermediate, 1)):
        stay += _tensors(model, layout, matrix, model.scheme)
    stay.append(Tensor("draft projection", 2 * model.hidden * model.hidden * 2))
    stay.append(Tensor("norms", 5 * model.hidden * 2))
    return stay, _vocabulary(model, layout, heads=1 if model.tied else 2)


def parameters(model: Model) -> int:
    """Return how many parameters the model has without its head, each counted once."""
    plain = dataclasses.replace(model, scheme=Scheme())
    tensors = [tensor for tensor in target_tensors(plain, Layout(1, 1)) if tensor.group not in ("rope", "absorbed")]
    padding = (-model.vocab % _VOCABULARY_PADDING) * model.hidden * (1 if model.tied else 2)
    return int(sum(tensor.nbytes * tensor.count for tensor in tensors) / 2) - padding


def matrices(model: Model, layout: Layout) -> list[Matrix]:
    """Return the matrices of all layers."""
    found = _attention(model, layout, model.full_layers)
    if model.window:
        window = model.window
        windowed = dataclasses.replace(
            model, heads=window.heads, kv_heads=window.kv_heads, head_dim=window.head_dim, value_dim=window.value_dim, shares_value=False
        )
        found += _attention(windowed, layout, window.layers)
    found += _linear_attention(model, layout)
    found += _mlp(model, layout, "feed-forward", "mlp", model.intermediate, model.plain_layers)
    return found + _sparse(model, layout, model.expert_layers)


def faults(model: Model, layout: Layout) -> list[str]:
    """Return why the engine would refuse to make layers of a quantised model, one sentence a kind of layer."""
    if model.scheme.kind is None:
        return []
    found = []
    for matrix in matrices(model, layout):
        if model.architecture.startswith("MiMoV2") and matrix.module == "self_attn.q_proj":
            continue  # This class asks for no check (models/mimo_v2.py, skip_block_quant_check).
        if _kept(model, matrix) < matrix.count and _quantizable(model.scheme, matrix):
            found.append(fault_of(model.scheme, matrix.part, layout.generation))
    return list(dict.fromkeys(fault for fault in found if fault))


def _refuse_unknown_weights(model: Model) -> None:
    remedy = "Give model_path, so that the sum of the safetensors headers can be taken, or weights_gib from a start-up log"
    if model.by_headers:
        raise KproError(f"model {model.architecture}", model.by_headers, remedy)
    if model.scheme.method and model.scheme.kind is None:
        reason = f"the quantisation {model.quantization!r} says too little about the size of its weights"
        raise KproError(f"model {model.architecture}", reason, remedy, field="quant_method", value=model.quantization)


def _quantizable(scheme: Scheme, matrix: Matrix) -> bool:
    return scheme.kind is not None and bool(matrix.module) and (bool(matrix.experts) or not scheme.only_experts)


@functools.lru_cache(maxsize=1024)
def _layers_kept(scheme: Scheme, module: str, layers: int) -> int:
    return sum(scheme.keeps(f"layers.{number}.{module}") for number in range(layers)) if scheme.kept else 0


def _kept(model: Model, matrix: Matrix) -> int:
    """How many of its layers stay plain in a quantised checkpoint."""
    return min(matrix.count, _layers_kept(model.scheme, matrix.module, model.layers))


def _tensors(model: Model, layout: Layout, matrix: Matrix, scheme: Scheme) -> list[Tensor]:
    rows, columns, many = sum(matrix.part.widths), matrix.part.inputs, max(matrix.experts, 1)
    kept = _kept(model, matrix) if _quantizable(scheme, matrix) else matrix.count
    tensors = [Tensor(matrix.group, rows * columns * model.weight_bytes * many, kept)] if kept else []
    if kept < matrix.count:
        if scheme.only_experts:
            rows, columns = _filled(matrix, layout.generation)
        pieces = scheme.pieces(rows, columns, layout.generation, bool(matrix.experts))
        tensors += [Tensor(matrix.group, nbytes * many, matrix.count - kept) for nbytes in pieces]
    if matrix.biases:
        tensors.append(Tensor(matrix.group, rows * model.weight_bytes * many, matrix.count))
    return tensors


def _filled(matrix: Matrix, generation: int | None) -> tuple[float, float]:
    """The width of MXFP4 experts as their kernels take it (layers/quantization/mxfp4.py, create_weights)."""
    tile = _MXFP4_TILE_BLACKWELL if generation is not None and generation >= _BLACKWELL else _MXFP4_TILE

    def up(size: float) -> float:
        return -(-size // tile) * tile

    return sum(up(width) for width in matrix.part.widths), up(matrix.part.inputs)


def _vocabulary(model: Model, layout: Layout, heads: int) -> list[Tensor]:
    padded = -(-model.vocab // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    return [Tensor("embedding and head", padded * model.hidden * model.weight_bytes / layout.tp, heads)]


def _attention(model: Model, layout: Layout, layers: int) -> list[Matrix]:
    if model.latent:
        return _latent(model, layout, layers)
    split, kv = layout.attention_tp, max(model.kv_heads, layout.attention_tp)
    query = model.heads * (2 if model.output_gate else 1) * model.head_dim / split
    key, value = kv * model.head_dim / split, kv * (model.value_dim or model.head_dim) / split
    widths = (query, key, value)
    merged = Part("the merged query, key and value", widths, model.hidden, "out", split)
    output = Part("the attention's output", (model.hidden,), model.heads * (model.value_dim or model.head_dim) / split, "in", split)
    return [
        Matrix("attention", merged, layers, "self_attn.q_proj", biases=int(model.attention_bias)),
        Matrix("attention", output, layers, "self_attn.o_proj", biases=int(model.output_bias)),
    ]


def _latent(model: Model, layout: Layout, layers: int) -> list[Matrix]:
    """Multi-head latent attention (models/deepseek_v2.py): the compressing matrices are on each GPU."""
    latent, split = model.latent, layout.attention_tp
    if latent is None:
        raise AssertionError("a family of this cache has its sizes")
    heads, query = model.heads / split, latent.nope + latent.rope
    found = []
    if latent.query_rank:
        narrow = Part("the compressed query, key and value", (latent.query_rank + latent.rank + latent.rope,), model.hidden, "", 1)
        wide = Part("the query", (heads * query,), latent.query_rank, "out", split)
        found += [Matrix("attention", narrow, layers, "self_attn.q_a_proj"), Matrix("attention", wide, layers, "self_attn.q_b_proj")]
    else:
        found.append(Matrix("attention", Part("the query", (heads * query,), model.hidden, "out", split), layers, "self_attn.q_proj"))
        narrow = Part("the compressed key and value", (latent.rank + latent.rope,), model.hidden, "", 1)
        found.append(Matrix("attention", narrow, layers, "self_attn.kv_a_proj_with_mqa"))
    key_value = Part("key and value", (heads * (latent.nope + latent.value),), latent.rank, "out", split)
    found.append(Matrix("attention", key_value, layers, "self_attn.kv_b_proj"))
    # The engine keeps a second form of it, in 16 bit, for attention on the compressed vectors (w_kc, w_vc).
    found.append(Matrix("absorbed", key_value, layers))
    output = Part("the attention's output", (model.hidden,), heads * latent.value, "in", split)
    return [*found, Matrix("attention", output, layers, "self_attn.o_proj")]


def _linear_attention(model: Model, layout: Layout) -> list[Matrix]:
    linear = model.linear
    if linear is None:
        return []
    if linear.kind == MAMBA:
        return _mamba(model, layout)
    key, value = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    split, group, count = layout.attention_tp, "linear attention", linear.layers
    wide = Part("the merged projection of the linear attention", (key / split, key / split, value / split), model.hidden, "out", split)
    output = Part("the linear attention's output", (model.hidden,), value / split, "in", split)
    found = [Matrix(group, wide, count, "linear_attn.in_proj_qkv"), Matrix(group, output, count, "linear_attn.out_proj")]
    if linear.kind == KDA:
        low, heads = linear.key_dim, linear.value_heads / split
        found += [Matrix(group, Part("", (low,), model.hidden, "", 1), 2 * count), Matrix(group, Part("", (key / split,), low, "out", split), 2 * count)]
        found.append(Matrix(group, Part("", (heads,), model.hidden, "out", split), count))
    else:
        gate = Part("the gate of the linear attention", (value / split,), model.hidden, "out", split)
        found.append(Matrix(group, gate, count, "linear_attn.in_proj_z"))
        found.append(Matrix(group, Part("", (linear.value_heads / split,), model.hidden, "out", split), 2 * count))
    return [*found, Matrix(group, Part("", ((2 * key + value) / split,), linear.kernel, "out", split), count)]


def _mamba(model: Model, layout: Layout) -> list[Matrix]:
    """Mamba-2 (layers/attention/mamba/mamba.py): gate, input, groups and steps are one matrix."""
    linear, split, group = model.linear, layout.attention_tp, "mamba"
    if linear is None:
        raise AssertionError("a family of this state has its sizes")
    inner, groups = linear.value_heads * linear.value_dim, max(linear.key_heads, split) * linear.key_dim
    widths = (inner / split, inner / split, groups / split, groups / split, linear.value_heads / split)
    wide = Part("the mamba's input", widths, model.hidden, "out", split)
    output = Part("the mamba's output", (model.hidden,), inner / split, "in", split)
    window = Part("", ((inner + 2 * groups) / split,), linear.kernel, "out", split)
    return [
        Matrix(group, wide, linear.layers, "mamba.in_proj"),
        Matrix(group, output, linear.layers, "mamba.out_proj"),
        Matrix(group, window, linear.layers, biases=1),
    ]


def _small(model: Model, layout: Layout) -> list[Tensor]:
    """Vectors of the layers with state."""
    linear = model.linear
    if linear is None:
        return []
    heads = linear.value_heads / layout.attention_tp
    if linear.kind == MAMBA:
        return [Tensor("mamba", heads * 4, 3 * linear.layers), Tensor("mamba", heads * linear.value_dim * 2, linear.layers)]
    return [Tensor("linear attention", heads * 4, 2 * linear.layers)]


def _sparse(model: Model, layout: Layout, layers: int) -> list[Matrix]:
    experts = model.experts
    if experts is None or not layers:
        return []
    width, inputs, tp = experts.intermediate / layout.tp, experts.width or model.hidden, layout.tp
    merged = (width, width) if model.gated else (width,)
    found = [
        Matrix("experts", Part("an expert", merged, inputs, "out", tp, True), layers, "mlp.experts", experts.count, int(experts.bias)),
        Matrix("experts", Part("an expert", (inputs,), width, "", 1), layers, "mlp.experts", experts.count, int(experts.bias)),
        Matrix("router", Part("", (experts.count,), model.hidden, "", 1), layers),
    ]
    if experts.width:
        found.append(Matrix("experts", Part("", (experts.width,), model.hidden, "", 1), 2 * layers))
    if experts.shared_intermediate:
        shared = "mlp.shared_experts"
        found += _mlp(model, layout, "shared expert", shared, experts.shared_intermediate, layers)
        if model.architecture.startswith(("Qwen2Moe", "Qwen3Next", "Qwen3_5")):
            found.append(Matrix("router", Part("", (1,), model.hidden, "", 1), layers))
    return found


def _mlp(model: Model, layout: Layout, group: str, module: str, width: int, layers: int) -> list[Matrix]:
    if not layers or not width:
        return []
    each, tp = width / layout.tp, layout.tp
    merged = (each, each) if model.gated else (each,)
    return [
        Matrix(group, Part(f"the {group}", merged, model.hidden, "out", tp), layers, f"{module}.gate_proj"),
        Matrix(group, Part(f"the {group}'s output", (model.hidden,), each, "in", tp), layers, f"{module}.down_proj"),
    ]


def _vision(model: Model, layout: Layout) -> list[Tensor]:
    vision = model.vision
    if model.tower is not None:
        blocks = Tensor("vision tower", model.tower.block * 2 / layout.attention_tp, model.tower.depth)
        return [blocks, Tensor("vision tower", model.tower.whole * 2)]
    if vision is None:
        return []
    split, hidden, size, group = layout.attention_tp, vision.hidden, model.weight_bytes, "vision tower"
    patch = vision.channels * vision.temporal_patch * vision.patch**2 * hidden + hidden
    merged = hidden * vision.merge**2
    block = [
        Tensor(group, (3 * hidden * hidden + 3 * hidden) / split * size, vision.depth),
        Tensor(group, hidden * hidden / split * size, vision.depth),
        Tensor(group, hidden * vision.intermediate / split * size, 2 * vision.depth),
        Tensor(group, (vision.intermediate / split + 6 * hidden) * size, vision.depth),
    ]
    merger = [
        Tensor(group, merged * merged / split * size, 1 + vision.deepstack),
        Tensor(group, merged * vision.out_hidden / split * size, 1 + vision.deepstack),
    ]
    return [Tensor(group, patch * size), Tensor(group, vision.positions * hidden * size), *block, *merger]
