# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of a driver and its device nodes, and their remedies."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .claims import slot_of
from .model import CONTROL_MINOR, NVIDIA_MAJOR, DeviceNode, Gpu, NvmlReport, PciGpu
from .text import DkmsEntry, DriverVersion, bus_id, version_key

# Xid numbers after which a GPU needs a reset, a reboot or a person; the others mean that a program failed.
CRITICAL_XIDS = frozenset({48, 61, 62, 64, 69, 74, 79, 95, 109, 119, 120, 154})
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)[^)]*\): (?P<number>\d+),?\s*(?P<text>.*)")


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something a person or a role has to act on; ``kind`` is a fixed word for programs."""

    kind: str
    level: t.Literal["error", "warning"]
    what: str
    reason: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """The finding as one line of text."""
        return f"{self.what}: {self.reason}." + (f" {self.remedy}." if self.remedy else "")


@dataclasses.dataclass(frozen=True)
class Versions:
    """The driver as the kernel runs it, as modprobe would load it, and as the libraries are; None: not there."""

    loaded: DriverVersion | None
    on_disk: DriverVersion | None
    nvml_library: str | None
    cuda_library: str | None


def version_findings(versions: Versions, place: str) -> list[Finding]:
    """Return how the driver's parts disagree; all components of a version have to be the same."""
    found = []
    loaded = versions.loaded.version if versions.loaded else None
    disk = versions.on_disk.version if versions.on_disk else None
    if loaded and disk and loaded != disk:
        found.append(
            Finding(
                "module_differs",
                "error",
                "NVIDIA kernel module",
                f"{loaded} is loaded and {disk} is on disk",
                "Reload the module when nothing uses a GPU, or reboot the node",
            )
        )
    for name, version in (("libnvidia-ml.so.1", versions.nvml_library), ("libcuda.so.1", versions.cuda_library)):
        if loaded and version and version != loaded:
            side = "in the container" if place == "container" else "on the node"
            found.append(
                Finding(
                    "userland_differs",
                    "error",
                    f"{name} {side}",
                    f"it is of driver {version}, the kernel runs {loaded}; NVIDIA requires identical versions",
                    f"Install the userland of {loaded}",
                )
            )
    return found


def binding_findings(gpus: t.Iterable[PciGpu]) -> list[Finding]:
    """Return GPUs that another kernel driver holds."""
    remedies = {
        "vfio-pci": "Take it out of the VM's hostpci and of vfio-pci's ids, then reboot the node",
        "nouveau": "nouveau lets go at the next reboot once it is blacklisted and the initramfs is rebuilt",
    }
    found = []
    for gpu in gpus:
        what = f"GPU {gpu.bus_id}"
        if gpu.driver in remedies:
            kind = "nouveau_bound" if gpu.driver == "nouveau" else "foreign_driver"
            found.append(Finding(kind, "error", what, f"it is bound to {gpu.driver}{vm_words(gpu)}", remedies[gpu.driver]))
        elif gpu.vms:
            reason = f"it would be taken away when a VM starts{vm_words(gpu)}"
            found.append(Finding("claimed_by_vm", "error", what, reason, "Remove it from the VM's hostpci"))
    return found


def unseen_node_findings(known: t.Iterable[Gpu], gpus: t.Iterable[Gpu], nodes: t.Iterable[DeviceNode], messages: str | None) -> list[Finding]:
    """Return the cards that the kernel's driver has and NVML does not list because their device node is missing, as after a card was added.

    A card of which the kernel says more is left to :func:`unstarted_findings`.

    :param known: GPUs in /proc/driver/nvidia/gpus.
    :param gpus: those that NVML lists.
    """
    listed = {bus_id(gpu.bus_id) for gpu in gpus if gpu.uuid and gpu.bus_id}
    there = {node.path for node in nodes}
    refused = {slot_of(address) for address, _words in _refusals(messages or "")}
    found = []
    for gpu in known:
        path = f"/dev/nvidia{gpu.minor}"
        if gpu.bus_id and gpu.minor is not None and bus_id(gpu.bus_id) not in listed and path not in there and slot_of(gpu.bus_id) not in refused:
            reason = f"the driver has it, and its device node {path} is missing, so that no program sees it"
            found.append(Finding("gpu_without_node", "warning", f"GPU {gpu.bus_id}", reason, "The phase node makes it"))
    return found


