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
  description: Kernel release, version of Proxmox VE, effective user id, Secure Boot and IOMMU of the place.
  returned: always
  type: dict
  sample: {kernel: 6.14.8-2-pve, pve_version: 9.0.3, euid: 0, secure_boot: false, iommu: identity}
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
  sample: [{bus_id: "0000:41:00.0", device_id: "0x2230", driver: nvidia, vms: []}]
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
  sample: [{gpu_uuid: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641, pid: 4711, used_mib: 41200, uid: 100999, name: python, container: 129, unit: kpro-sglang.service}]
holders:
  description: Processes with an open device node, with their owner, as far as visible from here.
  returned: always
  type: list
  elements: dict
  sample: [{pid: 4711, uid: 100999, name: python, container: 129, unit: kpro-sglang.service, nodes: [/dev/nvidia0]}]
topology:
  description: How each two GPUs are connected, in the words of C(nvidia-smi topo -m).
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
"""

import dataclasses
import os
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._command import Command
from ansible_collections.kpro.llm.plugins.module_utils._gpu_findings import (
    Versions,
    binding_findings,
    kernel_findings,
    node_findings,
    nvml_findings,
    version_findings,
    xid_events,
    xid_findings,
)
from ansible_collections.kpro.llm.plugins.module_utils._gpu_holders import ProcessFiles
from ansible_collections.kpro.llm.plugins.module_utils._gpu_host import GpuHost
from ansible_collections.kpro.llm.plugins.module_utils._gpu_merge import described, merged_gpus
from ansible_collections.kpro.llm.plugins.module_utils._gpu_model import GpuProcess, NvmlReport
from ansible_collections.kpro.llm.plugins.module_utils._module import run_module
from ansible_collections.kpro.llm.plugins.module_utils._nvidia_smi import ask_nvidia_smi
from ansible_collections.kpro.llm.plugins.module_utils._nvml import LIBRARY_NOT_FOUND, ask_nvml


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    return {"holders": {"type": "bool", "default": True}}


def ask(command: Command) -> NvmlReport:
    """Return NVML's answer, or nvidia-smi's where Python can't load the library and nvidia-smi can."""
    report = ask_nvml()
    if report.error_code == LIBRARY_NOT_FOUND:
        other = ask_nvidia_smi(command)
        return report if other.error else other
    return report


def not_visible(place: str, host: dict[str, t.Any], messages: str | None) -> dict[str, str]:
    """Return what the place can't show, with the reason."""
    hidden = {}
    if place == "container":
        hidden["xids"] = "the kernel log belongs to the node"
        hidden["processes"] = "NVML knows only the node's process ids, and processes of other containers are hidden"
        hidden["driver.on_disk"] = "kernel modules belong to the node"
    elif messages is None:
        hidden["xids"] = "the kernel log can't be read"
    if host["secure_boot"] is None:
        hidden["host.secure_boot"] = "no EFI variable SecureBoot is visible (no EFI, or not visible from here)"
    if host["iommu"] is None:
        hidden["host.iommu"] = "/sys/kernel/iommu_groups is not visible"
    return hidden


def owners(processes: t.Iterable[GpuProcess], files: ProcessFiles) -> list[dict[str, t.Any]]:
    """Return NVML's programs with their owners."""
    rows = []
    for process in processes:
        owner = dataclasses.asdict(files.holder(process.pid))
        del owner["nodes"]
        rows.append({**dataclasses.asdict(process), **owner})
    return rows


def observe(holders: bool) -> dict[str, t.Any]:
    """Return all that is seen."""
    command = Command()
    gpu_host, files = GpuHost(command), ProcessFiles()
    place = gpu_host.place()
    in_container = place == "container"
    versions = Versions(
        gpu_host.loaded(),
        None if in_container else gpu_host.on_disk(),
        gpu_host.library("libnvidia-ml.so.1"),
        gpu_host.library("libcuda.so.1"),
    )
    report, pci, nodes, majors = ask(command), gpu_host.pci(), gpu_host.nodes(), gpu_host.majors()
    known, dkms = gpu_host.proc_gpus(), () if in_container else gpu_host.dkms()
    messages = None if in_container else gpu_host.kernel_messages()
    source, gpus = merged_gpus(report, known, pci, [node.path for node in nodes] if in_container else None)
    events = xid_events(messages or "")
    host = {
        "kernel": gpu_host.kernel,
        "pve_version": gpu_host.pve_version() if place == "node" else None,
        "euid": os.geteuid(),
        "secure_boot": gpu_host.secure_boot(),
        "iommu": gpu_host.iommu(),
    }
    findings = [
        *nvml_findings(report, versions.loaded, 0 if in_container else len(known)),
        *version_findings(versions, place),
        *binding_findings(pci),
        *([] if in_container else kernel_findings(gpu_host.kernels(), gpu_host.kernel, dkms, versions.on_disk.version if versions.on_disk else None)),
        *(node_findings(nodes, majors, gpus, place) if versions.loaded else []),
        *xid_findings(events),
    ]
    return {
        "place": place,
        "host": host,
        "source": source,
        "gpus": [described(gpu, pci) for gpu in gpus],
        "driver": {
            "loaded": versions.loaded.version if versions.loaded else None,
            "flavour": versions.loaded.flavour if versions.loaded else None,
            "on_disk": versions.on_disk.version if versions.on_disk else None,
            "on_disk_flavour": versions.on_disk.flavour if versions.on_disk else None,
            "nvml_library": versions.nvml_library,
            "cuda_library": versions.cuda_library,
            "cuda_version": report.cuda_version,
            "modules": sorted(name for name in gpu_host.modules() if name.startswith(("nvidia", "nouveau", "vfio"))),
            "dkms": [dataclasses.asdict(entry) for entry in dkms],
            "nvml_error": report.error,
        },
        "pci": [dataclasses.asdict(gpu) for gpu in pci],
        "nodes": [dataclasses.asdict(node) for node in nodes],
        "majors": {name: major for name, major in majors.items() if name.startswith("nvidia")},
        "processes": [] if in_container else owners(report.processes, files),
        "holders": [dataclasses.asdict(holder) for holder in files.holders()] if holders else [],
        "topology": [dataclasses.asdict(link) for link in report.links],
        "xids": events,
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "problems": [finding.sentence for finding in findings if finding.level == "error"],
        "not_visible": not_visible(place, host, messages),
    }


def main() -> None:
    """Entry point."""
    run_module(lambda params, _check_mode: {"changed": False, **observe(params["holders"])}, argument_spec())


if __name__ == "__main__":
    main()
