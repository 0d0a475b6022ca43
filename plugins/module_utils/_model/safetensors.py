# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the weights of a model are, from the headers of its safetensors files alone."""

from __future__ import annotations

import dataclasses
import json
import math
import typing as t

from .._core.errors import KproError

PREFIX_BYTES = 8
# The format's own limit for a header.
LONGEST_HEADER_BYTES = 100_000_000


@dataclasses.dataclass(frozen=True)
class Weights:
    """Sums over the tensors of a model: bytes and parameters by element type (``BF16``, ``F8_E4M3`` ...)."""

    bytes_by_dtype: t.Mapping[str, int]
    parameters_by_dtype: t.Mapping[str, int]
    tensors: int

    def to_dict(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)


def header_size(prefix: bytes, path: str, size_bytes: int) -> int:
    """Return the length of a safetensors header from the first 8 bytes.

    :raises KproError: if that cannot be one of a file of this size.
    """
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if len(prefix) < PREFIX_BYTES:
        raise KproError(
            path, f"its header length needs {PREFIX_BYTES} bytes and the file holds {size_bytes}: it is truncated", "Fetch it again", value=size_bytes
        )
    if length > LONGEST_HEADER_BYTES:
        raise KproError(path, f"it is no safetensors file (header length 0x{prefix[:8].hex()})", "Fetch it again", field="header length")
    if PREFIX_BYTES + length > size_bytes:
        reason = f"its header length is {length} bytes and the file holds {size_bytes}: it is truncated"
        raise KproError(path, reason, "Fetch it again", field="header length", value=length)
    return length


def tensors_of(header: bytes, path: str) -> dict[str, t.Any]:
    """Return name -> dtype, shape, data_offsets of a header.

    :raises KproError: if it is not JSON of that form.
    """
    try:
        found = json.loads(header)
        found.pop("__metadata__", None)
        for tensor in found.values():
            _seen = tensor["dtype"], tensor["shape"], tensor["data_offsets"][1] - tensor["data_offsets"][0]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise KproError(path, "its safetensors header cannot be read", "Fetch it again") from error
    return t.cast("dict[str, t.Any]", found)


def summed(headers: t.Iterable[t.Mapping[str, t.Any]]) -> Weights:
    """Return the sums over the tensors of all files."""
    sizes: dict[str, int] = {}
    parameters: dict[str, int] = {}
    count = 0
    for tensors in headers:
        for tensor in tensors.values():
            kind, (start, end) = tensor["dtype"], tensor["data_offsets"]
            sizes[kind] = sizes.get(kind, 0) + end - start
            parameters[kind] = parameters.get(kind, 0) + math.prod(tensor["shape"])
            count += 1
    return Weights(sizes, parameters, count)