def unstarted_findings(
    cards: t.Iterable[PciGpu], gpus: t.Iterable[Gpu], loaded: DriverVersion | None, messages: str | None, without_node: t.Collection[str] = ()
) -> list[Finding]:
    """Return the cards on the bus that the loaded driver does not work with, with the kernel's words.

    :param gpus: those that the driver lists.
    :param messages: the kernel's about NVIDIA, None where its log is not visible.
    :param without_node: cards, as ``GPU BUS_ID``, that NVML could not look at (:func:`unseen_node_findings`).
    """
    if loaded is None:
        return []
    listed = {bus_id(gpu.bus_id) for gpu in gpus if gpu.uuid and gpu.bus_id}
    listed |= {bus_id(name.removeprefix("GPU ")) for name in without_node}
    found = []
    for card in cards:
        if card.driver not in (None, "nvidia") or card.vms or bus_id(card.bus_id) in listed:
            continue
        words = [words for address, words in _refusals(messages or "") if slot_of(address) == slot_of(card.bus_id)]
        told = f"the kernel says '{words[-1]}'" if words else "the kernel log does not say why" if messages is not None else "the kernel log is not visible"
        # A card for a screen that the driver is too new for is nobody's loss.
        level: t.Literal["error", "warning"] = "warning" if any(re.search(r"not supported|legacy", text) for text in words) else "error"
        reason = f"it is on the PCI bus, and driver {loaded.version} does not work with it: {told}"
        found.append(
            Finding("gpu_not_started", level, f"GPU {card.bus_id}", reason, "Look at lspci -vv and the kernel log; power the node off and on, or reseat it")
        )
    return found


