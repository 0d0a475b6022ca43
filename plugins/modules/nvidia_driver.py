#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Keep one exact NVIDIA driver on a Proxmox VE node, and the same userland in a container
version_added: 1.0.0
author: kpro (@kpro)
description:
  - On a node the vendor's package is downloaded, checked by its SHA-256 and installed with DKMS (or its packages come from the vendor's
    repository); nouveau is kept off, the modules are
    loaded, a boot unit makes every device node before guests start, and the persistence daemon runs.
  - In a container exactly the libraries of the version that the node's kernel runs are installed, from the same file, and distribution
    packages that would shadow them are blocked.
  - The state is observed on each run and only what differs is done. A driver from another source is refused, never mixed.
  - The long part runs in a transient systemd unit that survives a lost connection. A later call attaches to it.
  - The module never reboots. It says whether and why a reboot is needed.
extends_documentation_fragment: kpro.llm.attributes
requirements:
  - Root on Debian's C(python3)
  - systemd
options:
  scope:
    description: V(node) is the kernel module and all around it, V(userland) is the libraries in a container.
    type: str
    choices: [node, userland]
    required: true
  version:
    description:
      - Full version of the driver. Required with O(scope=node).
      - With O(scope=userland) the version comes from C(/proc/driver/nvidia/version). If O(version) is given it has to be the same.
    type: str
    default: ""
  url:
    description: Address of the vendor's package. C({version}) in it stands for the version.
    type: str
    default: https://download.nvidia.com/XFree86/Linux-x86_64/{version}/NVIDIA-Linux-x86_64-{version}.run
  sha256:
    description: SHA-256 of the package. Empty takes it from the vendor's checksum file, which is O(url) with C(.sha256sum) appended.
    type: str
    default: ""
  kernel_module:
    description:
      - Flavour of the kernel module. V(auto) keeps what is there, and for a new installation takes the open one from Turing on.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  replace:
    description: Allow that another version is replaced on a node. In a container the version always follows the node.
    type: bool
    default: false
  packages:
    description: Debian packages that a build on the node needs. Headers of the kernels concerned are added.
    type: list
    elements: str
    default: [dkms, gcc, make, libc6-dev, proxmox-default-headers]
  persistence:
    description: Run the persistence daemon on the node.
    type: bool
    default: true
  power_limit_w:
    description: Power limit of each GPU of the node, in watts. V(0) leaves it alone.
    type: int
    default: 0
  source:
    description:
      - Where the driver of a node comes from. V(runfile) is the vendor's package, V(cuda_repo) the vendor's package repository for Debian.
      - With V(cuda_repo) the key is accepted by its fingerprint, and the version is pinned by apt preferences and by NVIDIA's pinning package.
      - A driver that is there from another source is refused with the way to remove or to keep it.
    type: str
    choices: [runfile, cuda_repo]
    default: runfile
  repository_url:
    description: Address of the vendor's package repository. C({distribution}) in it stands for V(debian12) or V(debian13).
    type: str
    default: https://developer.download.nvidia.com/compute/cuda/repos/{distribution}/x86_64/
  repository_key_url:
    description: Address of the key that signs the repository. Empty is the published file beside the packages.
    type: str
    default: ""
  repository_key_fingerprint:
    description: Fingerprint of that key. Empty is the published one.
    type: str
    default: ""
  poll_s:
    description: How long one call waits for the long part before it reports progress, in seconds.
    type: float
    default: 10.0
"""

EXAMPLES = r"""
- name: Keep the driver of the node
  kpro.llm.nvidia_driver:
    scope: node
    version: 580.173.02
  register: __driver

- name: Keep it by NVIDIA's package repository
  kpro.llm.nvidia_driver:
    scope: node
    version: 580.173.02
    source: cuda_repo

- name: Keep the container's libraries equal to it
  kpro.llm.nvidia_driver:
    scope: userland
"""

RETURN = r"""
version:
  description: The version that is kept.
  returned: when finished
  type: str
  sample: 580.173.02
url:
  description: Address of the vendor's package.
  returned: when finished
  type: str
  sample: https://download.nvidia.com/XFree86/Linux-x86_64/580.173.02/NVIDIA-Linux-x86_64-580.173.02.run
sha256:
  description: SHA-256 of the package, as given or as it was checked at installation. Empty if neither is known.
  returned: when finished
  type: str
