# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what NVIDIA's driver, DKMS and the kernel write."""

from __future__ import annotations

import dataclasses
import re
import typing as t

Flavour = t.Literal["open", "proprietary"]

# 580.142, 580.173.02, 550.54.14: two or three parts, never a date or a compiler's version, which stand elsewhere in the line.
_VERSION = r"\d{3,4}\.\d{2,3}(?:\.\d{2})?"
_LOADED = re.compile(rf"^NVRM version:\s+(?P<name>.*?Kernel Module\b.*?)\s(?P<version>{_VERSION})(?:\s|$)", re.MULTILINE)
# The vendor's, and Debian's for its two flavours.
DKMS_NAMES = ("nvidia", "nvidia-open", "nvidia-current", "nvidia-current-open")
_DKMS = re.compile(r"^(?P<name>[^/,\s]+)[/,]\s*(?P<version>[^,:\s]+)(?:,\s*(?P<kernel>[^,:\s]+),\s*(?P<arch>[^,:\s]+))?:\s*(?P<state>\w+)")


@dataclasses.dataclass(frozen=True)
class DriverVersion:
    """A kernel driver: its full version text and whether its source is the open or the proprietary one."""

    version: str
    flavour: Flavour


@dataclasses.dataclass(frozen=True)
class DkmsEntry:
    """One line of ``dkms status``; ``kernel`` is empty for a module that is only added, ``name`` is the packager's for the driver."""

    version: str
    kernel: str
    state: str
    name: str = "nvidia"


def loaded_driver(text: str) -> DriverVersion | None:
    """Return the driver that ``/proc/driver/nvidia/version`` names, None if the text names none."""
    found = _LOADED.search(text)
    if not found:
        return None
    return DriverVersion(found["version"], "open" if "Open Kernel Module" in found["name"] else "proprietary")


def flavour_of_license(license_text: str) -> Flavour:
    """Return the flavour by the module's licence: the open module is "Dual MIT/GPL", the proprietary one "NVIDIA"."""
    return "open" if "GPL" in license_text else "proprietary"


def module_driver(text: str) -> DriverVersion | None:
    """Return the driver that ``modinfo nvidia`` describes, None if the text describes none."""
    rows = dict(re.findall(r"^(version|license):\s*(.+)$", text, re.MULTILINE))
    return DriverVersion(rows["version"].strip(), flavour_of_license(rows.get("license", ""))) if "version" in rows else None


def library_version(file_name: str) -> str | None:
    """Return the driver version in a library's file name (``libcuda.so.580.173.02``), None if there is none."""
    found = re.search(rf"\.so\.({_VERSION})$", file_name)
    return found[1] if found else None


def dkms_entries(text: str, names: t.Collection[str] = DKMS_NAMES) -> tuple[DkmsEntry, ...]:
    """Return the driver's entries in the output of ``dkms status`` of DKMS 2 (commas) and 3 (slash)."""
    found = (_DKMS.match(line.strip()) for line in text.splitlines())
    return tuple(DkmsEntry(each["version"], each["kernel"] or "", each["state"], each["name"]) for each in found if each and each["name"] in names)


def character_majors(text: str) -> dict[str, int]:
    """Return the major numbers of ``/proc/devices``' character devices by name."""
    characters = text.partition("Block devices:")[0]
    rows = (line.split() for line in characters.splitlines())
    return {words[1]: int(words[0]) for words in rows if len(words) == 2 and words[0].isdigit()}


def loaded_modules(lsmod_text: str) -> frozenset[str]:
    """Return the module names of ``lsmod``."""
    lines = lsmod_text.splitlines()[1:]
    return frozenset(line.split()[0] for line in lines if line.strip())


def gpu_information(text: str) -> dict[str, str]:
    """Return the rows of ``/proc/driver/nvidia/gpus/BUS_ID/information`` by their names."""
    rows = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _unused, value in rows if value.strip()}


def bus_id(text: str) -> str:
    """Return a PCI address in the form of sysfs: ``00000000:41:00.0`` and ``0000:41:00.0`` become ``0000:41:00.0``."""
    found = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text.strip().lower())
    if not found:
        return text.strip().lower()
    return f"{int(found[1] or '0', 16):04x}:{found[2]}:{found[3]}.{found[4]}"


def active_containers(unix_sockets: str) -> frozenset[int]:
    """Return the containers whose LXC monitor listens, in ``/proc/net/unix``; Proxmox asks the same way."""
    return frozenset(int(vmid) for vmid in re.findall(r"@/var/lib/lxc/(\d+)/command$", unix_sockets, re.MULTILINE))


def checksum_of(text: str, file_name: str) -> str | None:
    """Return the SHA-256 that a vendor's checksum file (``HASH  NAME`` lines, or one bare hash) gives for a file."""
    for line in text.splitlines():
        words = line.split()
        if words and re.fullmatch(r"[0-9a-fA-F]{64}", words[0]) and (len(words) == 1 or words[-1].lstrip("*").rpartition("/")[2] == file_name):
            return words[0].lower()
    return None


def version_key(version: str) -> tuple[int, ...]:
    """Return a driver or kernel version in a form that sorts."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def pve_version(text: str) -> str | None:
    """Return the version in the output of ``pveversion`` (``pve-manager/9.0.3/025864202ebb6109 (running kernel: ...)``)."""
    found = re.match(r"pve-manager/([^/\s]+)", text.strip())
    return found[1] if found else None
