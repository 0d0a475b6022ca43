# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses

from ansible_collections.kpro.llm.plugins.module_utils._gpu.blockers import Setting
from ansible_collections.kpro.llm.plugins.module_utils._gpu.findings import Versions
from ansible_collections.kpro.llm.plugins.module_utils._gpu.holders import Holder
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import Gpu, GpuProcess, NvmlReport
from ansible_collections.kpro.llm.plugins.module_utils._gpu.report import HostFacts, Seen, result_of
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import DkmsEntry
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.driver_cases import DRIVER, GOOD, KERNEL, NEXT_KERNEL, VERSION

GPUS = (Gpu("GPU-1", "NVIDIA RTX A6000", "0000:41:00.0", 0), Gpu("GPU-2", "NVIDIA RTX A6000", "0000:61:00.0", 1))
SERVER = Holder(4711, 100999, "python", 129, "kpro-sglang.service", ("/dev/nvidia0",))
NODE = Seen(
    place="node",
    host=HostFacts(KERNEL, "9.0.3", 0, False, "identity"),
    versions=Versions(DRIVER, DRIVER, VERSION, VERSION),
    report=NvmlReport("nvml", VERSION, "13.0", GPUS, (GpuProcess("GPU-1", 4711, 41200),)),
    known=GPUS,
    pci=GOOD.pci,
    nodes=GOOD.nodes,
    majors={**GOOD.majors, "mem": 1},
    modules=GOOD.modules | {"zfs"},
    dkms=GOOD.dkms,
    kernels=(KERNEL,),
    messages="1732900000.1 kpro5 kernel: NVRM: Xid (PCI:0000:61:00): 31, pid=4711, name=python\n",
    owners={4711: SERVER},
    holders=(SERVER,),
)
CONTAINER = dataclasses.replace(
    NODE,
    place="container",
    host=HostFacts(KERNEL, None, 0, None, None),
    versions=Versions(DRIVER, None, VERSION, VERSION),
    report=NvmlReport("nvml", error="Unknown Error", error_code=999),
    pci=(),
    nodes=GOOD.nodes[1:],
    dkms=(),
    messages=None,
    owners={},
)


def test_a_good_node() -> None:
    result = result_of(NODE)
    assert (result["place"], result["source"], result["findings"], result["problems"]) == ("node", "nvml", [], [])
    assert [(gpu["uuid"], gpu["driver"]) for gpu in result["gpus"]] == [("GPU-1", "nvidia"), ("GPU-2", "nvidia")]
    assert result["processes"] == [
        {
            "gpu_uuid": "GPU-1",
            "pid": 4711,
            "used_mib": 41200,
            "uid": 100999,
            "name": "python",
            "container": 129,
            "unit": "kpro-sglang.service",
        }
    ]
    assert result["majors"] == {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511}
    assert result["driver"]["modules"] == ["nvidia", "nvidia_uvm"]
    assert [event["xid"] for event in result["xids"]] == [31]
    assert result["not_visible"] == {}


def test_a_container_says_what_it_can_not_see() -> None:
    result = result_of(CONTAINER)
    assert set(result["not_visible"]) == {"xids", "processes", "driver.on_disk", "pci", "host.secure_boot", "host.iommu"}
    assert (result["processes"], result["xids"]) == ([], [])
    assert (result["source"], [gpu["uuid"] for gpu in result["gpus"]]) == ("proc", ["GPU-2"]), "only the GPU whose node was passed"
    assert result["problems"] == ["nvml: Unknown Error (code 999)."]


def test_a_kernel_log_that_is_closed_to_us() -> None:
    assert result_of(dataclasses.replace(NODE, messages=None))["not_visible"] == {"xids": "the kernel log can't be read"}


def test_warnings_are_findings_and_no_problems() -> None:
    result = result_of(dataclasses.replace(NODE, kernels=(KERNEL, NEXT_KERNEL)))
    assert [finding["kind"] for finding in result["findings"]] == ["next_kernel_without_module"]
    assert result["problems"] == []


def test_what_keeps_the_driver_off_and_what_the_next_boot_lacks() -> None:
    seen = dataclasses.replace(
        NODE,
        settings=(
            Setting("blocked", "/etc/modprobe.d/b.conf", "blacklist nvidia"),
            Setting("vfio", "the kernel command line", "vfio-pci.ids=10de:2230", ("10de:2230",)),
        ),
        at_boot=False,
        dkms=(*GOOD.dkms, DkmsEntry("570.148.08", KERNEL, "built")),
    )
    found = [(each["kind"], each["what"]) for each in result_of(seen)["findings"]]
    assert found == [
        ("module_blocked", "NVIDIA kernel module"),
        ("vfio_ids", "GPU 0000:41:00.0"),
        ("vfio_ids", "GPU 0000:61:00.0"),
        ("dkms_leftover", "driver 570.148.08"),
        ("not_at_boot", "nvidia-uvm"),
    ]


def test_another_user_does_not_see_who_holds_a_gpu() -> None:
    seen = dataclasses.replace(NODE, host=dataclasses.replace(NODE.host, euid=1000))
    assert result_of(seen)["not_visible"] == {"holders": "only root sees the open files of other users"}
