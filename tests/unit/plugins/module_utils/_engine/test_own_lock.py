# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lane with a lock file of the user's own: a newer engine on the lane's driver and CUDA, or a refusal that names the way out."""

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.filter.sglang_lane import sglang_lane
from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES, with_pins

CUDA13 = {"sglang": "0.6.1", "torch": "2.15.0+cu130", "nvidia-cuda-runtime": "13.2.1", "nvidia-cudnn-cu13": "9.3"}


def test_another_engine_on_the_lanes_driver_and_cuda() -> None:
    lane = with_pins(LANES["cu13"], CUDA13, "lock")
    assert (lane.engine_version, lane.torch_version) == ("0.6.1", "2.15.0")
    assert (lane.name, lane.driver_min_major, lane.cuda, lane.pythons) == ("cu13", 580, "13.0", LANES["cu13"].pythons)


@pytest.mark.parametrize(
    ("name", "pins", "words"),
    [
        ("cu13", {"torch": "2.15.0"}, ("it names no sglang", "sglang_runtime__lock")),
        ("cu13", {"sglang": "0.5.10.post1", "nvidia-cuda-runtime-cu12": "12.8.90"}, ("for CUDA 12", "sglang_runtime__lane: cu12")),
        ("cu12", CUDA13, ("for CUDA 13", "sglang_runtime__lane: cu13")),
        ("cpu", CUDA13, ("lane cpu uses no GPU", "sglang_runtime__lane: cu13")),
        ("cu13", {"sglang": "0.7", "nvidia-cuda-runtime-cu14": "14.0.1"}, ("for CUDA 14", "Make the lock for this lane")),
    ],
)
def test_what_cannot_fit_the_lane_is_refused_with_a_way_out(name: str, pins: dict[str, str], words: tuple[str, str]) -> None:
    with pytest.raises(KproError) as caught:
        with_pins(LANES[name], pins, "lock")
    assert all(word in caught.value.sentence for word in words), caught.value.sentence


def test_the_filter_reads_the_lock() -> None:
    lock = "sglang==0.6.1 \\\n    --hash=sha256:" + "a" * 64 + "\n"
    assert sglang_lane("cu13", "580.1", lock)["engine_version"] == "0.6.1"
    assert sglang_lane("cu13", "580.1")["engine_version"] == LANES["cu13"].engine_version
