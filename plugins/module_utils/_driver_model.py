# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wanted of an NVIDIA driver and what is there. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._gpu_model import DeviceNode, PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._nvidia_text import DkmsEntry, DriverVersion

Scope = t.Literal["node", "userland"]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the caller wants.

    :param version: full driver version; for the userland it is the version that the kernel runs.
    :param sha256: empty: the vendor's checksum file beside ``url`` decides.
    :param flavour: the kernel module's, "auto" keeps what runs and otherwise goes by the GPU's generation.
    :param packages: Debian packages that the build needs, headers of the kernels come on top.
    :param power_limit_w: for each GPU; 0 leaves it alone.
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


@dataclasses.dataclass(frozen=True)
class Unit:
    """A systemd unit: enabled for boot, and active now."""

    enabled: bool
    active: bool


@dataclasses.dataclass(frozen=True)
class Present:
    """What is there.

    :param runfile: version that the vendor's package has recorded as installed by it, None if none.
    :param foreign_packages: Debian packages of the driver from another source, as "name version".
    :param missing_packages: wanted packages that are not installed.
    :param kernels_without_headers: installed kernels without a build folder.
    :param users: who has a GPU open or memory on it.
    :param initramfs_tool: ``update-initramfs`` is there.
    :param power_limits_w: of each GPU that NVML can ask, by UUID.
    """

    kernel: str
    kernels: tuple[str, ...]
    loaded: DriverVersion | None
    on_disk: DriverVersion | None
    nvml_library: str | None
    cuda_library: str | None
    runfile: str | None
    foreign_packages: tuple[str, ...]
    missing_packages: tuple[str, ...]
    kernels_without_headers: tuple[str, ...]
    modules: frozenset[str]
    dkms: tuple[DkmsEntry, ...]
    pci: tuple[PciGpu, ...]
    nodes: tuple[DeviceNode, ...]
    majors: t.Mapping[str, int]
    minors: tuple[int, ...]
    users: tuple[str, ...]
    files: t.Mapping[str, str | None]
    units: t.Mapping[str, Unit]
    initramfs_tool: bool
    power_limits_w: t.Mapping[str, float]

    def libraries_are(self, version: str) -> bool:
        """Say whether both libraries are of a version."""
        return self.nvml_library == version and self.cuda_library == version

    def built_for(self, version: str, kernel: str) -> bool:
        """Say whether DKMS has installed a version's module for a kernel."""
        return any(entry.version == version and entry.kernel == kernel and entry.state == "installed" for entry in self.dkms)
