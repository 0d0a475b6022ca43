# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._model import safetensors


def test_sums_go_by_element_type_over_all_files() -> None:
    first = {"a": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]}, "b": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [16, 19]}}
    second = {"c": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}}
    found = safetensors.summed([first, second])
    assert found.bytes_by_dtype == {"BF16": 18, "F8_E4M3": 3}
    assert found.parameters_by_dtype == {"BF16": 9, "F8_E4M3": 3}
    assert found.tensors == 3


@pytest.mark.parametrize("prefix", [b"<!DOCTYPE", b"", b"\0\1", (2000).to_bytes(8, "little")])
def test_a_file_that_is_no_safetensors_file_is_refused(prefix: bytes) -> None:
    with pytest.raises(KproError, match=r"no safetensors file|it is truncated"):
        safetensors.header_size(prefix, "x", 1000)


@pytest.mark.parametrize("header", [b"", b"[]", b"{", b'{"a": 1}', b'{"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0]}}', b"\xff\xfe"])
def test_a_header_of_another_form_is_refused(header: bytes) -> None:
    with pytest.raises(KproError, match="header cannot be read"):
        safetensors.tensors_of(header, "x")


TENSOR = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "tensor",
    [
        {**TENSOR, "data_offsets": [4, 0]},
        {**TENSOR, "data_offsets": [-4, 0]},
        {**TENSOR, "data_offsets": [0, 2**70]},
        {**TENSOR, "data_offsets": [0, 1001]},
        {**TENSOR, "data_offsets": [0.0, 4.0]},
        {**TENSOR, "data_offsets": "04"},
        {**TENSOR, "data_offsets": [0, 1, 2]},
        {**TENSOR, "shape": [-1]},
        {**TENSOR, "shape": [2**40, 2**40]},
        {**TENSOR, "shape": [1] * 17},
        {**TENSOR, "shape": {}},
        {**TENSOR, "dtype": "\x1b[2J"},
        {**TENSOR, "dtype": 7},
        {**TENSOR, "dtype": None},
        [],
        None,
    ],
    ids=str,
)
def test_a_tensor_that_can_not_be_one_is_refused(tensor: t.Any) -> None:
    with pytest.raises(KproError, match="header cannot be read") as error:
        safetensors.tensors_of(json.dumps({"a": TENSOR, "b": tensor}).encode(), "x", 1000)
    assert error.value.sentence.isprintable()


def test_a_tensor_that_is_in_two_files_counts_once() -> None:
    assert safetensors.summed([{"a": TENSOR}, {"a": TENSOR, "b": TENSOR}]).tensors == 2


def test_a_header_of_deep_nesting_or_endless_names_is_refused() -> None:
    for header in (b'{"a":' * 60_000, json.dumps({"n" * 2000: TENSOR}).encode()):
        with pytest.raises(KproError, match="header cannot be read"):
            safetensors.tensors_of(header, "x")
