# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu import findings
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import DeviceNode, Gpu, NvmlReport, PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import DkmsEntry, DriverVersion

MAJORS = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511}
GPU = Gpu(uuid="GPU-1", bus_id="0000:41:00.0", minor=0)


def node(path: str, major: int, minor: int, **more: object) -> DeviceNode:
    base = DeviceNode(path, "character", major, minor, "0666", 0, 0, "ok")
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


RIGHT = (
    node("/dev/nvidia0", 195, 0),
    node("/dev/nvidiactl", 195, 255),
    node("/dev/nvidia-uvm", 511, 0),
    node("/dev/nvidia-uvm-tools", 511, 1),
)


def with_node(path: str, **more: object) -> list[DeviceNode]:
    return [dataclasses.replace(each, **more) if each.path == path else each for each in RIGHT]  # type: ignore[arg-type]


def kinds(nodes: list[DeviceNode], majors: dict[str, int] | None = None) -> list[tuple[str, str]]:
    return [(finding.kind, finding.what) for finding in findings.node_findings(nodes, majors or MAJORS, [GPU], "container")]


def test_right_nodes_have_no_finding() -> None:
    assert kinds(list(RIGHT)) == []


def test_enxio_on_the_right_number_is_no_finding() -> None:
    assert kinds(with_node("/dev/nvidia0", opened="ENXIO")) == []


@pytest.mark.parametrize(
    ("path", "change", "kind"),
    [
        ("/dev/nvidia-uvm", {"major": 509}, "wrong_major"),
        ("/dev/nvidia-uvm-tools", {"minor": 0}, "wrong_major"),
        ("/dev/nvidia0", {"opened": "EACCES", "mode": "0660"}, "node_denied"),
        ("/dev/nvidiactl", {"opened": "EPERM"}, "node_denied"),
        ("/dev/nvidia0", {"mode": "0660"}, "node_mode"),
        ("/dev/nvidia-uvm", {"kind": "file", "major": None, "minor": None, "mode": "0000"}, "not_a_device"),
    ],
)
def test_each_fault_has_its_finding(path: str, change: dict[str, object], kind: str) -> None:
    assert kinds(with_node(path, **change)) == [(kind, path)]


def test_missing_nodes_are_named_one_by_one() -> None:
    assert kinds([each for each in RIGHT if "uvm" not in each.path]) == [
        ("node_missing", "/dev/nvidia-uvm"),
        ("node_missing", "/dev/nvidia-uvm-tools"),
    ]


def test_uvm_not_loaded_is_not_called_a_wrong_major() -> None:
    assert {kind for kind, _unused in kinds(list(RIGHT), {"nvidia": 195, "nvidiactl": 195})} == {"module_not_loaded"}


def test_wrong_major_names_both_numbers() -> None:
    found = findings.node_findings(with_node("/dev/nvidia-uvm", major=509), MAJORS, [GPU], "container")
    assert found[0].sentence == ("/dev/nvidia-uvm: the node is 509:0, the kernel's device is 511:0. Pass it to the container again (dev[n]) and restart it.")


def versions(loaded: str | None, disk: str | None, library: str | None) -> findings.Versions:
    def driver(version: str | None) -> DriverVersion | None:
        return DriverVersion(version, "open") if version else None

    return findings.Versions(driver(loaded), driver(disk), library, library)


def test_versions_differ_in_the_last_component() -> None:
    found = findings.version_findings(versions("570.148.06", None, "570.148.08"), "container")
    assert [finding.kind for finding in found] == ["userland_differs", "userland_differs"]
    assert "570.148.08" in found[0].reason and "570.148.06" in found[0].reason


def test_module_on_disk_differs_from_the_loaded_one() -> None:
    found = findings.version_findings(versions("580.173.02", "580.178.04", "580.173.02"), "node")
    assert [finding.kind for finding in found] == ["module_differs"]


def test_nothing_differs_where_nothing_is_loaded() -> None:
    assert findings.version_findings(versions(None, "580.173.02", "580.173.02"), "node") == []


def test_binding_to_vfio_and_nouveau() -> None:
    gpus = [PciGpu("0000:41:00.0", "0x2230", "vfio-pci"), PciGpu("0000:61:00.0", "0x2230", "nvidia"), PciGpu("0000:81:00.0", "0x2230", "nouveau")]
    assert [finding.what for finding in findings.binding_findings(gpus)] == ["GPU 0000:41:00.0", "GPU 0000:81:00.0"]


def test_vms_that_claim_a_gpu_are_named() -> None:
    held = findings.binding_findings([PciGpu("0000:41:00.0", "0x2230", "vfio-pci", (100, 101))])
    assert held[0].reason == "it is bound to vfio-pci (hostpci of VM 100, 101)"
    waiting = findings.binding_findings([PciGpu("0000:41:00.0", "0x2230", "nvidia", (100,))])
    assert (waiting[0].kind, waiting[0].reason) == ("claimed_by_vm", "it would be taken away when a VM starts (hostpci of VM 100)")


