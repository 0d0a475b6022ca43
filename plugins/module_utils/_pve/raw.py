# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Raw ``lxc.*`` lines of a hand-made container that pass NVIDIA devices or driver files.

Such lines can't be set or removed through the API, only in the file; ``dev[n]`` (majors are looked up at each start) and the
userland that is installed in the container replace them.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._gpu import raw_lines as nvidia
from .._gpu.raw_lines import RawLine

DEVICE_RULES = ("lxc.cgroup2.devices.allow", "lxc.cgroup.devices.allow")
RULE = re.compile(r"^c\s+(\d{1,9}):")
NVIDIA_MAJOR = 195
# Kernel ranges for dynamic character majors (Documentation/admin-guide/devices.txt).
DYNAMIC_MAJORS = (range(234, 255), range(384, 512))
DRIVERS = frozenset({"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia-modeset", "nvidia-nvswitch"})
DRIVERS |= {"nvidia-nvlink", "nvidia-caps-imex-channels"}


@dataclasses.dataclass(frozen=True)
class RawSplit:
    """Raw lines sorted into what ``dev[n]`` replaces, with the reason, and what stays."""

    replaced: tuple[tuple[RawLine, str], ...]
    kept: tuple[RawLine, ...]


def read_majors(proc_devices: str) -> dict[int, str]:
    """Return the character device majors of ``/proc/devices`` (number -> driver)."""
    section = proc_devices.split("Block devices:")[0]
    return {int(match[1]): match[2] for match in re.finditer(r"^\s*(\d+)\s+(\S+)\s*$", section, re.MULTILINE)}


def split_raw(lines: t.Sequence[RawLine], majors: t.Mapping[int, str], privileged: bool) -> RawSplit:
    """Sort raw lines into NVIDIA ones and others.

    A rule for a dynamic major that no driver holds now counts as a stale NVIDIA one if the container passes NVIDIA
    nodes by raw lines: nvidia-uvm's major moves at a reboot.
    """
    passes_nvidia = any(nvidia.is_device_mount(line) or _rule_major(line) == NVIDIA_MAJOR for line in lines)
    replaced: list[tuple[RawLine, str]] = []
    kept: list[RawLine] = []
    for line in lines:
        reason = _reason(line, majors, passes_nvidia, privileged)
        if reason:
            replaced.append((line, reason))
        else:
            kept.append(line)
    return RawSplit(tuple(replaced), tuple(kept))


def remove_lines(text: str, gone: t.Iterable[RawLine]) -> str:
    """Return a configuration file without these raw lines of its current section; all else stays byte for byte."""
    wanted = {(key, " ".join(value.split())) for key, value in gone}
    lines = text.splitlines(keepends=True)
    end = next((number for number, line in enumerate(lines) if line.startswith("[")), len(lines))
    kept = [line for line in lines[:end] if _raw_of(line) not in wanted]
    return "".join(kept + lines[end:])


def is_nvidia_line(line: RawLine) -> bool:
    """Tell whether a line passes NVIDIA devices or files of the driver: by a mount, a hook, or a rule for their fixed major."""
    shown = nvidia.is_device_mount(line) or nvidia.may_pass(line) or nvidia.driver_file(line) is not None
    return shown or nvidia.is_hook_environment(line) or _rule_major(line) == NVIDIA_MAJOR


def _raw_of(line: str) -> RawLine | None:
    match = re.match(r"^(lxc\.[a-z0-9_.\-]+)\s*[:=]\s*(.*?)\s*$", line)
    return (match[1], " ".join(match[2].split())) if match else None


def _reason(line: RawLine, majors: t.Mapping[int, str], passes_nvidia: bool, privileged: bool) -> str:
    mount = nvidia.driver_file(line)
    if mount:
        later = ", and the container can't start after the next change of the driver" if nvidia.breaks_with_version(mount) else ""
        return f"it mounts a file of the node's driver over the container's own{later}"
    if nvidia.is_device_mount(line):
        return "an optional mount hides a missing device node"
    if nvidia.may_pass(line):
        where = " and not supported in a privileged container" if privileged else ""
        return f"the NVIDIA {line[0].removeprefix('lxc.hook.')} hook is not needed with dev[n]{where}"
    if nvidia.is_hook_environment(line):
        return "only the NVIDIA hook reads it"
    major = _rule_major(line)
    if major is None:
        return ""
    if majors.get(major, "") in DRIVERS or major == NVIDIA_MAJOR:
        return f"it fixes the major number {major}, which can move at a reboot"
    if passes_nvidia and major not in majors and any(major in numbers for numbers in DYNAMIC_MAJORS):
        now = sorted(number for number, driver in majors.items() if driver == "nvidia-uvm")
        return f"major {major} belongs to no driver now{f', nvidia-uvm is {now[0]} since the last boot' if now else ''}"
    return ""


def _rule_major(line: RawLine) -> int | None:
    match = RULE.match(line[1].strip()) if line[0] in DEVICE_RULES else None
    return int(match[1]) if match else None
