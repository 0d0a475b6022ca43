# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.module_utils._engine.gpu_settings import hardware_for
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES

CU13, CU12, CPU = (LANES[name] for name in ("cu13", "cu12", "cpu"))


def test_kernels_of_another_engine_driver_or_architecture_lie_elsewhere() -> None:
    found = [
        hardware_for(lane, capabilities, driver, toolkit=True).kernels
        for lane, capabilities, driver in (
            (CU13, ["8.6"], "580.173.02"),
            (CU12, ["8.6"], "580.173.02"),
            (CU13, ["8.9"], "580.173.02"),
            (CU13, ["8.9", "8.6"], "580.173.02"),
            (CU13, ["8.6"], "580.178.04"),
        )
    ]
    assert found[0] == "0.5.23-torch2.14.1-driver580.173.02-sm86"
    assert found[3].endswith("-sm86-sm89") and len(set(found)) == len(found)
    assert hardware_for(CPU, [], "", toolkit=True).kernels == "0.5.23-torch2.13.0"


def test_the_toolkit_is_that_of_the_lane() -> None:
    assert hardware_for(CU12, ["8.6"], "570.1", toolkit=True).environment == {"CUDA_HOME": "/usr/local/cuda-12.8"}
    assert hardware_for(CU12, ["8.6"], "570.1", toolkit=False).environment == {}
    assert hardware_for(CPU, [], "", toolkit=True).environment == {}


def test_peer_access_that_does_not_work_is_off_in_nccl_and_in_the_engine_and_told() -> None:
    found = hardware_for(CU13, ["8.6"], "580.173.02", toolkit=False, peers_off="no peer access from 0 to 1")
    assert found.options == {"disable_custom_all_reduce": True}
    assert found.environment == {"NCCL_P2P_DISABLE": "1"}
    assert found.given_up == ("direct copies between the GPUs (no peer access from 0 to 1)",)
    works = hardware_for(CU13, ["8.6"], "580.173.02", toolkit=False)
    assert (works.options, works.environment, works.given_up) == ({}, {}, ())
