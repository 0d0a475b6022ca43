# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from the headers of safetensors files: for quantised and mixed checkpoints. PRIVATE: for use in kpro.llm only.

A file begins with the length of its header (eight bytes, little endian), then the header as JSON: name, dtype, shape and the
offsets of each tensor.
"""

from __future__ import annotations

import json
import math
import re
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._plan_core import HeaderWeights
from ansible_collections.kpro.llm.plugins.module_utils._plan_model import Model
from ansible_collections.kpro.llm.plugins.module_utils._plan_weights import Layout, Tensor, resident_bytes

LENGTH_BYTES = 8
# A header of all tensors of a large model takes a few hundred KiB; the format's own limit is 100 MB.
LARGEST_HEADER = 100_000_000

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


def header_length(start: bytes, file_size: int, path: str) -> int:
    """Return the length of the header from a file's first eight bytes.

    :raises KproError: if the file is too short to hold the header that it announces.
    """
    if len(start) < LENGTH_BYTES:
        raise KproError(path, f"it is {file_size} bytes long, too short for a safetensors header", "Download it again", field="header length")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if not 2 <= length <= LARGEST_HEADER or length + LENGTH_BYTES > file_size:
        reason = f"its header says {length} bytes and the file has {file_size}: it is truncated or no safetensors file"
        raise KproError(path, reason, "Download it again", field="header length", value=length)
    return length


def parse_header(text: bytes, file_size: int, path: str) -> list[Entry]:
    """Return the tensors that a header lists.

    :param file_size: bytes of the whole file, which the last tensor has to end at.
    :raises KproError: for a header that can't be read, and for a file shorter than its tensors.
    """
    try:
        header = json.loads(text)
        entries = [Entry(name, _span(item)) for name, item in header.items() if name != "__metadata__"]
        end = max((item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise KproError(path, f"its safetensors header can't be read ({error})", "Download it again", field="header") from error
    present = file_size - LENGTH_BYTES - len(text)
    if end > present:
        reason = f"its tensors take {end} bytes and the file holds {present}: it is truncated"
        raise KproError(path, reason, "Download it again", field="data_offsets", value=end)
    return entries


def _span(item: t.Mapping[str, t.Any]) -> int:
    start, end = item["data_offsets"]
    if not 0 <= start <= end:
        raise ValueError(f"offsets {start} to {end}")
    return int(end - start)


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
