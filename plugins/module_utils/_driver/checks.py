# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reasons to refuse a driver's installation before anything is changed."""

from __future__ import annotations

import json
import re
import typing as t

from .._core.errors import KproError
from .._gpu.blockers import blocker_findings
from .._gpu.findings import vm_words
from .._gpu.text import Flavour, version_key
from .model import Present, Wanted
from .repository import packages_right
from .sources import check_sources

# PCI device ids from here on are Turing or newer: TU10x starts at 0x1e02, Volta ends at 0x1df6.
FIRST_TURING_ID = 0x1E00
LAST_BRANCH_BEFORE_TURING = 580
FIRST_OPEN_ONLY_BRANCH = 620
OUR_TAG = "kpro-llm"


def check_version(version: str) -> None:
    """Refuse what is no full driver version.

    :raises KproError: a branch (580) or a pattern is not enough: node and containers need the same files.
    """
    if not re.fullmatch(r"\d{3,4}\.\d{2,3}(\.\d{2})?", version):
        raise KproError("driver version", f"'{version}' is no full version such as 580.173.02", "Give all its components")


def wanted_flavour(wanted: Wanted, present: Present) -> Flavour:
    """Return the kernel module's flavour to install.

    :raises KproError: GPU generation, branch and wish do not go together.
    """
    old = [gpu.bus_id for gpu in present.pci if int(gpu.device_id, 16) < FIRST_TURING_ID]
    branch = version_key(wanted.version)[0]
    if old and branch > LAST_BRANCH_BEFORE_TURING:
        raise KproError(f"GPU {', '.join(old)}", f"older than Turing, which driver {wanted.version} no longer supports", "Take a version of branch 580")
    if old and wanted.flavour == "open":
        raise KproError(f"GPU {', '.join(old)}", "older than Turing: the open kernel module can't drive it", "Choose the proprietary kernel module")
    if wanted.flavour == "proprietary" and branch >= FIRST_OPEN_ONLY_BRANCH:
        raise KproError(f"driver {wanted.version}", "its branch has no proprietary kernel module any more", "Choose the open kernel module")
    if wanted.flavour in ("open", "proprietary"):
        return t.cast(Flavour, wanted.flavour)
    return "proprietary" if old else "open"


def running_foreign_guests(resources_json: str, node: str) -> tuple[str, ...]:
    """Return the guests that run on a node without our tag, in the answer of ``/cluster/resources``."""
    rows = [row for row in json.loads(resources_json) if row.get("node") == node and row.get("status") == "running"]
    words = {"qemu": "VM", "lxc": "container"}
    return tuple(
        f"{words.get(row.get('type'), 'guest')} {row.get('vmid')} ({row.get('name', '?')})"
        for row in rows
        if OUR_TAG not in str(row.get("tags") or "").replace(",", ";").split(";")
    )


def check_node(wanted: Wanted, present: Present) -> None:
    """Refuse to go on where another source or driver has the GPUs, or consent is missing.

    :raises KproError: naming what is in the way.
    """
    check_sources(wanted, present)
    if not present.pci and present.loaded is None:
        raise KproError("GPU", "no NVIDIA controller is on the PCI bus", "Look at lspci -nn | grep -i nvidia on the node")
    check_binding(present)
    check_replace(wanted, present)
    check_users(wanted, present)


def check_binding(present: Present) -> None:
    """Refuse GPUs that are given to VMs, and settings of the kernel that keep the driver off them.

    :raises KproError: no GPU is left for us, or the next boot would take one away.
    """
    lost = [gpu for gpu in present.pci if gpu.driver == "vfio-pci" or gpu.vms]
    if lost and len(lost) == len(present.pci):
        bound = [gpu for gpu in lost if gpu.driver == "vfio-pci"]
        names = ", ".join(gpu.bus_id + vm_words(gpu) for gpu in (bound or lost))
        reason = "it is bound to vfio-pci, for use in a VM" if bound else "it is taken away as soon as that VM starts"
        vfio = [setting for setting in present.settings if setting.kind == "vfio"]
        ids = f" and from vfio-pci's ids ({'; '.join(f'{each.place}: {each.text}' for each in vfio)})" if vfio else " and from vfio-pci's ids" if bound else ""
        raise KproError(f"GPU {names}", reason, f"Remove it from the VM (qm set VMID --delete hostpciN){ids}{', then reboot the node' if bound else ''}")
    blockers = blocker_findings(present.settings, present.pci)
    taken = {f"GPU {gpu.bus_id}" for gpu in lost} | {each.what for each in blockers if each.kind == "vfio_ids"}
    if any(f"GPU {gpu.bus_id}" not in taken for gpu in present.pci):
        blockers = [each for each in blockers if each.kind != "vfio_ids"]
    if blockers:
        raise KproError(
            blockers[0].what, "; ".join(dict.fromkeys(each.reason for each in blockers)), ". ".join(dict.fromkeys(each.remedy for each in blockers))
        )


def check_users(wanted: Wanted, present: Present) -> None:
    """Refuse to install while a GPU is in use: the modules can't be unloaded, and the vendor's installer stops half-way.

    :raises KproError: naming who uses it, and how each is ended.
    """
    if present.users and present.loaded and needs_install(wanted, present):
        purpose = "installed again" if present.loaded.version == wanted.version else f"replaced by {wanted.version}"
        raise KproError(
            "NVIDIA driver",
            f"{present.loaded.version} is in use by {'; '.join(user.words for user in present.users)} and can't be {purpose}",
            f"Stop them ({'; '.join(dict.fromkeys(user.end for user in present.users))}), then run again",
            users=[user.words for user in present.users],
        )


def needs_install(wanted: Wanted, present: Present) -> bool:
    """Say whether the driver has to be installed: module, libraries, packages or DKMS's record are not those of the wanted version."""
    disk = present.on_disk
    if not present.libraries_are(wanted.version) or not present.has_source(wanted.version):
        return True
    if wanted.source == "cuda_repo" and not packages_right({each.name: each.version for each in present.packages}, wanted.version, wanted.flavour):
        return True
    if disk is None or disk.version != wanted.version:
        # A module that DKMS only has to build needs no installation.
        return present.built_for(wanted.version, present.kernel)
    return wanted.flavour != "auto" and disk.flavour != wanted.flavour


def check_replace(wanted: Wanted, present: Present) -> None:
    """Refuse to replace another version without consent.

    :raises KproError: another version is there, and ``replace`` is not set.
    """
    others = {
        "loaded": present.loaded.version if present.loaded else None,
        "on disk": present.on_disk.version if present.on_disk else None,
        "its libraries": present.nvml_library or present.cuda_library,
    }
    there = {place: version for place, version in others.items() if version and version != wanted.version}
    if there and not wanted.replace:
        versions = dict.fromkeys(there.values())
        words = "; ".join(f"{version} ({', '.join(place for place in there if there[place] == version)})" for version in versions)
        raise KproError(
            "NVIDIA driver",
            f"{words} is there, {wanted.version} is wanted",
            "Allow the change with gpu_node__replace_driver: true, or ask for the version that is there",
            present=there,
        )