loaded:
  description: The version that the kernel runs, null if none.
  returned: when finished
  type: str
  sample: 580.173.02
flavour:
  description: Flavour of the kernel module that runs, V(open) or V(proprietary).
  returned: when finished
  type: str
  sample: open
users:
  description: Who uses a GPU now, in words. Only on a node.
  returned: when finished
  type: list
  elements: str
  sample: ["python (pid 4711, kpro-sglang.service, uid 100999, 41200 MiB of GPU memory) of container 129 (qwen)"]
reboot_needed:
  description: A reboot of the node is needed to reach what is wanted.
  returned: when finished
  type: bool
reboot_reason:
  description: Why.
  returned: when finished
  type: str
  sample: nouveau holds 0000:41:00.0 until the next boot
foreign_guests:
  description: Guests without the tag C(kpro-llm) that run on the node, looked up when a reboot is needed.
  returned: when finished
  type: list
  elements: str
  sample: ["VM 100 (web)"]
notes:
  description: What a person should know of the change, such as containers that run with these GPUs and have to follow.
  returned: when finished
  type: list
  elements: str
  sample: []
plan:
  description: What was done, or would be in check mode, as sentences.
  returned: always
  type: list
  elements: str
  sample: [Install the NVIDIA driver, Load the kernel modules]
"""

import os
import typing as t

from ..module_utils._apt.repository import Repository
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._driver.converge import Driver
from ..module_utils._driver.edge import DriverEdge
from ..module_utils._driver.model import Wanted
from ..module_utils._driver.repository import repository_of
from ..module_utils._job.long_job_edge import LongJob
from ..module_utils._linux.command_edge import Command

URL = "https://download.nvidia.com/XFree86/Linux-x86_64/{version}/NVIDIA-Linux-x86_64-{version}.run"

REPOSITORY_URL = "https://developer.download.nvidia.com/compute/cuda/repos/{distribution}/x86_64/"


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    return {
        "scope": {"type": "str", "choices": ["node", "userland"], "required": True},
        "version": {"type": "str", "default": ""},
        "url": {"type": "str", "default": URL},
        "sha256": {"type": "str", "default": ""},
        "kernel_module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
        "replace": {"type": "bool", "default": False},
        "packages": {"type": "list", "elements": "str", "default": ["dkms", "gcc", "make", "libc6-dev", "proxmox-default-headers"]},
        "persistence": {"type": "bool", "default": True},
        "power_limit_w": {"type": "int", "default": 0},
        "source": {"type": "str", "choices": ["runfile", "cuda_repo"], "default": "runfile"},
        "repository_url": {"type": "str", "default": REPOSITORY_URL},
        "repository_key_url": {"type": "str", "default": "", "no_log": False},
        "repository_key_fingerprint": {"type": "str", "default": "", "no_log": False},
        "poll_s": {"type": "float", "default": 10.0},
    }


def converge(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Run the module."""
    if os.geteuid() != 0:
        raise KproError("nvidia_driver", "it needs root", "Connect as root, or let Ansible become root")
    command = Command()
    edge = DriverEdge(command)
    wanted = Wanted(
        scope=params["scope"],
        version=params["version"],
        url=params["url"],
        sha256=params["sha256"],
        flavour=params["kernel_module"],
        replace=params["replace"],
        packages=tuple(params["packages"]),
        persistence=params["persistence"],
        power_limit_w=params["power_limit_w"],
        source=params["source"],
        repository=repository(params, edge) if params["source"] == "cuda_repo" else None,
    )
    driver = Driver(edge, lambda version: LongJob(f"kpro-driver-{version}.service", command=command), params["poll_s"])
    return driver.converge(wanted, check_mode)


def repository(params: dict[str, t.Any], edge: DriverEdge) -> Repository:
    """Return the vendor's package repository for the release at hand."""
    if params["scope"] == "userland":
        raise KproError("source cuda_repo", "a container takes its libraries from the vendor package of the node's version", "Leave source out")
    return repository_of(params["repository_url"], params["repository_key_url"], params["repository_key_fingerprint"], edge.distribution())


def main() -> None:
    """Entry point."""
    run_module(converge, argument_spec(), required_if=[("scope", "node", ("version",))])


if __name__ == "__main__":
    main()
