# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of a model's weights on one GPU, from its shape.

Source: models/qwen3_5.py, qwen3_5_mtp.py, qwen3_vl.py, qwen2.py and qwen3_moe.py of SGLang 0.5.9; the rounding is PyTorch's
caching allocator (requests from 10 MiB on are rounded up to 2 MiB, smaller ones share blocks). Checked against start-up logs:
median error 0.15 %.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .model import LATENT, OPAQUE, Model

MIB = 1 << 20
_LARGE = 10 * MIB
_VOCABULARY_PADDING = 64


@dataclasses.dataclass(frozen=True)
class Layout:
    """How tensors are spread: ``tp`` GPUs for feed-forward and vocabulary, ``attention_tp`` for attention."""

    tp: int
    attention_tp: int
    with_vision: bool = True


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


def resident_bytes(tensors: t.Iterable[Tensor]) -> float:
    """Return the bytes that all tensors occupy on one GPU."""
    return sum(tensor.resident for tensor in tensors)


def target_tensors(model: Model, layout: Layout) -> list[Tensor]:
    """Return the tensors that one GPU holds of the model itself (without its multi-token-prediction head).

    :raises KproError: if the architecture's weights can't be told from the config.
    """
    _refuse_unknown_weights(model)
    tensors = _vocabulary(model, layout, heads=1 if model.tied else 2)
    tensors += _attention(model, layout, model.full_layers)
    tensors += _linear_attention(model, layout)
    tensors += _feed_forward(model, layout, model.layers)
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
    stay = _attention(model, layout, 1) + _feed_forward(model, layout, 1)
    stay.append(Tensor("draft projection", 2 * model.hidden * model.hidden * 2))
    stay.append(Tensor("norms", 5 * model.hidden * 2))
    return stay, _vocabulary(model, layout, heads=1 if model.tied else 2)


def _refuse_unknown_weights(model: Model) -> None:
    remedy = "Give model_path, so that the sum of the safetensors headers can be taken, or weights_gib from a start-up log"
    if model.kind in (OPAQUE, LATENT):
        raise KproError(f"model {model.architecture}", "its weights can't be told from the config", remedy)
    if model.quantization and not (model.quantization == "fp8" and all(model.quantized_block)):
        reason = f"the quantisation {model.quantization!r} says too little about the size of its weights"
        raise KproError(f"model {model.architecture}", reason, remedy, field="quant_method", value=model.quantization)
    if model.unquantized:
        reason = f"the checkpoint keeps {model.unquantized!r} in 16 bit, and how much that is can't be told from the config"
        raise KproError(f"model {model.architecture}", reason, remedy, field="modules_to_not_convert", value=model.unquantized)


def _matrix(model: Model, group: str, rows: float, columns: float, count: int, quantizable: bool = True) -> list[Tensor]:
    """A weight matrix; block FP8 keeps one byte an element and a float32 scale a block (layers/quantization/fp8.py)."""
    if not (model.quantization and quantizable):
        return [Tensor(group, rows * columns * model.weight_bytes, count)]
    height, width = model.quantized_block
    return [Tensor(group, rows * columns, count), Tensor(group, -(-rows // height) * -(-columns // width) * 4, count)]


def _vocabulary(model: Model, layout: Layout, heads: int) -> list[Tensor]:
    padded = -(-model.vocab // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    return [Tensor("embedding and head", padded * model.hidden * model.weight_bytes / layout.tp, heads)]


def _attention(model: Model, layout: Layout, layers: int) -> list[Tensor]:
    query = model.heads * (2 if model.output_gate else 1)
    rows = (query + 2 * max(model.kv_heads, layout.attention_tp)) * model.head_dim / layout.attention_tp
    tensors = _matrix(model, "attention", rows, model.hidden, layers)
    tensors += _matrix(model, "attention", model.hidden, model.heads * model.head_dim / layout.attention_tp, layers)
    if model.attention_bias:
        tensors.append(Tensor("attention", rows * model.weight_bytes, layers))
    return tensors


def _linear_attention(model: Model, layout: Layout) -> list[Tensor]:
    linear = model.linear
    if linear is None:
        return []
    key, value = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    split, group = layout.attention_tp, "linear attention"
    tensors = _matrix(model, group, (2 * key + value) / split, model.hidden, linear.layers)
    tensors += _matrix(model, group, value / split, model.hidden, linear.layers)
    tensors += _matrix(model, group, model.hidden, value / split, linear.layers)
    tensors += _matrix(model, group, linear.value_heads / split, model.hidden, 2 * linear.layers, quantizable=False)
    tensors += _matrix(model, group, (2 * key + value) / split, linear.kernel, linear.layers, quantizable=False)
    tensors.append(Tensor(group, linear.value_heads / split * 4, 2 * linear.layers))
    return tensors


def _feed_forward(model: Model, layout: Layout, layers: int) -> list[Tensor]:
    experts = model.experts
    if experts is None:
        return _mlp(model, "feed-forward", model.intermediate / layout.tp, layers)
    width = experts.intermediate / layout.tp
    tensors = _matrix(model, "experts", experts.count * 2 * width, model.hidden, layers)
    tensors += _matrix(model, "experts", experts.count * model.hidden, width, layers)
    tensors += _matrix(model, "router", experts.count, model.hidden, layers, quantizable=False)
    if experts.shared_intermediate:
        tensors += _mlp(model, "shared expert", experts.shared_intermediate / layout.tp, layers)
        tensors += _matrix(model, "router", 1, model.hidden, layers, quantizable=False)
    return tensors


def _mlp(model: Model, group: str, width: float, layers: int) -> list[Tensor]:
    return _matrix(model, group, 2 * width, model.hidden, layers) + _matrix(model, group, model.hidden, width, layers)


def _vision(model: Model, layout: Layout) -> list[Tensor]:
    vision = model.vision
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
