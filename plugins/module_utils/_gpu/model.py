# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs, their device nodes and their users, as values."""

from __future__ import annotations

import dataclasses

from .raw_lines import MountLine

MIB = 1024 * 1024
NVIDIA_MAJOR = 195
CONTROL_MINOR = 255


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU; None means that the source did not say. ``index`` is NVML's and only good for this boot."""

    uuid: str | None
    name: str | None = None
    bus_id: str | None = None
    minor: int | None = None
    index: int | None = None
    memory_mib: int | None = None
    memory_free_mib: int | None = None
    memory_used_mib: int | None = None
    compute_capability: str | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A program that NVML lists on a GPU. Seen from a container its ``pid`` is the node's, and says nothing there."""

    gpu_uuid: str
    pid: int
    used_mib: int | None


@dataclasses.dataclass(frozen=True)
class Link:
    """How two GPUs are connected: ``level`` as ``nvidia-smi topo -m`` prints it (NV4, PIX, PXB, PHB, NODE, SYS)."""

    one: str
    other: str
    level: str


@dataclasses.dataclass(frozen=True)
class NvmlReport:
    """The answer of NVML (or nvidia-smi in its place); ``error`` is empty if it answered."""

    source: str
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    links: tuple[Link, ...] = ()
    error: str = ""
    error_code: int = 0


@dataclasses.dataclass(frozen=True)
class DeviceNode:
    """A path below /dev: ``kind`` is character, file or other; ``opened`` is "ok" or the name of the error of open()."""

    path: str
    kind: str
    major: int | None
    minor: int | None
    mode: str
    owner: int
    group: int
    opened: str


@dataclasses.dataclass(frozen=True)
class PciGpu:
    """A display or compute controller of NVIDIA on the PCI bus, the kernel driver that holds it, and VMs that claim it, with their names."""

    bus_id: str
    device_id: str
    driver: str | None
    vms: tuple[int, ...] = ()
    vm_names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class GpuContainer:
    """A container of the node that works with the node's driver, or has files of it over its own."""

    vmid: int
    name: str
    nodes: tuple[str, ...]
    running: bool
    driver_files: tuple[MountLine, ...] = ()
    has_gpus: bool = True

    @property
    def words(self) -> str:
        """The container, as part of a sentence."""
        return f"container {self.vmid}{f' ({self.name})' if self.name else ''}"
