# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands in a node, by ssh or by entering its namespaces."""

from __future__ import annotations

import os
from pathlib import Path

from node import cgroup, ssh
from node.folders import Folders, NodeFolder, SandboxError
from node.record import Record, Runtime

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for word in text.split()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def leader(folder: NodeFolder) -> int:
    """Return the machine's number of the node's first process, 0 while there is none; it changes with each reboot."""
    runtime = Runtime.read(folder)
    if runtime is None or not runtime.alive:
        return 0
    for nspawn in _children(runtime.pid):
        if _name(nspawn) == "systemd-nspawn":
            return next((pid for pid in _children(nspawn) if _name(pid) == "systemd"), 0)
    return 0


def has_systemd(folder: NodeFolder) -> bool:
    """Whether the node's systemd takes commands."""
    pid = leader(folder)
    return pid > 0 and Path(f"/proc/{pid}/root/run/systemd/private").exists()


def enter_cgroup(folder: NodeFolder) -> None:
    """Move this process to the cgroup of the node's first process, so that it counts as one of the node's."""
    runtime = Runtime.read(folder)
    if runtime is None:
        raise SandboxError(f"node {folder.name} does not run")
    init = Path(runtime.cgroup) / cgroup.NODE / "payload" / "init.scope"
    (init / "cgroup.procs").write_text("0", encoding="ascii")


def command(folders: Folders, record: Record, words: list[str], with_ssh: bool = True) -> list[str]:
    """Return a command line that runs ``words`` in the node as root."""
    if with_ssh and not record.image.pristine:
        return ssh.remote_command(folders, record.name, words)
    pid = leader(folders.node(record.name))
    if not pid:
        raise SandboxError(f"node {record.name} has no first process; it is just starting or ending")
    keep = [f"{name}={os.environ[name]}" for name in ("TERM",) if name in os.environ]
    environment = ["env", "-i", f"PATH={_PATH}", "HOME=/root", "LANG=C.UTF-8", *keep]
    return [
        "nsenter",
        f"--target={pid}",
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--cgroup",
        *environment,
        "/bin/sh",
        "-c",
        'cd && exec "$@"',
        "sh",
        *words,
    ]
