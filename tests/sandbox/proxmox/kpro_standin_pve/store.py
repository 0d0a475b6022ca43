# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading and writing container configurations under /etc/pve."""

from __future__ import annotations

import os

from . import cluster, config_file, normalise
from .config_file import Config
from .errors import failed
from .node import Node


def load(node: Node, vmid: str) -> Config:
    """Return a container's configuration; lines that can't be used are told through ``notice``."""
    try:
        text = node.config_path(vmid).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        raise failed(f"Configuration file 'nodes/{node.name}/lxc/{vmid}.conf' does not exist") from None
    config = config_file.parse(text, vmid)
    for warning in config.warnings:
        node.notice(warning)
    for section in (config.current, config.pending, *config.snapshots.values()):
        for key, value in section.values.items():
            # Proxmox's parser turns integers and booleans into numbers: "memory: 0512" is written back as 512.
            section.values[key] = str(normalise.typed(key, value))
    return config


def save(node: Node, vmid: str, config: Config) -> None:
    """Write a configuration whole, so that no reader sees half of it."""
    cluster.require_quorum(node)
    path = node.config_path(vmid)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(config_file.render(config), encoding="utf-8", errors="surrogateescape")
    fresh.chmod(0o640)
    fresh.rename(path)


def exists(node: Node, vmid: str) -> bool:
    """Tell whether this node has the container."""
    return node.config_path(vmid).exists()


def container_ids(node: Node) -> list[str]:
    """Return this node's containers by number."""
    folder = node.config_path("x").parent
    return sorted((path.stem for path in folder.glob("[0-9]*.conf")), key=int) if folder.is_dir() else []


def machine_ids(node: Node) -> list[str]:
    """Return the virtual machines of this node (the stand-in runs none, but their files may claim GPUs)."""
    folder = node.path(f"/etc/pve/nodes/{node.name}/qemu-server")
    return sorted((path.stem for path in folder.glob("[0-9]*.conf")), key=int) if folder.is_dir() else []


def owner_of(node: Node, vmid: str) -> tuple[str, str] | None:
    """Return (kind, node name) of a guest number anywhere in the cluster, kind being "CT" or "VM"."""
    for kind, folder in (("CT", "lxc"), ("VM", "qemu-server")):
        for path in sorted(node.path("/etc/pve/nodes").glob(f"*/{folder}/{vmid}.conf")):
            return kind, path.parent.parent.name
    return None


def check_lock(config: Config) -> None:
    """Refuse when the configuration carries a lock key."""
    lock = config.current.values.get("lock")
    if lock:
        raise failed(f"CT is locked ({lock})")


def check_lock_for_stop(config: Config) -> None:
    """Refuse a stop under a lock; a container that is only mounted may be stopped."""
    if config.current.values.get("lock") != "mounted":
        check_lock(config)
