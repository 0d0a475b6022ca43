# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the kernel that keep the NVIDIA driver off a GPU."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .findings import Finding
from .model import PciGpu

COMMAND_LINE = "the kernel command line"
_VENDOR = "10de"
_MODULES = ("nvidia", "nvidia_uvm")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One line of modprobe.d, or one word of the kernel command line.

    :param kind: "blocked", a module of the driver is kept from loading; "vfio", vfio-pci takes the devices of ``ids``.
    :param ids: ``vendor:device`` pairs in lower case.
    """

    kind: t.Literal["blocked", "vfio"]
    place: str
    text: str
    ids: tuple[str, ...] = ()


def settings(options: t.Mapping[str, str], command_line: str) -> tuple[Setting, ...]:
    """Return the settings that concern the driver.

    :param options: texts of modprobe.d's files by path.
    :param command_line: ``/proc/cmdline``.
    """
    found = [_line(path, " ".join(line.split())) for path, text in options.items() for line in text.splitlines()]
    found += [_word(word) for word in command_line.split()]
    return tuple(each for each in found if each)


def _line(path: str, line: str) -> Setting | None:
    words = line.split()
    if len(words) < 2:
        return None
    if words[0] in ("blacklist", "install") and _module(words[1]) in _MODULES:
        # An install line may do more than refuse (load another module first, for one).
        refuses = words[0] == "blacklist" or re.fullmatch(r"(/usr)?/bin/(false|true)", " ".join(words[2:]))
        return Setting("blocked", path, line) if refuses else None
    if words[0] == "options" and _module(words[1]) == "vfio_pci":
        return _vfio(path, line, [word.removeprefix("ids=") for word in words[2:] if word.startswith("ids=")])
    return None


def _word(word: str) -> Setting | None:
    key, _unused, value = word.partition("=")
    if key in ("modprobe.blacklist", "module_blacklist") and {_module(name) for name in value.split(",")} & set(_MODULES):
        return Setting("blocked", COMMAND_LINE, word)
    return _vfio(COMMAND_LINE, word, [value]) if key in ("vfio-pci.ids", "vfio_pci.ids") else None


def _vfio(place: str, text: str, values: t.Sequence[str]) -> Setting | None:
    ids = tuple(":".join(each.lower().split(":")[:2]) for value in values for each in value.split(",") if each)
    return Setting("vfio", place, text, ids) if ids else None


def _module(name: str) -> str:
    return name.replace("-", "_")


def blocker_findings(found: t.Iterable[Setting], gpus: t.Sequence[PciGpu]) -> list[Finding]:
    """Return what the settings do to the GPUs; one that vfio-pci holds already is not named again."""
    findings = []
    for setting in found:
        if setting.kind == "blocked":
            reason = f"{setting.place} keeps it from loading ({setting.text})"
            findings.append(Finding("module_blocked", "error", "NVIDIA kernel module", reason, remedy(setting)))
        else:
            taken = [gpu for gpu in gpus if gpu.driver != "vfio-pci" and f"{_VENDOR}:{gpu.device_id.removeprefix('0x').lower()}" in setting.ids]
            reason = f"vfio-pci takes it at the next boot ({setting.place}: {setting.text})"
            findings += [Finding("vfio_ids", "error", f"GPU {gpu.bus_id}", reason, remedy(setting)) for gpu in taken]
    return findings


def remedy(setting: Setting) -> str:
    """Return how a setting is taken away; by a person, as it was put there for a VM."""
    if setting.place == COMMAND_LINE:
        edit = "/etc/kernel/cmdline and run proxmox-boot-tool refresh, or from /etc/default/grub and run update-grub"
        return f"If no VM needs it, remove {setting.text} from {edit}; then reboot the node"
    return f"If no VM needs it, remove that line from {setting.place}, run update-initramfs -u -k all and reboot the node"
