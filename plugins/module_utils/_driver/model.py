# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wanted NVIDIA driver and the present one."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._apt.repository import Repository
from .._gpu.blockers import Setting
from .._gpu.model import DeviceNode, GpuContainer, PciGpu
from .._gpu.secure_boot import SecureBoot
from .._gpu.text import DkmsEntry, DriverVersion

Scope = t.Literal["node", "userland"]
Source = t.Literal["runfile", "cuda_repo"]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The wanted driver.

    :param version: full driver version; for the userland it is the version that the kernel runs.
    :param sha256: empty: the vendor's checksum file beside ``url`` decides.
    :param flavour: the kernel module's, "auto" keeps what runs and otherwise goes by the GPU's generation.
    :param packages: Debian packages that the build needs, headers of the kernels come on top.
    :param power_limit_w: for each GPU; 0 leaves it alone.
    :param source: the vendor's package, or the vendor's package repository ``repository``.
    """

    scope: Scope
    version: str
    url: str
    sha256: str
    flavour: str
    replace: bool
    packages: tuple[str, ...]
    persistence: bool
    power_limit_w: int = 0
    source: Source = "runfile"
    repository: Repository | None = None


@dataclasses.dataclass(frozen=True)
class DriverPackage:
    """An installed Debian package of a driver; ``maintainer`` tells whose it is."""

    name: str
    version: str
    maintainer: str

    @property
    def of_distribution(self) -> bool:
        """Say whether Debian or Ubuntu made it, rather than NVIDIA."""
        return re.search(r"@(?:[\w-]+\.)*(?:debian\.org|ubuntu\.com|canonical\.com)", self.maintainer) is not None


@dataclasses.dataclass(frozen=True)
class GpuUser:
    """Who uses a GPU: in words, and the command on the node that ends it."""

    words: str
    end: str


@dataclasses.dataclass(frozen=True)
class Unit:
    """A systemd unit: enabled for boot, and active now."""

    enabled: bool
    active: bool


@dataclasses.dataclass(frozen=True)
class Present:
    """The observed system.

    :param runfile: version that the vendor's package has recorded as installed by it, None if none.
    :param packages: installed Debian packages of the driver.
    :param missing_packages: wanted packages that are not installed.
    :param kernels_without_headers: installed kernels without a build folder.
    :param users: who has a GPU open or memory on it.
    :param initramfs_tool: ``update-initramfs`` is there.
    :param power_limits_w: of each GPU that NVML can ask, by UUID.
    :param settings: what modprobe's files and the kernel command line say about the driver and vfio-pci.
    :param containers: containers of the node that have NVIDIA device nodes.
    :param ours: versions that this collection has installed here.
    :param key: fingerprints in the key file of the package repository, None without one.
    """

    kernel: str
    kernels: tuple[str, ...]
    loaded: DriverVersion | None
    on_disk: DriverVersion | None
    nvml_library: str | None
    cuda_library: str | None
    runfile: str | None
    packages: tuple[DriverPackage, ...]
    missing_packages: tuple[str, ...]
    kernels_without_headers: tuple[str, ...]
    modules: frozenset[str]
    dkms: tuple[DkmsEntry, ...]
    pci: tuple[PciGpu, ...]
    nodes: tuple[DeviceNode, ...]
    majors: t.Mapping[str, int]
    minors: tuple[int, ...]
    users: tuple[GpuUser, ...]
    files: t.Mapping[str, str | None]
    units: t.Mapping[str, Unit]
    initramfs_tool: bool
    power_limits_w: t.Mapping[str, float]
    settings: tuple[Setting, ...] = ()
    secure_boot: SecureBoot = dataclasses.field(default_factory=SecureBoot)
    containers: tuple[GpuContainer, ...] = ()
    ours: frozenset[str] = frozenset()
    key: tuple[str, ...] | None = None

    def libraries_are(self, version: str) -> bool:
        """Say whether both libraries are of a version."""
        return self.nvml_library == version and self.cuda_library == version

    def has_source(self, version: str) -> bool:
        """Say whether DKMS knows a version, built or not."""
        return any(entry.version == version for entry in self.dkms)

    def dkms_name(self, version: str) -> str:
        """Return the name under which DKMS knows a version."""
        return next((entry.name for entry in self.dkms if entry.version == version), "nvidia")

    def built_for(self, version: str, kernel: str) -> bool:
        """Say whether DKMS has installed a version's module for a kernel."""
        return any(entry.version == version and entry.kernel == kernel and entry.state == "installed" for entry in self.dkms)
