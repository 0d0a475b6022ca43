# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cgroups of the machine: one of our own for each node, so that two systemds never share a tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

from node.folders import SandboxError

HELPER = "helper"  # supervisor and user-mode network
NODE = "node"  # systemd-nspawn; it splits this further

_CLONE_NEWCGROUP = 0x02000000
_libc = ctypes.CDLL(None, use_errno=True)


def parse_cgroup2_mount(mountinfo: str) -> str:
    """Return where cgroup2 is mounted, from the text of ``/proc/self/mountinfo``; empty if nowhere."""
    for line in mountinfo.splitlines():
        left, _unused, right = line.partition(" - ")
        if right.split(" ")[0] == "cgroup2":
            return left.split(" ")[4]
    return ""


def parse_own_path(cgroup: str) -> str:
    """Return the own cgroup2 path, from the text of ``/proc/self/cgroup`` (a hybrid machine lists v1 paths too)."""
    for line in cgroup.splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def mount_point() -> Path:
    """Return the machine's cgroup2 mount."""
    found = parse_cgroup2_mount(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if not found:
        raise SandboxError("this machine has no cgroup2 mount; run 'mount -t cgroup2 none /sys/fs/cgroup' or boot it with cgroups v2")
    return Path(found)


def own_folder() -> Path:
    """Return the folder of the cgroup2 that this process is in."""
    own = parse_own_path(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    return mount_point() / own.lstrip("/")


def prepare(folder: Path) -> None:
    """Make the node's cgroup with its two parts, the root of a new cgroup namespace, and enter the helper's part.

    Controllers are handed down where the machine lets us: on hybrid machines v1 holds them.
    """
    for path in (folder, folder / HELPER, folder / NODE):
        path.mkdir(exist_ok=True)
    (folder / "cgroup.procs").write_text("0", encoding="ascii")
    if _libc.unshare(_CLONE_NEWCGROUP) != 0:
        number = ctypes.get_errno()
        raise SandboxError(f"no cgroup namespace can be made here: {os.strerror(number)}")
    (folder / HELPER / "cgroup.procs").write_text("0", encoding="ascii")
    for controller in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def kill_and_remove(folder: Path, timeout_s: float = 10) -> None:
    """End what is left in the cgroup and remove it; nothing outside it is touched."""
    deadline_s = time.monotonic() + timeout_s
    while folder.exists():
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1", encoding="ascii")
        for current, _unused, _unused in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(current)
        if time.monotonic() > deadline_s:
            raise SandboxError(f"cgroup {folder} still has processes after {timeout_s:.0f} s")
        if folder.exists():
            time.sleep(0.02)
