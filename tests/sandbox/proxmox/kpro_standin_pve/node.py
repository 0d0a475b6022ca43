# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node that the stand-in plays: where its files lie, its name, its version, who asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import Driver

# Debian release -> (pve-manager version, release). The repoid is not a real one.
VERSIONS = {"12": ("8.4.14", "8.4"), "13": ("9.2.11", "9.2")}
REPOID = "14a22df300000"
ROOT_USER = "root@pam"
SETTINGS = "etc/kpro-standin/pve.json"


@dataclass
class Node:
    """One node. ``root`` is "/" on the node itself and a temporary folder in tests of the configuration."""

    root: Path
    name: str
    driver: Driver
    user: str = ROOT_USER
    major: str = "13"
    lock_wait_s: float = 10.0
    # Version that it claims to be, whatever it plays; empty: the one that it plays.
    claimed_version: str = ""
    # Command lines print warnings and lock messages on standard error; the API drops them.
    notice: Callable[[str], None] = field(default=lambda text: None)

    def path(self, absolute: str | os.PathLike[str]) -> Path:
        """Return where an absolute path of the node really lies."""
        return self.root / str(absolute).lstrip("/")

    def pause(self, name: str) -> None:
        """Wait as long as the settings say that a step takes: ``free_s`` to remove a volume, ``key_s`` to make a host key.

        They count as they are now, so that a step can be made to end.
        """
        import json
        import time

        began = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            while time.monotonic() - began < float(json.loads(self.path(SETTINGS).read_text(encoding="utf-8")).get(name, 0)):
                time.sleep(0.05)

    @property
    def version(self) -> str:
        """Return pve-manager's version, for example 9.2.11."""
        return self.claimed_version or VERSIONS[self.major][0]

    @property
    def release(self) -> str:
        """Return the release, for example 9.2."""
        return ".".join(self.claimed_version.partition("-")[0].split(".")[:2]) or VERSIONS[self.major][1]

    @property
    def is_pve8(self) -> bool:
        """Tell whether this plays Proxmox VE 8 (privileged by default, no device hotplug)."""
        return self.major == "12"

    @property
    def is_root_user(self) -> bool:
        """Tell whether the caller is the literal root@pam (an API token of root is not)."""
        return self.user == ROOT_USER

    def config_path(self, vmid: int | str) -> Path:
        """Return a container's configuration file."""
        return self.path(f"/etc/pve/nodes/{self.name}/lxc/{vmid}.conf")


def debian_major(root: Path) -> str:
    """Return "12" or "13" from /etc/debian_version; anything else is played as the newest."""
    try:
        text = (root / "etc/debian_version").read_text(encoding="ascii")
    except OSError:
        return "13"
    return "12" if text.startswith(("12", "bookworm")) else "13"


def claimed_version(root: Path) -> str:
    """Return the version that the settings make the node claim, empty if they are silent."""
    import json

    try:
        return str(json.loads((root / SETTINGS).read_text(encoding="utf-8")).get("version", ""))
    except FileNotFoundError:
        return ""


def this_node(notice: Callable[[str], None]) -> Node:
    """Return the machine that this runs on, driving LXC."""
    from .lxc_driver import LxcDriver

    root = Path("/")
    return Node(root, os.uname().nodename.split(".")[0], LxcDriver(), major=debian_major(root), notice=notice, claimed_version=claimed_version(root))
