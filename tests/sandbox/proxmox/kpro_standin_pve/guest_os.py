# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container's root folder says about the system in it."""

from __future__ import annotations

import re
from pathlib import Path

from . import normalise, storage
from .config_file import Config
from .node import Node
from .tasks import Task

OS_IDS = {
    "debian": "debian", "devuan": "devuan", "ubuntu": "ubuntu", "centos": "centos", "rhel": "centos",
    "rocky": "centos", "almalinux": "centos", "fedora": "fedora", "arch": "archlinux", "alpine": "alpine",
    "gentoo": "gentoo", "nixos": "nixos", "opensuse": "opensuse",
}  # fmt: skip
MACHINES = {62: "amd64", 3: "i386", 183: "arm64", 40: "armhf"}
FIRST_SYSTEMD_THAT_NEEDS_NESTING = 241


def ostype(root: Path) -> str | None:
    """Return Proxmox's name of the system, None when it can't be told."""
    release = root / "etc/os-release"
    for path in (release, root / "usr/lib/os-release"):
        if path.is_file():
            match = re.search(r"^ID=\"?([a-z]+)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            return OS_IDS.get(match[1]) if match else None
    return "debian" if (root / "etc/debian_version").exists() else None


def architecture(root: Path) -> str | None:
    """Return the architecture from the shell's ELF header, None when there is none."""
    for name in ("bin/sh", "usr/bin/sh", "bin/dash", "usr/bin/dash"):
        try:
            with open(root / name, "rb") as file:
                head = file.read(20)
        except OSError:
            continue
        if head[:4] == b"\x7fELF":
            return MACHINES.get(int.from_bytes(head[18:20], "little"))
    return None


def systemd_version(root: Path) -> int | None:
    """Return the guest's systemd version by the name of its private library."""
    for folder in ("usr/lib/systemd", "lib/systemd", "usr/lib/x86_64-linux-gnu/systemd", "lib/x86_64-linux-gnu/systemd"):
        for path in (root / folder).glob("libsystemd-shared-*.so"):
            if match := re.match(r"libsystemd-shared-(\d+)", path.name):
                return int(match[1])
    return None


def warn_about_nesting(node: Node, config: Config, task: Task) -> None:
    """Warn as Proxmox does when a systemd guest may not nest (the task then ends "WARNINGS: 1")."""
    values = config.current.values
    features = normalise.parts_of("features", values["features"]) if values.get("features") else {}
    if features.get("nesting") == "1":
        return
    version = systemd_version(storage.rootfs_folder(node, values["rootfs"]))
    if version is not None and version >= FIRST_SYSTEMD_THAT_NEEDS_NESTING:
        task.warn(f"Systemd {version} detected. You may need to enable nesting.")
