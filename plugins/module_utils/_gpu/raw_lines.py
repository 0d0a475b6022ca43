# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA devices and driver files in raw ``lxc.*`` lines. Pure.

The lines belong to other people: whatever can't be understood is passed over, nothing here raises.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import typing as t

from .._linux.system_folders import plain_path

RawLine = tuple[str, str]
# Files of a path that LXC includes: those of a folder, or the file itself; empty if it can't be read.
ReadFiles = t.Callable[[str], t.Sequence[str]]

ENVIRONMENT = re.compile(r"^lxc\.environment(?:\.runtime|\.hooks)?$")
MOST_INCLUDES = 32
LONGEST_PATH = 4096
_LINE = re.compile(r"^\s*(lxc\.[a-z0-9_.\-]+)\s*[:=]\s*(.*?)\s*$")
# Hooks that run before or while the container's file tree is set up; later ones pass nothing into it.
_HOOKS = re.compile(r"^lxc\.hook\.(?:pre-start|pre-mount|mount|autodev|start-host|start)$")
_ANY_HOOK = re.compile(r"^lxc\.hook\.")
_LIBRARY = re.compile(r"^lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia[-_][\w.+-]+?|\w+_nvidia)\.so(?:\.\d[\d.]*)?$")
_VERSION = re.compile(r"\d{3,4}\.\d{2,3}(?:\.\d{2})?(?!\d)")
_TOOLKIT = re.compile(r"^(?:lib)?nvidia-(?:container|ctk|cdi)")
_PROGRAM_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/sbin")
_FILE_FOLDERS = ("usr/lib", "usr/lib64", "usr/lib32", "lib", "lib64", "usr/local/lib", "usr/share", "etc/OpenCL", "etc/vulkan", "etc/glvnd", "etc/egl")
# Where the driver's userland, the environment, the engine's unit and its files are written in a container.
_WRITTEN = ("usr/bin", "usr/lib/x86_64-linux-gnu", "etc/systemd/system", "etc/ld.so.conf.d", "opt/kpro-llm", "var/lib/kpro-llm")


@dataclasses.dataclass(frozen=True)
class MountLine:
    """One mount entry: ``target`` is relative to the container's root, as LXC wants it."""

    source: str
    target: str
    options: frozenset[str] = frozenset()

    @property
    def optional(self) -> bool:
        """True if a missing source is passed over at the start."""
        return "optional" in self.options


def read_lines(text: str) -> list[RawLine]:
    """Return the raw lines of a file in LXC's own form."""
    return [(found[1], found[2]) for line in text.split("\n") if (found := _LINE.match(line))]


def mount_of(line: RawLine) -> MountLine | None:
    """Return what a ``lxc.mount.entry`` mounts, None for any other line."""
    return mount_fields(line[1]) if line[0] == "lxc.mount.entry" else None


def mount_fields(value: str) -> MountLine | None:
    """Return the mount that a line of fstab describes, None if it has too few fields."""
    fields = [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field) for field in value.split()]
    if len(fields) < 2 or fields[0].startswith("#") or any("\0" in field or len(field) > LONGEST_PATH for field in fields):
        return None
    target = posixpath.normpath(fields[1]).lstrip("/")
    # Under its own root file system Proxmox allows a target to be spelled from there.
    target = re.sub(r"^.*/lxc/rootfs/", "", target)
    return MountLine(_source(fields[0]), target, frozenset(fields[3].split(",")) if len(fields) > 3 else frozenset())


def expanded(lines: t.Iterable[RawLine], read: ReadFiles) -> list[RawLine]:
    """Return lines with those of included files in their places; each file once, a bounded number of them."""
    seen: set[str] = set()

    def walk(part: t.Iterable[RawLine]) -> t.Iterator[RawLine]:
        for line in part:
            if line[0] == "lxc.include" and line[1] not in seen and len(seen) < MOST_INCLUDES:
                seen.add(line[1])
                for text in read(line[1]):
                    yield from walk(read_lines(text))
            elif line[0] == "lxc.mount.fstab" and line[1] not in seen and len(seen) < MOST_INCLUDES:
                seen.add(line[1])
                yield from (("lxc.mount.entry", entry.strip()) for text in read(line[1]) for entry in text.split("\n") if mount_fields(entry))
            else:
                yield line

    return list(walk(lines))


def is_device_mount(line: RawLine) -> bool:
    """Tell whether a line mounts a device node of the NVIDIA driver."""
    mount = mount_of(line)
    return mount is not None and mount.source.startswith("/dev/nvidia")


def is_hook(line: RawLine) -> bool:
    """Tell whether a line runs a hook for NVIDIA devices, of any phase."""
    return _ANY_HOOK.match(line[0]) is not None and "nvidia" in line[1].lower()


def may_pass(line: RawLine) -> bool:
    """Tell whether an NVIDIA hook runs in a phase in which it can pass something into the container."""
    return is_hook(line) and _HOOKS.match(line[0]) is not None


def environment_of(line: RawLine) -> tuple[str, str] | None:
    """Return name and value of the variable that a line sets; without ``=`` it is taken from the node, which has none of ours."""
    if not ENVIRONMENT.match(line[0]) or "=" not in line[1]:
        return None
    name, _unused, value = line[1].strip("\"'").partition("=")
    return name.strip(), value.strip().strip("\"'")


def is_hook_environment(line: RawLine) -> bool:
    """Tell whether a line sets a variable that only the NVIDIA hook reads."""
    return (
        bool(ENVIRONMENT.match(line[0]))
        and re.match(r"[\"']?NVIDIA_(?:VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_|DISABLE_REQUIRE|MIG_)", line[1]) is not None
    )


def driver_file(line: RawLine) -> MountLine | None:
    """Return the mount of a line that puts a file or folder of the node's NVIDIA driver over the container's own, else None."""
    mount = mount_of(line)
    if mount is None or mount.source.startswith(("/dev/", "/proc/", "/sys/", "/run/")):
        return None
    names = {posixpath.basename(mount.source), posixpath.basename(mount.target)}
    folder = posixpath.dirname(mount.target)
    if any(_TOOLKIT.match(name) for name in names):
        return None
    if any(_LIBRARY.match(name) for name in names):
        return mount
    named = "nvidia" in mount.target.lower() or any("nvidia" in name.lower() for name in names)
    inside = folder in _PROGRAM_FOLDERS or any(folder == place or folder.startswith(f"{place}/") for place in _FILE_FOLDERS)
    return mount if named and inside else None


def breaks_with_version(mount: MountLine) -> bool:
    """Tell whether the source has a driver version in its path: it is gone once another version is installed."""
    return _VERSION.search(posixpath.basename(mount.source)) is not None and not mount.optional


def shadowing(line: RawLine) -> MountLine | None:
    """Return the mount of a line that covers a folder which this collection writes to in the container, else None."""
    mount = mount_of(line)
    if mount is None or mount.source in ("", "none", "tmpfs", "proc", "sysfs") or not mount.source.startswith("/"):
        return None
    return mount if any(place == mount.target or place.startswith(f"{mount.target}/") for place in _WRITTEN) else None


def _source(text: str) -> str:
    return plain_path(text) if text.startswith("/") else text
