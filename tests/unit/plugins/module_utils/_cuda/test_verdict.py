# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._cuda.model import PeerCheck
from ansible_collections.kpro.llm.plugins.module_utils._cuda.verdict import init_error, p2p_verdict
from ansible_collections.kpro.llm.plugins.module_utils._gpu.findings import Finding

OK = PeerCheck("GPU-1", "GPU-2", "ok")


def check(result: str, detail: str = "") -> PeerCheck:
    return PeerCheck("GPU-2", "GPU-1", result, detail)


@pytest.mark.parametrize(
    ("checks", "verdict", "disable"),
    [
        ([OK, check("ok")], "ok", False),
        ([OK, check("none")], "none", True),
        ([OK, check("corrupt", "67108864 bytes")], "corrupt", True),
        ([check("none"), check("corrupt")], "corrupt", True),
        ([OK, check("error", "cuMemcpyPeer: CUDA_ERROR_INVALID_VALUE (1)")], "error", True),
        ([OK, check("full", "less than 1088 MiB are free")], "unknown", False),
        ([], "unknown", False),
    ],
)
def test_the_worst_direction_decides(checks: list[PeerCheck], verdict: str, disable: bool) -> None:
    found = p2p_verdict(checks, 2)
    assert (found.p2p, found.disable) == (verdict, disable)


def test_corrupt_names_the_direction() -> None:
    reason = p2p_verdict([OK, check("corrupt", "67108864 bytes")], 2).reason
    assert "from GPU-2 to GPU-1" in reason and "67108864 bytes" in reason


def test_one_gpu() -> None:
    assert (p2p_verdict([], 1).p2p, p2p_verdict([], 1).disable) == ("single", False)


def test_hang() -> None:
    found = p2p_verdict([OK], 2, "of 64 MiB from GPU-2 to GPU-1")
    assert (found.p2p, found.disable) == ("hangs", True)
    assert "of 64 MiB from GPU-2 to GPU-1" in found.reason


def finding(kind: str, what: str = "/dev/nvidia-uvm") -> Finding:
    return Finding(kind, "error", what, "is wrong", "Mend it")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (999, "node_missing"),
        (999, "wrong_major"),
        (304, "node_denied"),
        (803, "userland_differs"),
        (100, "driver_not_loaded"),
        (100, "node_denied"),
    ],
)
def test_the_cause_is_named(code: int, kind: str) -> None:
    sentence = init_error(code, "cuInit says CUDA_ERROR", [finding("gpu_lost", "other"), finding(kind)])
    assert sentence == "CUDA does not initialise, cuInit says CUDA_ERROR: /dev/nvidia-uvm: is wrong. Mend it."


def test_no_library_and_no_cause() -> None:
    assert "Install the driver's userland" in init_error(-1, "libcuda.so.1: cannot open shared object file", [])
    assert "show a cause" in init_error(999, "cuInit says CUDA_ERROR_UNKNOWN (999)", [])
