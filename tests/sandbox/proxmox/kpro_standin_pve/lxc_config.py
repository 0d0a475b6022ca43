# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The LXC configuration of a container, generated from Proxmox's at each write and each start."""

from __future__ import annotations

import re
from pathlib import Path

from . import devices, normalise, storage
from .config_file import Config, Values
from .errors import failed
from .formats import split_list
from .node import Node

SHIFT = 100000
INCLUDES = "/usr/share/lxc/config"
LXC_DIR = "/var/lib/lxc"
POST_STOP = "/usr/lib/kpro-standin/proxmox/bin/post-stop"
# A real kernel shows the driver's /proc entries in every container. LXC mounts a proc of its own, so that what the GPU
# stand-in puts on the node has to be bound in.
PROC_LINES = (
    "# kpro stand-in: what a real kernel module would show in every container's /proc",
    "lxc.mount.entry = /run/kpro-standin/proc/driver proc/driver none bind,ro,optional 0 0",
    "lxc.mount.entry = /run/kpro-standin/proc/devices proc/devices none bind,ro,optional 0 0",
)


def passthrough_dir(node: Node, vmid: str) -> Path:
    """Return the folder in which the container's own device nodes are made."""
    return node.path(f"{LXC_DIR}/{vmid}/passthrough")


def escape(path: str) -> str:
    """Return a path for one field of a mount entry."""
    return path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")


def bind_mounts(values: Values) -> list[tuple[str, str, bool]]:
    """Return (source, target, read only) of the ``mp[n]`` that are no volumes, and volumes as None sources left out."""
    found = []
    for key in devices.keys(values, "mp"):
        parts = normalise.parts_of(key, values[key])
        found.append((parts["volume"], parts["mp"], parts.get("ro") == "1"))
    return found


def source_path(node: Node, volume: str) -> str:
    """Return the folder or device on the node that a mount point's volume stands for."""
    return volume if volume.startswith("/") else storage.volume_path(node, volume)


def generate(node: Node, vmid: str, config: Config) -> str:
    """Return the text of /var/lib/lxc/ID/config; a missing device or key is refused as Proxmox does."""
    values = config.current.values
    for key in ("arch", "ostype"):
        if key not in values:
            raise failed(f"missing '{key}' - internal error at /usr/share/perl5/PVE/LXC.pm line 729.")
    id_map(config)
    lines = _base(vmid, config) + _network(node, vmid, values)
    lines += _devices(node, vmid, values)
    for volume, target, read_only in bind_mounts(values):
        source = source_path(node, volume)
        kind = "create=dir" if not node.path(source).is_file() else "create=file"
        options = f"bind{',ro' if read_only else ''},{kind}"
        lines.append(f"lxc.mount.entry = {escape(source)} {escape(target.lstrip('/'))} none {options} 0 0")
    lines += PROC_LINES
    lines += [f"{key} = {text}" for key, text in config.current.raw]
    rootfs = storage.rootfs_folder(node, values["rootfs"])
    lines.append(f"lxc.rootfs.path = dir:{rootfs}")
    return "".join(f"{line}\n" for line in lines)


def id_map(config: Config) -> tuple[list[str], int, int]:
    """Return the map's lines, and the node's uid and gid of the guest's root.

    Custom lines replace the default map, and count whether or not the container is unprivileged; only lines for u and g are read, and without one that
    begins at 0 the root's id stays 0 (PVE::LXC, parse_id_maps).
    """
    lines: list[str] = []
    root = {"u": 0, "g": 0}
    for key, text in config.current.raw:
        if key not in ("lxc.idmap", "lxc.id_map"):
            continue
        match = re.match(r"^([ug])\s+(\d+)\s+(\d+)\s+(\d+)\s*$", text)
        if not match:
            raise failed(f"failed to parse idmap: {text}")
        lines.append(text)
        if int(match[2]) == 0:
            root[match[1]] = int(match[3])
    if not lines and normalise.flag(config.current.values, "unprivileged"):
        return [f"{kind} 0 {SHIFT} 65536" for kind in "ug"], SHIFT, SHIFT
    return lines, root["u"], root["g"]


