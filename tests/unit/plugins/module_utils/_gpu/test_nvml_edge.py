# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import GpuProcess
from ansible_collections.kpro.llm.plugins.module_utils._gpu.nvml_edge import LIBRARY_NOT_FOUND, ask_nvml
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.gpu_libraries import UUIDS, Libraries, compiled, needs_compiler


def test_no_library() -> None:
    report = ask_nvml("libnvidia-ml.so.that-is-not-there")
    assert (report.error_code, report.gpus) == (LIBRARY_NOT_FOUND, ())
    assert "cannot open shared object file" in report.error


@pytest.fixture
def libraries() -> Libraries:
    compiled().reset()
    return compiled()


@needs_compiler
def test_report(libraries: Libraries) -> None:
    libraries.state(gpu1__processes="2", gpu1__process0__pid="4711", gpu1__process0__mib="41200", gpu1__process1__pid="12", gpu1__used_mib="41200")
    report = ask_nvml(libraries.nvml)
    assert (report.error, report.cuda_version) == ("", "13.0")
    first, second = report.gpus
    assert (first.uuid, first.name, first.bus_id, first.minor, first.index) == (UUIDS[0], "NVIDIA RTX A6000", "0000:41:00.0", 0, 0)
    assert (first.memory_mib, first.memory_free_mib, first.memory_used_mib) == (49140, 48604, 0)
    assert (first.compute_capability, first.ecc, first.persistence, first.power_limit_w) == ("8.6", False, True, 300.0)
    assert (second.uuid, second.memory_used_mib) == (UUIDS[1], 41200)
    assert report.processes == (GpuProcess(UUIDS[1], 4711, 41200), GpuProcess(UUIDS[1], 12, 0))
    assert [(link.one, link.other, link.level) for link in report.links] == [(*UUIDS, "NODE")]


@needs_compiler
def test_many_processes_are_all_read(libraries: Libraries) -> None:
    libraries.state(gpu0__processes="40", **{f"gpu0__process{number}__pid": str(100 + number) for number in range(40)})
    assert [process.pid for process in ask_nvml(libraries.nvml).processes] == list(range(100, 140))


@needs_compiler
def test_bridged_gpus(libraries: Libraries) -> None:
    libraries.state(nvlinks="4")
    assert [link.level for link in ask_nvml(libraries.nvml).links] == ["NV4"]


@needs_compiler
def test_faults_have_nvmls_codes(libraries: Libraries) -> None:
    libraries.state(driver="580.178.04")
    assert (ask_nvml(libraries.nvml).error_code, ask_nvml(libraries.nvml).error) == (18, "Driver/library version mismatch")
    libraries.state()
    libraries.remove("nvidiactl")
    assert ask_nvml(libraries.nvml).error_code == 9
    libraries.node("nvidiactl", 195, 255)
    libraries.unload()
    assert (ask_nvml(libraries.nvml).error_code, ask_nvml(libraries.nvml).error) == (9, "Driver Not Loaded")


@needs_compiler
def test_only_gpus_whose_node_is_passed(libraries: Libraries) -> None:
    libraries.remove("nvidia0")
    report = ask_nvml(libraries.nvml)
    assert [(gpu.index, gpu.minor, gpu.uuid) for gpu in report.gpus] == [(0, 1, UUIDS[1])]
    assert report.links == ()
