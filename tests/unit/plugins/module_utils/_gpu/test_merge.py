# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.module_utils._gpu.merge import described, merged_gpus
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import Gpu, NvmlReport, PciGpu

ONE = Gpu("GPU-1", "NVIDIA RTX A6000", "0000:41:00.0", 0)
TWO = Gpu("GPU-2", "NVIDIA RTX A6000", "0000:61:00.0", 1)
PCI = [PciGpu("0000:61:00.0", "0x2230", "nvidia"), PciGpu("0000:41:00.0", "0x2230", "nvidia")]


def test_nvml_first_and_filled_from_proc() -> None:
    report = NvmlReport("nvidia-smi", "580.173.02", gpus=(Gpu("GPU-2", bus_id="0000:61:00.0", memory_mib=49140), Gpu("GPU-1", bus_id="0000:41:00.0")))
    source, gpus = merged_gpus(report, [ONE, TWO], PCI, None)
    assert source == "nvidia-smi"
    assert [(gpu.uuid, gpu.minor, gpu.memory_mib) for gpu in gpus] == [("GPU-1", 0, None), ("GPU-2", 1, 49140)]


def test_proc_stands_in_and_a_container_sees_only_what_is_passed() -> None:
    assert merged_gpus(NvmlReport("nvml", error="x"), [ONE, TWO], PCI, None) == ("proc", (ONE, TWO))
    assert merged_gpus(NvmlReport("nvml", error="x"), [ONE, TWO], [], ["/dev/nvidia1", "/dev/nvidiactl"]) == ("proc", (TWO,))


def test_pci_is_the_last_resort_on_a_node_only() -> None:
    source, gpus = merged_gpus(NvmlReport("nvml"), [], PCI, None)
    assert (source, [gpu.bus_id for gpu in gpus], gpus[0].uuid) == ("pci", ["0000:41:00.0", "0000:61:00.0"], None)
    assert merged_gpus(NvmlReport("nvml"), [], PCI, []) == ("none", ())


def test_described_names_the_kernel_driver() -> None:
    assert described(ONE, [PciGpu("0000:41:00.0", "0x2230", "vfio-pci")])["driver"] == "vfio-pci"
    assert described(ONE, [])["driver"] is None
