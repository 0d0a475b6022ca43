# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a quantised layer can be divided by, and which cards take it: asked of the engine's own checks, out of the published wheels."""

from __future__ import annotations

import itertools
import random
import types
import typing as t

import pytest
import stubs
from wheels import Wheel, fetch_pinned

from ansible_collections.kpro.llm.plugins.module_utils._vram.quantization import (
    FP8_GENERATION,
    MARLIN_GENERATION,
    Kind,
    Part,
    Scheme,
    fault_of,
    least_generation,
)

LANES = ("0.5.9", "0.5.10.post1", "0.5.23")
FP8 = Scheme("fp8", Kind(8, True, 128, 128, 4))
AWQ = Scheme("awq", Kind(4, False, 1, 128, 2, True))


def _dense_check(wheel: Wheel) -> t.Callable[[Part, int], bool]:
    """validate_block_quant_shapes: whether it takes a matrix that is divided."""
    names = stubs.namespace(print_warning_once=lambda _text: None)
    where = (
        "layers/quantization/fp8.py" if "def validate_block_quant_shapes" in wheel.source("layers/quantization/fp8.py") else "layers/quantization/fp8_utils.py"
    )
    inside = "Fp8LinearMethod" if where.endswith("fp8.py") else ""
    nodes = wheel.nodes(where, ["validate_block_quant_shapes"], inside)
    for node in nodes:
        node.decorator_list = []  # type: ignore[attr-defined]
    check = stubs.define(names, nodes)["validate_block_quant_shapes"]

    def takes(part: Part, ways: int) -> bool:
        whole_in = int(part.inputs) * (ways if part.split == "in" else 1)
        each = [int(width) for width in part.widths]
        whole_out = sum(each) * (ways if part.split == "out" else 1)
        layer = types.SimpleNamespace(tp_group=types.SimpleNamespace(world_size=ways), tp_size=ways)
        names["get_tensor_model_parallel_world_size"] = lambda: ways
        config = types.SimpleNamespace(weight_block_size=[128, 128])
        try:
            check(layer, config, whole_in, int(part.inputs), whole_out, sum(each), each)
        except ValueError:
            return False
        return True

    return takes


@pytest.mark.parametrize("version", ["0.5.23"])
def test_block_fp8_is_refused_where_the_engine_refuses_it(version: str) -> None:
    takes, dice = _dense_check(fetch_pinned(version)), random.Random(version)
    refused = 0
    for _number in range(3000):
        ways = dice.choice((1, 2, 4, 8))
        widths = tuple(float(dice.choice((64, 96, 128, 192, 256, 512, 1024))) for _part in range(dice.choice((1, 2, 3))))
        part = Part("x", widths, float(dice.choice((64, 128, 192, 384, 512))), dice.choice(("in", "out", "")), ways)
        if part.split == "in" and len(widths) > 1:
            continue
        assert (fault_of(FP8, part, 90) == "") == takes(part, ways), part
        refused += not takes(part, ways)
    assert refused > 300


@pytest.mark.parametrize("version", LANES)
def test_the_text_of_these_refusals_is_in_every_lane(version: str) -> None:
    wheel = fetch_pinned(version)
    source = wheel.source("layers/quantization/fp8.py") + wheel.source("layers/quantization/fp8_utils.py")
    for words in ("weight quantization block_n = {block_n}", "weight quantization block_k = {block_k}", "The output_size of gate's and up's weight = "):
        assert words in source, words


@pytest.mark.parametrize("version", LANES)
def test_fp8_is_repacked_for_exactly_these_generations(version: str) -> None:
    names = stubs.namespace()
    enabled = stubs.define(names, fetch_pinned(version).nodes("layers/quantization/fp8_utils.py", ["can_auto_enable_marlin_fp8"]))["can_auto_enable_marlin_fp8"]
    for major, minor in itertools.product(range(7, 13), range(10)):
        names["get_device_capability"] = lambda pair=(major, minor): pair
        assert FP8.marlin(major * 10 + minor) == bool(enabled()), (major, minor)
    assert (MARLIN_GENERATION, FP8_GENERATION) == (80, 89)
    # Experts have no such branch: their method never asks for Marlin in FP8.
    experts = fetch_pinned(version).source("layers/quantization/fp8.py").split("class Fp8MoEMethod", 1)[1]
    assert "can_auto_enable_marlin_fp8" not in experts and "prepare_moe_fp8_layer_for_marlin" not in experts


@pytest.mark.parametrize("version", LANES)
def test_a_group_of_whole_numbers_is_not_cut(version: str) -> None:
    wheel = fetch_pinned(version)
    names = stubs.namespace(GPTQ_MARLIN_MIN_THREAD_N=64, GPTQ_MARLIN_MIN_THREAD_K=128)
    check = stubs.define(names, wheel.nodes("layers/quantization/marlin_utils.py", ["verify_marlin_supports_shape"]))["verify_marlin_supports_shape"]
    for inputs, ways in itertools.product((64, 128, 192, 256, 384, 448, 512, 640), (2, 4, 8)):
        fault = fault_of(AWQ, Part("x", (512.0,), float(inputs), "in", ways), 86)
        try:
            check(512, inputs, inputs * ways, 128)
            refused = False
        except ValueError:
            refused = True
        assert bool(fault) == refused, (inputs, ways)
    source = (
        wheel.source("layers/quantization/awq/awq.py")
        if "layers/quantization/awq/awq.py" in wheel.files("layers/quantization/awq")
        else wheel.source("layers/quantization/awq.py")
    )
    assert "Marlin" in source


@pytest.mark.parametrize(
    ("method", "file", "owner"), [("fp8", "layers/quantization/fp8.py", "Fp8Config"), ("mxfp4", "layers/quantization/mxfp4.py", "Mxfp4Config")]
)
@pytest.mark.parametrize("version", LANES)
def test_the_least_generation_is_the_engines(version: str, method: str, file: str, owner: str) -> None:
    nodes = fetch_pinned(version).nodes(file, ["get_min_capability"], owner)
    for node in nodes:
        node.decorator_list = []  # type: ignore[attr-defined]
    names = stubs.namespace(
        is_npu=lambda: False, _is_musa=False, is_musa=lambda: False, _is_hip=False, _is_gfx95_supported=False, _mxfp8_to_block_fp8_required=False
    )
    least = stubs.define(names, nodes)["get_min_capability"](types.SimpleNamespace(use_mxfp8=False))
    assert least == least_generation(method, version)
