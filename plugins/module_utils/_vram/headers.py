# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from the headers of safetensors files: for quantised and mixed checkpoints."""

from __future__ import annotations

import math
import re
import typing as t

from .._core.errors import KproError
from .._model.safetensors import PREFIX_BYTES, tensors_of
from .core import HeaderWeights
from .model import Model
from .weights import Layout, Tensor, resident_bytes

# Which tensors are divided among the GPUs, by the end of their name; all others are on each GPU.
_BY_ATTENTION = re.compile(
    r"\.(q_proj|o_proj|qkv_proj|in_proj_qkvz?|in_proj_z|in_proj_ba?|in_proj_a|out_proj|conv1d|A_log|dt_bias|qkv|proj|linear_fc[12])"
    r"(\.(weight|weight_scale\w*|weight_packed|weight_global_scale|qweight|qzeros|scales|bias))?$"
)
_BY_KV_HEADS = re.compile(r"\.(k_proj|v_proj)\.(weight|weight_scale\w*|weight_packed|qweight|qzeros|scales|bias)$")
_BY_ALL = re.compile(
    r"\.(gate_proj|up_proj|down_proj|gate_up_proj|w[123]|embed_tokens|lm_head)"
    r"(\.(weight|weight_scale\w*|weight_packed|qweight|qzeros|scales))?$|^lm_head\.weight"
)
_DRAFT = re.compile(r"^(model\.)?mtp\.")
_VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model|multi_modal_projector)\.")
_VOCABULARY = re.compile(r"(^|\.)(embed_tokens|lm_head)\.")


class Entry(t.NamedTuple):
    """One tensor of a header."""

    name: str
    nbytes: int


def entries_of(header: bytes, size_bytes: int, path: str) -> list[Entry]:
    """Return the tensors that a header lists.

    :param size_bytes: length of the whole file, which the last tensor has to fit in.
    :raises KproError: for a header that can't be read, and for a file shorter than its tensors.
    """
    tensors = tensors_of(header, path)
    entries = [Entry(name, tensor["data_offsets"][1] - tensor["data_offsets"][0]) for name, tensor in tensors.items()]
    end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    present = size_bytes - PREFIX_BYTES - len(header)
    if end > present:
        reason = f"its data_offsets end at {end} bytes and the file holds {present}: it is truncated"
        raise KproError(path, reason, "Download it again", field="data_offsets", value=end)
    return entries


def header_weights(entries: t.Iterable[Entry], model: Model, layout: Layout) -> HeaderWeights:
    """Return the bytes that one GPU holds, from the tensors of all files.

    :raises KproError: if there is no tensor.
    """
    target: list[Tensor] = []
    stay: list[Tensor] = []
    drop: list[Tensor] = []
    for entry in entries:
        tensor = Tensor("headers", entry.nbytes / _divisor(entry.name, model, layout))
        if _DRAFT.search(entry.name):
            stay.append(tensor)
        elif layout.with_vision or not _VISION.search(entry.name):
            target.append(tensor)
        if _VOCABULARY.search(entry.name) and not _VISION.search(entry.name):
            drop.append(tensor)
    if not target:
        raise KproError("safetensors headers", "they list no tensor of the model", "Give the folder that holds the whole checkpoint")
    target.append(Tensor("rope", model.max_position * model.rotary_dim * 4))
    return HeaderWeights(resident_bytes(target), resident_bytes(stay), resident_bytes(drop) if stay else 0.0)


def _divisor(name: str, model: Model, layout: Layout) -> float:
    if _BY_KV_HEADS.search(name):
        return layout.attention_tp * model.kv_heads / max(model.kv_heads, layout.attention_tp)
    if _BY_ALL.search(name):
        return layout.tp
    return layout.attention_tp if _BY_ATTENTION.search(name) and "patch_embed" not in name else 1


def parameters_gib(entries: t.Iterable[Entry]) -> float:
    """Return the sum of all tensors in GiB."""
    return math.fsum(entry.nbytes for entry in entries) / 2**30