@pytest.mark.parametrize(
    ("kernels", "built", "kinds"),
    [
        (["6.14.8-2-pve", "6.17.2-1-pve"], ["6.14.8-2-pve"], ["next_kernel_without_module"]),
        (["6.14.8-2-pve", "6.17.2-1-pve"], ["6.14.8-2-pve", "6.17.2-1-pve"], []),
        (["6.8.12-11-pve", "6.14.8-2-pve"], ["6.14.8-2-pve"], []),
        (["6.14.8-2-pve", "6.17.2-1-pve"], [], []),
    ],
    ids=["not built", "built", "only an older one", "not kept by DKMS"],
)
def test_next_kernel(kernels: list[str], built: list[str], kinds: list[str]) -> None:
    dkms = [DkmsEntry("580.173.02", kernel, "installed") for kernel in built]
    assert [finding.kind for finding in findings.kernel_findings(kernels, "6.14.8-2-pve", dkms, "580.173.02")] == kinds


def test_nvml_findings() -> None:
    loaded = DriverVersion("580.173.02", "open")
    assert findings.nvml_findings(NvmlReport("nvml"), None, 0)[0].kind == "driver_not_loaded"
    assert findings.nvml_findings(NvmlReport("nvml", error="Driver/library version mismatch", error_code=18), loaded, 2)[0].kind == "nvml_fails"
    assert findings.nvml_findings(NvmlReport("nvml", gpus=(GPU,)), loaded, 2)[0].kind == "gpu_lost"
    assert findings.nvml_findings(NvmlReport("nvml", gpus=(GPU,)), loaded, 1) == []


def test_xid_events() -> None:
    log = (
        "1732900000.123456 kpro5 kernel: NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "1732900001.000000 kpro5 kernel: NVRM: Xid (PCI:0000:61:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000.\n"
        "1732900002.000000 kpro5 kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.173.02\n"
    )
    events = findings.xid_events(log)
    assert [(event["bus_id"], event["xid"], event["critical"], event["time_s"]) for event in events] == [
        ("0000:41:00", 79, True, 1732900000.123456),
        ("0000:61:00", 31, False, 1732900001.0),
    ]
    assert [finding.what for finding in findings.xid_findings(events)] == ["GPU 0000:41:00"]


REFUSED = """\
1764500001.1 host kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.173.02
1764500002.1 host kernel: NVRM: GPU 0000:61:00.0: RmInitAdapter failed! (0x26:0x56:1463)
1764500002.2 host kernel: NVRM: GPU 0000:61:00.0: rm_init_adapter failed, device minor number 1
"""


def test_a_card_without_its_device_node_waits_for_the_node_phase_and_is_not_called_broken() -> None:
    added, broken = Gpu(None, "RTX", "0000:51:00.0", 3), Gpu(None, "RTX", "0000:61:00.0", 1)
    here = [DeviceNode("/dev/nvidia0", "character", 195, 0, "0666", 0, 0, "ok")]
    (found,) = findings.unseen_node_findings([GPU, added, broken], [GPU], here, REFUSED)
    assert (found.kind, found.level, found.what) == ("gpu_without_node", "warning", "GPU 0000:51:00.0") and "/dev/nvidia3 is missing" in found.reason
    cards = [PciGpu("0000:51:00.0", "0x2230", "nvidia"), PciGpu("0000:61:00.0", "0x2230", None)]
    (other,) = findings.unstarted_findings(cards, [GPU], DriverVersion("580.173.02", "open"), REFUSED, [found.what])
    assert other.what == "GPU 0000:61:00.0"
    assert findings.unseen_node_findings([GPU, added], [GPU], [*here, DeviceNode("/dev/nvidia3", "character", 195, 3, "0666", 0, 0, "EIO")], "") == []


def test_a_card_that_the_driver_could_not_start_is_named_with_the_kernels_words() -> None:
    """T2-07."""
    cards = [PciGpu("0000:41:00.0", "0x2230", "nvidia"), PciGpu("0000:61:00.0", "0x2230", None), PciGpu("0000:81:00.0", "0x2230", "nvidia")]
    loaded = DriverVersion("580.173.02", "open")
    first, second = findings.unstarted_findings(cards, [GPU], loaded, REFUSED)
    assert (first.kind, first.level, first.what) == ("gpu_not_started", "error", "GPU 0000:61:00.0")
    assert "rm_init_adapter failed, device minor number 1" in first.reason and "does not say why" in second.reason
    assert findings.unstarted_findings(cards, [GPU], None, REFUSED) == []
    assert "not visible" in findings.unstarted_findings(cards[:2], [GPU], loaded, None)[0].reason
    assert (
        findings.unstarted_findings([cards[0], PciGpu("0000:61:00.0", "", "vfio-pci"), PciGpu("0000:81:00.0", "", None, (100,), ("win",))], [GPU], loaded, "")
        == []
    )


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("NVRM: The NVIDIA GPU 0000:61:00.0 (PCI ID: 10de:128b)#012NVRM: installed in this system is not supported by the driver", "warning"),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 0M @ 0x0 (PCI:0000:61:00.0)", "error"),
        ("NVRM: GPU at PCI:0000:61:00.0 has fallen off the bus", "error"),
    ],
)
def test_other_wordings_of_a_card_that_is_given_up(line: str, level: str) -> None:
    (found,) = findings.unstarted_findings([PciGpu("0000:61:00.0", "", None)], [GPU], DriverVersion("580.173.02", "open"), f"1.0 host kernel: {line}\n")
    assert found.level == level and "the kernel says '" in found.reason
