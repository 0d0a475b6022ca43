# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node as it is after a good installation, to be spoilt by the tests."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._driver import files
from ansible_collections.kpro.llm.plugins.module_utils._driver.model import DriverPackage, GpuUser, Present, Unit, Wanted
from ansible_collections.kpro.llm.plugins.module_utils._driver.repository import repository_of
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import DeviceNode, PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import DkmsEntry, DriverVersion

VERSION = "580.173.02"
OLDER = "570.148.08"
KERNEL = "6.14.8-2-pve"
NEXT_KERNEL = "6.17.2-1-pve"
WANTED = Wanted("node", VERSION, "https://example.org/{version}.run", "", "auto", False, ("dkms", "gcc"), True)
USERLAND = dataclasses.replace(WANTED, scope="userland", packages=())
DRIVER = DriverVersion(VERSION, "open")
ENGINE = GpuUser(
    "python (pid 4711, kpro-sglang.service, uid 100999, 41200 MiB of GPU memory) of container 129 (qwen)", "pct exec 129 -- systemctl stop kpro-sglang.service"
)
DEBIAN, NVIDIA = "Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>", "NVIDIA CORPORATION <cudatools@nvidia.com>"


def package(name: str, version: str, maintainer: str = DEBIAN) -> DriverPackage:
    return DriverPackage(name, version, maintainer)


REPOSITORY = repository_of("https://example.org/{distribution}/", "", "", "debian13")
FROM_REPOSITORY = dataclasses.replace(WANTED, source="cuda_repo", repository=REPOSITORY)


def device(path: str, major: int, minor: int) -> DeviceNode:
    return DeviceNode(path, "character", major, minor, "0666", 0, 0, "ok")


GOOD = Present(
    kernel=KERNEL,
    kernels=(KERNEL,),
    loaded=DRIVER,
    on_disk=DRIVER,
    nvml_library=VERSION,
    cuda_library=VERSION,
    runfile=VERSION,
    packages=(),
    missing_packages=(),
    kernels_without_headers=(),
    modules=frozenset({"nvidia", "nvidia_uvm"}),
    dkms=(DkmsEntry(VERSION, KERNEL, "installed"),),
    pci=(PciGpu("0000:41:00.0", "0x2230", "nvidia"), PciGpu("0000:61:00.0", "0x2230", "nvidia")),
    nodes=(
        device("/dev/nvidia0", 195, 0),
        device("/dev/nvidia1", 195, 1),
        device("/dev/nvidiactl", 195, 255),
        device("/dev/nvidia-uvm", 511, 0),
        device("/dev/nvidia-uvm-tools", 511, 1),
    ),
    majors={"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511},
    minors=(0, 1),
    users=(),
    files=files.node_files((0, 1), True, 0),
    units={files.NODES_UNIT: Unit(True, True), files.PERSISTENCE_UNIT: Unit(True, True)},
    initramfs_tool=True,
    power_limits_w={"GPU-1": 300.0, "GPU-2": 300.0},
)
FRESH = dataclasses.replace(
    GOOD,
    loaded=None,
    on_disk=None,
    nvml_library=None,
    cuda_library=None,
    runfile=None,
    missing_packages=("dkms", "gcc"),
    kernels_without_headers=(KERNEL,),
    modules=frozenset(),
    dkms=(),
    pci=(PciGpu("0000:41:00.0", "0x2230", None), PciGpu("0000:61:00.0", "0x2230", None)),
    nodes=(),
    majors={},
    files={},
    units={files.NODES_UNIT: Unit(False, False), files.PERSISTENCE_UNIT: Unit(False, False)},
    power_limits_w={},
)
CONTAINER = dataclasses.replace(
    GOOD, on_disk=None, dkms=(), pci=(), files=files.userland_files(), units={}, modules=frozenset(), initramfs_tool=False, power_limits_w={}
)
GOOD_FROM_REPOSITORY = dataclasses.replace(
    GOOD,
    runfile=None,
    packages=tuple(
        package(name, f"{VERSION}-1", NVIDIA)
        for name in ("libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-modprobe", "nvidia-persistenced")
    ),
    files=files.node_files((0, 1), True, 0, REPOSITORY, VERSION),
    key=(REPOSITORY.key_fingerprint,),
)


def but(present: Present, **changes: t.Any) -> Present:
    """Return the state with changes."""
    return dataclasses.replace(present, **changes)