def root_ids(config: Config) -> tuple[int, int]:
    """Return the node's uid and gid of the guest's root."""
    _lines, uid, gid = id_map(config)
    return uid, gid


def _base(vmid: str, config: Config) -> list[str]:
    values = config.current.values
    custom = any(key == "lxc.idmap" for key, _text in config.current.raw)
    unprivileged = normalise.flag(values, "unprivileged") or custom
    features = normalise.parts_of("features", values["features"]) if values.get("features") else {}
    lines = [
        "# Written by the kpro stand-in for Proxmox from /etc/pve; changes are lost.",
        f"lxc.arch = {values['arch']}",
        f"lxc.include = {INCLUDES}/common.conf",
    ]
    if unprivileged:
        lines += [
            f"lxc.include = {INCLUDES}/userns.conf",
            *([] if custom else [f"lxc.idmap = {line}" for line in id_map(config)[0]]),
            # Proxmox's own include resets the device list to allow everything; node owner and mode decide there.
            "lxc.cgroup2.devices.allow = a",
        ]
    if features.get("nesting") == "1":
        lines.append(f"lxc.include = {INCLUDES}/nesting.conf")
    sysfs = "mixed" if unprivileged and features.get("force_rw_sys") != "1" else "rw"
    lines += [
        "lxc.mount.auto =",
        f"lxc.mount.auto = cgroup:rw:force proc:mixed sys:{sysfs}",
        "lxc.apparmor.profile = unconfined",
        "lxc.monitor.unshare = 1",
        f"lxc.tty.max = {values.get('tty', '2')}",
        "lxc.environment = TERM=linux",
        f"lxc.uts.name = {values.get('hostname', f'CT{vmid}')}",
        f"lxc.hook.post-stop = {POST_STOP}",
        "lxc.signal.halt = SIGRTMIN+3",
    ]
    return lines


def _network(node: Node, vmid: str, values: Values) -> list[str]:
    lines: list[str] = []
    for index, key in enumerate(devices.keys(values, "net")):
        parts = normalise.parts_of(key, values[key])
        number = key[len("net") :]
        bridge = parts.get("bridge", "")
        if not bridge or not node.path(f"/sys/class/net/{bridge}").exists():
            raise failed(f"bridge '{bridge}' does not exist")
        lines += [
            f"lxc.net.{index}.type = veth",
            f"lxc.net.{index}.veth.pair = veth{vmid}i{number}",
            f"lxc.net.{index}.hwaddr = {parts['hwaddr']}",
            f"lxc.net.{index}.name = {parts['name']}",
            f"lxc.net.{index}.link = {bridge}",
        ]
        if parts.get("link_down") != "1":
            lines.append(f"lxc.net.{index}.flags = up")
        if "mtu" in parts:
            lines.append(f"lxc.net.{index}.mtu = {parts['mtu']}")
    return lines or ["lxc.net.0.type = empty"]


def _devices(node: Node, vmid: str, values: Values) -> list[str]:
    lines = []
    folder = passthrough_dir(node, vmid)
    for device in devices.all_of(node, values):
        rule = f"{device.kind} {device.major}:{device.minor}"
        if device.deny_write:
            lines.append(f"lxc.cgroup2.devices.deny = {rule} w")
        lines.append(f"lxc.cgroup2.devices.allow = {rule} {'r' if device.deny_write else 'rw'}")
        inside = device.path.lstrip("/")
        lines.append(f"lxc.mount.entry = {escape(f'{folder}/{inside}')} {escape(inside)} none bind,create=file 0 0")
    return lines


def nameservers(values: Values) -> list[str]:
    """Return the name servers that the container was given."""
    return split_list(values.get("nameserver", ""))
