#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Report NVIDIA GPUs, driver, device nodes and who uses them
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Reports in one call what a Proxmox VE node or an LXC container sees of NVIDIA GPUs.
  - GPUs are read through NVML (the system's C(libnvidia-ml.so.1)), with C(nvidia-smi) as second source and the kernel's
    C(/proc/driver/nvidia) as third.
  - What can't be seen from where the module runs is named in RV(not_visible) instead of being guessed.
extends_documentation_fragment:
  - kpro.llm.attributes.info
options:
  holders:
    description: Also look for processes that have a device node open. Takes longer on a node with many processes.
    type: bool
    default: true
  packages:
    description:
      - Packages that a driver's installation needs. What is not installed of them, and the headers of the running kernel, is tried by C(apt-get --simulate).
      - Nothing is changed. Where the package lists are not enough, they are fetched to a folder that is removed again.
    type: list
    elements: str
    default: []
  driver_version:
    description: Version that O(packages) are needed for. Where it is loaded, nothing is tried.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Look at the GPUs
  kpro.llm.gpu_info:
  register: __gpu

- name: Show what is wrong with them
  ansible.builtin.debug:
    var: __gpu.findings
"""

RETURN = r"""
place:
  description: V(node) (Proxmox VE), V(container) (LXC) or V(host).
  returned: always
  type: str
  sample: node
host:
  description:
    - Kernel release, version of Proxmox VE, effective user id, Secure Boot, IOMMU, and the processor's level of x86-64 (1 to 4) of the place.
    - C(mok_enrolled) says with Secure Boot whether the firmware knows the key with which DKMS signs.
  returned: always
  type: dict
  sample: {kernel: 6.14.8-2-pve, pve_version: 9.0.3, euid: 0, secure_boot: false, iommu: identity, mok_enrolled: null, cpu_level: 3}
source:
  description: Where RV(gpus) comes from, V(nvml), V(nvidia-smi), V(proc) or V(none).
  returned: always
  type: str
  sample: nvml
gpus:
  description: The GPUs, sorted by bus id. A value is null if the source does not say.
  returned: always
  type: list
  elements: dict
  sample:
    - uuid: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641
      name: NVIDIA RTX A6000
      bus_id: "0000:41:00.0"
      minor: 0
      index: 0
      memory_mib: 49140
      memory_free_mib: 48604
      memory_used_mib: 0
      compute_capability: "8.6"
      ecc: false
      persistence: true
      power_limit_w: 300.0
      power_limit_default_w: 300.0
      driver: nvidia
driver:
  description: The driver as the kernel runs it, as it is on disk for the running kernel, and as the libraries are.
  returned: always
  type: dict
  sample:
    loaded: 580.173.02
    flavour: open
    on_disk: 580.173.02
    on_disk_flavour: open
    nvml_library: 580.173.02
    cuda_library: 580.173.02
    cuda_version: "13.0"
    modules: [nvidia, nvidia_uvm]
    dkms: [{version: 580.173.02, kernel: 6.14.8-2-pve, state: installed}]
    nvml_error: ""
pci:
  description: NVIDIA's controllers on the PCI bus, with the kernel driver that holds each and the VMs that claim it (hostpci).
  returned: always
  type: list
  elements: dict
  sample: [{bus_id: "0000:41:00.0", device_id: "0x2230", driver: nvidia, vms: [], vm_names: []}]
nodes:
  description: The device nodes. C(opened) is V(ok) or the name of the error that opening it gives.
  returned: always
  type: list
  elements: dict
  sample: [{path: /dev/nvidia0, kind: character, major: 195, minor: 0, mode: "0666", owner: 0, group: 0, opened: ok}]
majors:
  description: Major numbers of NVIDIA's devices in C(/proc/devices).
  returned: always
  type: dict
  sample: {nvidia: 195, nvidia-uvm: 511}
processes:
  description: Programs with memory on a GPU as NVML lists them, with their owner. Only on a node or host.
  returned: always
  type: list
  elements: dict
  sample: [{gpu_uuid: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641, pid: 4711, used_mib: 41200, uid: 100999, name: python, container: 129, unit: x.service}]
holders:
  description: Processes with an open device node, with their owner, as far as visible from here.
  returned: always
  type: list
  elements: dict
  sample: [{pid: 4711, uid: 100999, name: python, container: 129, unit: kpro-sglang.service, nodes: [/dev/nvidia0]}]
topology:
  description: How each two GPUs are connected, in the words of C(nvidia-smi topo -m), V(NV4) for NVLink or a way over PCIe.
  returned: always
  type: list
  elements: dict
  sample: [{one: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641, other: GPU-e3b7f2d9-0c58-4a1b-8e94-b5d702c9f661, level: NODE}]
xids:
  description: Xid events in the kernel log since boot.
  returned: always
  type: list
  elements: dict
  sample: [{bus_id: "0000:41:00", xid: 79, text: GPU has fallen off the bus., critical: true, time_s: 1732900000.1}]
findings:
  description: What is wrong, each with reason and remedy.
  returned: always
  type: list
  elements: dict
  sample:
    - kind: wrong_major
      level: error
      what: /dev/nvidia-uvm
      reason: the node is 509:0, the kernel's device is 511:0
      remedy: Pass it to the container again (dev[n]) and restart it
problems:
  description: The errors among RV(findings), one sentence each.
  returned: always
  type: list
  elements: str
  sample: ["/dev/nvidia-uvm: the node is 509:0, the kernel's device is 511:0. Pass it to the container again (dev[n]) and restart it."]
not_visible:
  description: What can't be seen from here, with the reason.
  returned: always
  type: dict
  sample: {xids: the kernel log belongs to the node}
apt:
  description: What of O(packages) is not installed, and why it can't be, with a remedy. Empty texts if it can be.
  returned: always
  type: dict
  sample: {missing: [dkms, proxmox-default-headers], problem: "", remedy: ""}
"""

import os
import typing as t

from ..module_utils._apt.edge import foresee, missing_headers, missing_packages
from ..module_utils._core.module import run_module
from ..module_utils._gpu.findings import Versions
from ..module_utils._gpu.holders_edge import ProcessFiles
from ..module_utils._gpu.host_edge import GpuHost
from ..module_utils._gpu.model import NvmlReport
from ..module_utils._gpu.nvidia_smi_edge import ask_nvidia_smi
from ..module_utils._gpu.nvml_edge import LIBRARY_NOT_FOUND, ask_nvml
from ..module_utils._gpu.report import HostFacts, Seen, result_of
from ..module_utils._gpu.secure_boot import SecureBoot
from ..module_utils._linux.command_edge import Command


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    return {
        "holders": {"type": "bool", "default": True},
        "packages": {"type": "list", "elements": "str", "default": []},
        "driver_version": {"type": "str", "default": ""},
    }


def ask(command: Command) -> NvmlReport:
    """Return NVML's answer, or nvidia-smi's where Python can't load the library and nvidia-smi can."""
    report = ask_nvml()
    if report.error_code == LIBRARY_NOT_FOUND:
        other = ask_nvidia_smi(command)
        return report if other.error else other
    return report


def look(holders: bool) -> Seen:
    """Return all that is seen from here."""
    command = Command()
    host, files = GpuHost(command), ProcessFiles()
    place, report = host.place(), ask(command)
    in_container = place == "container"
    pve = host.pve_version() if place == "node" else None
    on_disk = None if in_container else host.on_disk()
    secure_boot = SecureBoot() if in_container else host.secure_boot()
    return Seen(
        place=place,
        host=HostFacts(host.kernel, pve, os.geteuid(), secure_boot.on, host.iommu(), secure_boot.enrolled, host.cpu_level()),
        versions=Versions(host.loaded(), on_disk, host.library("libnvidia-ml.so.1"), host.library("libcuda.so.1")),
        report=report,
        known=host.proc_gpus(),
        pci=host.pci(),
        nodes=host.nodes(),
        majors=host.majors(),
        modules=host.modules(),
        dkms=() if in_container else host.dkms(),
        kernels=(host.kernel,) if in_container else host.kernels(),
        messages=None if in_container else host.kernel_messages(),
        owners={} if in_container else {process.pid: files.holder(process.pid) for process in report.processes},
        holders=files.holders() if holders else (),
        settings=() if in_container else host.settings(),
        at_boot=in_container or host.loads_at_boot(),
    )


def look_at_packages(packages: t.Sequence[str], driver_version: str, seen: Seen) -> dict[str, t.Any]:
    """Return what is not installed of the packages, and why it can't be."""
    loaded = seen.versions.loaded
    if not packages or seen.place == "container" or (loaded and loaded.version == driver_version):
        return {"missing": [], "problem": "", "remedy": ""}
    command = Command()
    missing = [*missing_packages(command, packages), *missing_headers(seen.host.kernel)]
    problem = foresee(command, missing)
    return {"missing": missing, "problem": problem.reason if problem else "", "remedy": problem.remedy if problem else ""}


def info(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Look, and change nothing."""
    seen = look(params["holders"])
    return {"changed": False, **result_of(seen), "apt": look_at_packages(params["packages"], params["driver_version"], seen)}


def main() -> None:
    """Entry point."""
    run_module(info, argument_spec())


if __name__ == "__main__":
    main()
