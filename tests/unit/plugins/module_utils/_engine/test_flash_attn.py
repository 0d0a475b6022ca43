# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.gpu_settings import TRITON, attention_for, flash_attn_package
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES


@pytest.mark.parametrize(
    ("capabilities", "toolkit", "backend", "falls_back"),
    [
        (["8.6"], True, "flashinfer", True),
        (["8.9"], True, "flashinfer", True),
        (["12.0"], True, "flashinfer", True),
        (["9.0"], False, "fa3", True),
        (["10.0"], True, "trtllm_mha", True),
        (["8.6"], False, "triton", False),
        (["7.5"], True, "triton", False),
        # What only one of two kinds of GPUs has is no choice for both.
        (["8.6", "9.0"], True, "flashinfer", True),
    ],
)
def test_attention_fits_the_architecture(capabilities: list[str], toolkit: bool, backend: str, falls_back: bool) -> None:
    found = attention_for(LANES["cu13"], capabilities, toolkit)
    assert found.options["attention_backend"] == backend
    assert found.fallback == (TRITON if falls_back else {})


def test_nothing_is_said_of_a_lane_without_cuda_or_of_unknown_gpus() -> None:
    assert not attention_for(LANES["cpu"], ["8.6"], True).options
    assert not attention_for(LANES["cu13"], [], True).options


@pytest.mark.parametrize(
    ("capabilities", "archs", "listed"),
    [(["8.6"], "80", "8.6"), (["8.9", "8.6"], "80", "8.6;8.9"), (["12.0", "8.6"], "80;120", "8.6;12.0"), (["10.3"], "100", "10.3")],
)
def test_flash_attn_is_built_for_the_gpus_that_are_there_and_no_others(capabilities: list[str], archs: str, listed: str) -> None:
    package = flash_attn_package(LANES["cu13"], "3.11", capabilities, "/srv/wheels", build=True)
    assert package["variables"]["FLASH_ATTN_CUDA_ARCHS"] == archs == package["tags"]["sm"]
    assert package["variables"]["TORCH_CUDA_ARCH_LIST"] == listed
    assert package["variables"]["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE"


@pytest.mark.parametrize(
    ("lane", "capabilities", "says"),
    [("cpu", ["8.6"], "no CUDA"), ("cu13", [], "architecture of the GPUs is not known"), ("cu13", ["7.5"], "no kernels for compute capability 7.5")],
)
def test_flash_attn_without_a_fitting_gpu_is_refused_with_the_way_out(lane: str, capabilities: list[str], says: str) -> None:
    with pytest.raises(KproError, match=says) as failure:
        flash_attn_package(LANES[lane], "3.11", capabilities, "/srv/wheels", build=True)
    assert "none" in failure.value.remedy
