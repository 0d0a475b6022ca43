# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of gpu_info, made from the observation."""

from __future__ import annotations

import dataclasses
import typing as t

from .blockers import Setting, blocker_findings
from .findings import (
    Finding,
    Versions,
    binding_findings,
    boot_findings,
    kernel_findings,
    leftover_findings,
    node_findings,
    nvml_findings,
    unseen_node_findings,
    unstarted_findings,
    version_findings,
    xid_events,
    xid_findings,
)
from .holders import Holder
from .merge import described, merged_gpus
from .model import DeviceNode, Gpu, NvmlReport, PciGpu
from .text import DkmsEntry


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """The place where the GPUs were looked at; None is not visible from there.

    :param cpu_level: level of x86-64, 1 to 4.
    :param mok_enrolled: with Secure Boot on, whether the firmware knows the key with which DKMS signs.
    """

    kernel: str
    pve_version: str | None
    euid: int
    secure_boot: bool | None
    iommu: str | None
    mok_enrolled: bool | None = None
    cpu_level: int | None = None


@dataclasses.dataclass(frozen=True)
class Seen:
    """Everything that was seen in one place.

    :param known: GPUs in /proc/driver/nvidia/gpus.
    :param messages: the kernel's about NVIDIA, None where its log is not visible.
    :param settings: what modprobe's files and the kernel command line say about the driver.
    :param at_boot: something makes nvidia-uvm ready at boot.
    :param owners: who the processes are that NVML lists, by their process id.
    """

    place: str
    host: HostFacts
    versions: Versions
    report: NvmlReport
    known: tuple[Gpu, ...]
    pci: tuple[PciGpu, ...]
    nodes: tuple[DeviceNode, ...]
    majors: t.Mapping[str, int]
    modules: frozenset[str]
    dkms: tuple[DkmsEntry, ...]
    kernels: tuple[str, ...]
    messages: str | None
    owners: t.Mapping[int, Holder]
    holders: tuple[Holder, ...]
    settings: tuple[Setting, ...] = ()
    at_boot: bool = True

    @property
    def in_container(self) -> bool:
        """Say whether we are in a container, which sees less."""
        return self.place == "container"


def result_of(seen: Seen) -> dict[str, t.Any]:
    """Return the module's result."""
    source, gpus = _gpus(seen)
    events = xid_events(seen.messages or "")
    findings = [*_findings(seen, gpus), *xid_findings(events)]
    return {
        "place": seen.place,
        "host": dataclasses.asdict(seen.host),
        "source": source,
        "gpus": [described(gpu, seen.pci) for gpu in gpus],
        "driver": _driver(seen),
        "pci": [dataclasses.asdict(gpu) for gpu in seen.pci],
        "nodes": [dataclasses.asdict(node) for node in seen.nodes],
        "majors": {name: major for name, major in seen.majors.items() if name.startswith("nvidia")},
        "processes": [] if seen.in_container else _processes(seen),
        "holders": [dataclasses.asdict(holder) for holder in seen.holders],
        "topology": [dataclasses.asdict(link) for link in seen.report.links],
        "xids": events,
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "problems": [finding.sentence for finding in findings if finding.level == "error"],
        "not_visible": _not_visible(seen),
    }


def _gpus(seen: Seen) -> tuple[str, tuple[Gpu, ...]]:
    passed = [node.path for node in seen.nodes] if seen.in_container else None
    return merged_gpus(seen.report, seen.known, seen.pci, passed)


def _findings(seen: Seen, gpus: t.Sequence[Gpu]) -> list[Finding]:
    versions = seen.versions
    disk = versions.on_disk.version if versions.on_disk else None
    without_node = unseen_node_findings(seen.known, gpus, seen.nodes, seen.messages) if _tells_all(seen) else []
    return [
        *nvml_findings(seen.report, versions.loaded, 0 if seen.in_container else len(seen.known)),
        *version_findings(versions, seen.place),
        *binding_findings(seen.pci),
        *without_node,
        *(unstarted_findings(seen.pci, gpus, versions.loaded, seen.messages, [each.what for each in without_node]) if _tells_all(seen) else []),
        *blocker_findings(seen.settings, seen.pci),
        *kernel_findings(seen.kernels, seen.host.kernel, seen.dkms, disk),
        *leftover_findings(seen.dkms, {version for version in (disk, versions.loaded.version if versions.loaded else None) if version}),
        *boot_findings(seen.modules, seen.at_boot),
        *(node_findings(seen.nodes, seen.majors, gpus, seen.place) if versions.loaded else []),
    ]


def _tells_all(seen: Seen) -> bool:
    """Say whether each GPU that the driver works with is known: a container sees all cards on the bus, and /proc shows idle ones without UUID."""
    return not seen.in_container and seen.report.source != "none" and not seen.report.error


def _driver(seen: Seen) -> dict[str, t.Any]:
    versions = seen.versions
    return {
        "loaded": versions.loaded.version if versions.loaded else None,
        "flavour": versions.loaded.flavour if versions.loaded else None,
        "on_disk": versions.on_disk.version if versions.on_disk else None,
        "on_disk_flavour": versions.on_disk.flavour if versions.on_disk else None,
        "nvml_library": versions.nvml_library,
        "cuda_library": versions.cuda_library,
        "cuda_version": seen.report.cuda_version,
        "modules": sorted(name for name in seen.modules if name.startswith(("nvidia", "nouveau", "vfio"))),
        "dkms": [dataclasses.asdict(entry) for entry in seen.dkms],
        "nvml_error": seen.report.error,
    }


def _processes(seen: Seen) -> list[dict[str, t.Any]]:
    rows = []
    for process in seen.report.processes:
        owner = dataclasses.asdict(seen.owners[process.pid])
        del owner["nodes"]
        rows.append({**dataclasses.asdict(process), **owner})
    return rows


def _not_visible(seen: Seen) -> dict[str, str]:
    """Return what the place can't show, with the reason."""
    hidden = {}
    if seen.in_container:
        hidden["xids"] = "the kernel log belongs to the node"
        hidden["processes"] = "NVML knows only the node's process ids, and processes of other containers are hidden"
        hidden["driver.on_disk"] = "kernel modules belong to the node"
        if not seen.pci:
            hidden["pci"] = "the node's PCI tree is not visible"
    elif seen.messages is None:
        hidden["xids"] = "the kernel log can't be read"
    if seen.host.euid != 0:
        hidden["holders"] = "only root sees the open files of other users"
    if seen.host.secure_boot is None:
        hidden["host.secure_boot"] = "no EFI variable SecureBoot is visible (no EFI, or not visible from here)"
    if seen.host.iommu is None:
        hidden["host.iommu"] = "/sys/kernel/iommu_groups is not visible"
    return hidden