def _refusals(messages: str) -> t.Iterator[tuple[str, str]]:
    """Return the address and the words of each kernel message in which the driver gives a card up."""
    for line in messages.splitlines():
        words = re.search(r"NVRM: (.*)", line)
        address = re.search(r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", line, re.IGNORECASE)
        if (
            words
            and address
            and "Xid" not in line
            and re.search(r"fail|invalid|not supported|legacy|unable|can't|cannot|error|fallen off", line, re.IGNORECASE)
        ):
            yield address[0], words[1].strip()


def vm_words(gpu: PciGpu) -> str:
    """Return the VMs that claim a GPU, as the end of a sentence; empty if there are none."""
    names = dict(zip(gpu.vms, gpu.vm_names, strict=False))
    words = [f"{vm} '{names[vm]}'" if names.get(vm) else str(vm) for vm in gpu.vms]
    return f" (hostpci of VM {', '.join(words)})" if words else ""


def kernel_findings(kernels: t.Sequence[str], running: str, dkms: t.Iterable[DkmsEntry], version: str | None) -> list[Finding]:
    """Return whether the kernel that the next boot takes lacks the module.

    :param version: the driver's, None if there is none or DKMS does not keep it.
    """
    newest = max(kernels, key=version_key)
    built = {entry.kernel for entry in dkms if entry.version == version and entry.state == "installed"}
    if not built or newest in built or newest == running:
        return []
    remedy = f"Run gpu_node again, or keep the running kernel: proxmox-boot-tool kernel pin {running}"
    return [Finding("next_kernel_without_module", "warning", f"kernel {newest}", f"DKMS has no module of driver {version} for it", remedy)]


def leftover_findings(dkms: t.Iterable[DkmsEntry], used: t.Collection[str]) -> list[Finding]:
    """Return driver versions that DKMS keeps besides the one in use: it builds them again for each new kernel.

    :param used: the versions that are loaded and on disk; none: there is nothing to compare with.
    """
    names = {entry.version: entry.name for entry in dkms if used and entry.version not in used}
    return [
        Finding("dkms_leftover", "warning", f"driver {version}", "DKMS still keeps it besides the one in use", f"dkms remove -m {name} -v {version} --all")
        for version, name in sorted(names.items())
    ]


def boot_findings(modules: t.Collection[str], at_boot: bool) -> list[Finding]:
    """Return whether nvidia-uvm works only because somebody has loaded it by hand."""
    if "nvidia_uvm" not in modules or at_boot:
        return []
    return [Finding("not_at_boot", "warning", "nvidia-uvm", "it is loaded now, and nothing loads it at boot", "Run gpu_node: its boot unit does")]


def node_findings(nodes: t.Sequence[DeviceNode], majors: t.Mapping[str, int], gpus: t.Sequence[Gpu], place: str) -> list[Finding]:
    """Return what is wrong with the device nodes for the given GPUs and the kernel's table of majors."""
    wanted = {"/dev/nvidiactl": (majors.get("nvidiactl", majors.get("nvidia-frontend", NVIDIA_MAJOR)), CONTROL_MINOR)}
    for gpu in gpus:
        if gpu.minor is not None:
            wanted[f"/dev/nvidia{gpu.minor}"] = (majors.get("nvidia", majors.get("nvidia-frontend", NVIDIA_MAJOR)), gpu.minor)
    uvm = majors.get("nvidia-uvm")
    for minor, path in enumerate(("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")):
        wanted[path] = (uvm if uvm is not None else -1, minor)
    by_path = {node.path: node for node in nodes}
    return [finding for path, number in wanted.items() for finding in _node_finding(path, by_path.get(path), number, place)]


def _node_finding(path: str, node: DeviceNode | None, number: tuple[int, int], place: str) -> list[Finding]:
    again = "Pass it to the container again (dev[n]) and restart it" if place == "container" else "Run nvidia-modprobe, or start kpro-nvidia-devnodes.service"
    if number[0] < 0:
        return [Finding("module_not_loaded", "error", path, "nvidia_uvm is not loaded: /proc/devices has no nvidia-uvm", "Run modprobe nvidia_uvm on the node")]
    if node is None:
        return [Finding("node_missing", "error", path, "the device node is missing", again)]
    if node.kind != "character":
        return [Finding("not_a_device", "error", path, f"it is a {node.kind}, not a device (an old bind mount leaves such files)", f"Remove it. {again}")]
    if (node.major, node.minor) != number:
        reason = f"the node is {node.major}:{node.minor}, the kernel's device is {number[0]}:{number[1]}"
        return [Finding("wrong_major", "error", path, reason, again)]
    if node.opened in ("EACCES", "EPERM"):
        reason = f"opening it fails with {node.opened} (mode {node.mode}, owner {node.owner}:{node.group})"
        return [Finding("node_denied", "error", path, reason, "Pass it with mode=0666")]
    if int(node.mode, 8) & 0o006 != 0o006:
        reason = f"its mode is {node.mode}: only its owner and group can use it"
        return [Finding("node_mode", "warning", path, reason, "Pass it with mode=0666, so that the service's user can open it")]
    return []


def nvml_findings(report: NvmlReport, loaded: DriverVersion | None, expected: int) -> list[Finding]:
    """Return why NVML gives no or fewer GPUs than the kernel knows; ``expected`` is the kernel's count."""
    if loaded is None:
        return [
            Finding(
                "driver_not_loaded", "error", "NVIDIA driver", "the kernel runs none: /proc/driver/nvidia/version is missing", "Install the driver on the node"
            )
        ]
    if report.error:
        return [Finding("nvml_fails", "error", report.source, f"{report.error} (code {report.error_code})")]
    if len(report.gpus) < expected:
        return [
            Finding(
                "gpu_lost",
                "error",
                "GPUs",
                f"the kernel knows {expected}, {report.source} lists {len(report.gpus)}",
                "Look for Xid messages in the node's kernel log",
            )
        ]
    return []


def xid_events(kernel_messages: str) -> list[dict[str, t.Any]]:
    """Return the Xid events in kernel messages (``short-unix`` or plain), critical ones marked."""
    events = []
    for line in kernel_messages.splitlines():
        found = _XID.search(line)
        if found:
            number = int(found["number"])
            stamp = re.match(r"\s*(\d+\.\d+)\s", line)
            events.append(
                {
                    "bus_id": found["bus"].lower(),
                    "xid": number,
                    "text": found["text"],
                    "critical": number in CRITICAL_XIDS,
                    "time_s": float(stamp[1]) if stamp else None,
                }
            )
    return events


def xid_findings(events: t.Iterable[t.Mapping[str, t.Any]]) -> list[Finding]:
    """Return the critical events as findings."""
    return [
        Finding("xid", "error", f"GPU {event['bus_id']}", f"Xid {event['xid']} since boot: {event['text']}", "Reset the GPU or reboot the node")
        for event in events
        if event["critical"]
    ]
