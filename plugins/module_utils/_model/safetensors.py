# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's weights, from the headers of its safetensors files alone."""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

from .._core.errors import KproError
from .._core.untrusted_json import LARGEST, BadJson, count_of, object_of

PREFIX_BYTES = 8
# The format allows 100 MB; a file of a model has a few, and all of a header has to be held in memory.
LONGEST_HEADER_BYTES = 32 << 20
LONGEST_NAME = 1024
MOST_DIMENSIONS = 16
_DTYPE = re.compile(r"[A-Z][A-Z0-9_]{0,15}")


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


def tensors_of(header: bytes, path: str, size_bytes: int = LARGEST) -> dict[str, t.Any]:
    """Return name -> dtype, shape, data_offsets of a header.

    :param size_bytes: length of the whole file, in which the tensors have to lie.
    :raises KproError: if it is not JSON of that form.
    """
    try:
        found = object_of(header, LONGEST_HEADER_BYTES)
        found.pop("__metadata__", None)
        for name, tensor in found.items():
            _check_tensor(name, tensor, size_bytes)
    except (BadJson, KeyError, TypeError, AttributeError) as error:
        reason = f" ({error})" if isinstance(error, BadJson) else ""
        raise KproError(path, f"its safetensors header cannot be read{reason}", "Fetch it again") from error
    return found


def _check_tensor(name: str, tensor: t.Any, size_bytes: int) -> None:
    """Refuse what can't be a tensor, so that its numbers can be summed up."""
    offsets, shape = tensor["data_offsets"], tensor["shape"]
    if len(name) > LONGEST_NAME or not isinstance(tensor["dtype"], str) or not _DTYPE.fullmatch(tensor["dtype"]):
        raise BadJson("a tensor has no proper name or type")
    if not isinstance(offsets, list) or len(offsets) != 2 or not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise BadJson("a tensor has no proper place or shape")
    start, end = (count_of(offset, size_bytes) for offset in offsets)
    count_of(math.prod(map(count_of, shape)))
    if start > end:
        raise BadJson("a tensor ends before it begins")


def summed(headers: t.Iterable[t.Mapping[str, t.Any]]) -> Weights:
    """Return the sums over the tensors of all files; one that is in two files is loaded into one place, and counts once."""
    sizes: dict[str, int] = {}
    parameters: dict[str, int] = {}
    names: set[str] = set()
    count = 0
    for tensors in headers:
        for name, tensor in tensors.items():
            if name in names:
                continue
            names.add(name)
            kind, (start, end) = tensor["dtype"], tensor["data_offsets"]
            sizes[kind] = sizes.get(kind, 0) + end - start
            parameters[kind] = parameters.get(kind, 0) + math.prod(tensor["shape"])
            count += 1
    return Weights(sizes, parameters, count)
