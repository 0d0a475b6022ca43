# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls that look at containers and tasks: lists, state, addresses, cluster-wide numbers, task logs."""

from __future__ import annotations

import json
import os
from typing import Any

from . import cluster, normalise, storage, store, tasks
from .errors import ApiError, bad_parameters
from .node import Node
from .node_api import cluster_nodes, node_status
from .routes import Listed, Request, route

MIB = 1024 * 1024
PRESSURE = ("cpufull", "cpusome", "iofull", "iosome", "memoryfull", "memorysome")
FIRST_ID, LAST_ID = 100, 1_000_000


def summary(node: Node, vmid: str) -> dict[str, Any]:
    """Return a container's state and sizes; a stopped one has zeros for what is measured."""
    values = store.load(node, vmid).current.values
    running = node.driver.is_running(node, vmid)
    size_bytes = _rootfs_bytes(values.get("rootfs", ""))
    row: dict[str, Any] = {
        "vmid": int(vmid), "type": "lxc", "status": "running" if running else "stopped",
        "name": values.get("hostname", f"CT{vmid}"), "cpus": int(values.get("cores", os.cpu_count() or 1)),
        "maxmem": int(values.get("memory", 512)) * MIB, "maxswap": int(values.get("swap", 0)) * MIB,
        "maxdisk": size_bytes, "disk": 0, "mem": 0, "swap": 0, "cpu": 0, "uptime": 0,
        "netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0,
    }  # fmt: skip
    for key in ("lock", "tags", "template"):
        if key in values:
            row[key] = normalise.typed(key, values[key])
    if running:
        row |= _measured(node, vmid, values)
    return row


def _rootfs_bytes(rootfs: str) -> int:
    parts = dict(part.split("=", 1) for part in rootfs.split(",") if "=" in part)
    size = parts.get("size", "0")
    factor = {"K": 1024, "M": MIB, "G": 1024 * MIB, "T": 1024 * 1024 * MIB}.get(size[-1:], 1)
    return int(float(size.rstrip("KMGT") or 0) * factor)


def _measured(node: Node, vmid: str, values: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {f"pressure{name}": "0.00" for name in PRESSURE}
    pid = node.driver.init_pid(node, vmid)
    if pid is None:
        return found
    found["pid"] = pid
    with open("/proc/uptime", encoding="ascii") as file:
        up_s = float(file.read().split()[0])
    ticks = tasks.process_start_ticks(pid)
    found["uptime"] = max(0, int(up_s - ticks / os.sysconf("SC_CLK_TCK"))) if ticks else 0
    folder = storage.rootfs_folder(node, values["rootfs"])
    if folder.is_dir():
        space = os.statvfs(folder)
        found["disk"] = (space.f_blocks - space.f_bfree) * space.f_frsize
        # Of a running container the file system's size, not the declared one.
        found["maxdisk"] = space.f_blocks * space.f_frsize
    return found


@route("GET", "/nodes/{node}/lxc")
def get_containers(request: Request) -> list[dict[str, Any]]:
    """Return this node's containers."""
    return [summary(request.node, vmid) for vmid in store.container_ids(request.node)]


@route("GET", "/nodes/{node}/lxc/{vmid}/status/current")
def get_current(request: Request) -> dict[str, Any]:
    """Return one container's state."""
    return {**summary(request.node, request["vmid"]), "ha": {"managed": 0}}


@route("GET", "/nodes/{node}/lxc/{vmid}/interfaces")
def get_interfaces(request: Request) -> list[dict[str, Any]] | None:
    """Return a running container's addresses; None for one that is stopped or absent."""
    node, vmid = request.node, request["vmid"]
    if not node.driver.is_running(node, vmid):
        return None
    import subprocess

    pid = node.driver.init_pid(node, vmid)
    argv = ["nsenter", "-t", str(pid), "-n", "--", "ip", "-j", "address", "show"]
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [_interface(link) for link in json.loads(answer.stdout or "[]")]


def _interface(link: dict[str, Any]) -> dict[str, Any]:
    mac = link.get("address", "")
    row: dict[str, Any] = {"name": link["ifname"], "hwaddr": mac, "hardware-address": mac, "ip-addresses": []}
    for address in link.get("addr_info", []):
        kind = "inet" if address["family"] == "inet" else "inet6"
        row.setdefault(kind, f"{address['local']}/{address['prefixlen']}")
        row["ip-addresses"].append({"ip-address": address["local"], "ip-address-type": kind, "prefix": str(address["prefixlen"])})
    return row


@route("GET", "/cluster/nextid")
def next_id(request: Request) -> str:
    """Return the lowest free number as text, or the one asked for when it is free."""
    node, wanted = request.node, request.get("vmid")
    if wanted is not None:
        if store.owner_of(node, wanted):
            raise bad_parameters({"vmid": f"VM {wanted} already exists"})
        return wanted
    taken = {int(path.stem) for path in node.path("/etc/pve/nodes").glob("*/*/[0-9]*.conf")}
    return str(next(number for number in range(FIRST_ID, LAST_ID) if number not in taken))


@route("GET", "/cluster/resources")
def get_resources(request: Request) -> list[dict[str, Any]]:
    """Return guests, storages and nodes of the whole cluster."""
    node, kind = request.node, request.get("type")
    rows: list[dict[str, Any]] = []
    if kind in (None, "vm"):
        rows += _guest_rows(node)
    if kind in (None, "storage"):
        rows += [
            {"id": f"storage/{node.name}/{name}", "node": node.name, "storage": name, "type": "storage",
             "status": "available", "plugintype": found.kind, "content": ",".join(found.contents), "shared": 0}
            for name, found in storage.storages(node).items()
        ]  # fmt: skip
    if kind in (None, "node"):
        rows += [{"id": f"node/{name}", "node": name, "type": "node", "status": node_status(node, name)} for name in cluster_nodes(node)]
    return rows


def _guest_rows(node: Node) -> list[dict[str, Any]]:
    """Return all guests. What another member knows of its own is asked there; one that does not answer leaves "unknown"."""
    files = _guest_files(node)
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for name in {path.parent.parent.name for path in files if path.parent.name == "lxc"}:
        for row in _summaries(node, name):
            known[name, str(row["vmid"])] = row
    return [_guest_row(path.parent.parent.name, path.stem, path.parent.name, known) for path in files]


def _summaries(node: Node, name: str) -> list[dict[str, Any]]:
    if name == node.name:
        return [summary(node, vmid) for vmid in store.container_ids(node)]
    member = cluster.members(node).get(name)
    if member is None or not cluster.is_online(node, member):
        return []
    try:
        rows: list[dict[str, Any]] = cluster.proxy(member, "GET", f"/nodes/{name}/lxc", {}, None)
    except ApiError:
        return []
    return rows


def _guest_files(node: Node) -> list[Any]:
    found = node.path("/etc/pve/nodes").glob("*/*/[0-9]*.conf")
    return sorted((path for path in found if path.parent.name in ("lxc", "qemu-server")), key=lambda path: path.stem)


def _guest_row(owner: str, vmid: str, folder: str, known: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    kind = "lxc" if folder == "lxc" else "qemu"
    row: dict[str, Any] = {"id": f"{kind}/{vmid}", "vmid": int(vmid), "type": kind, "node": owner, "status": "unknown"}
    found = known.get((owner, vmid)) if kind == "lxc" else None
    if found is not None:
        measured = ("cpu", "mem", "maxmem", "disk", "maxdisk", "netin", "netout", "diskread", "diskwrite", "uptime")
        row |= {key: found[key] for key in ("status", "name", "tags", "lock", *measured) if key in found}
        row["maxcpu"] = found["cpus"]
        row["template"] = int(found.get("template", 0))
    return row


@route("GET", "/cluster/status")
def get_cluster_status(request: Request) -> list[dict[str, Any]]:
    """Return the nodes as cluster members (a lone node has no cluster row)."""
    node = request.node
    if members := cluster.members(node):
        return _cluster_rows(node, members)
    return [
        {"id": f"node/{name}", "name": name, "type": "node", "nodeid": 0, "level": "", "local": int(name == node.name),
         "online": int(name == node.name), "ip": "127.0.0.1"}
        for name in cluster_nodes(node)
    ]  # fmt: skip


def _cluster_rows(node: Node, members: dict[str, cluster.Member]) -> list[dict[str, Any]]:
    count, quorate = len(members), int(cluster.is_quorate(node))
    rows: list[dict[str, Any]] = [{"id": "cluster", "name": "kpro-standin", "type": "cluster", "nodes": count, "quorate": quorate, "version": count}]
    for name, member in members.items():
        rows.append({
            "id": f"node/{name}", "name": name, "type": "node", "nodeid": member.number, "level": "", "local": int(name == node.name),
            "online": int(cluster.is_online(node, member)), "ip": member.address,
        })  # fmt: skip
    return rows


@route("GET", "/nodes/{node}/tasks")
def get_tasks(request: Request) -> Any:
    """Return finished tasks (by default), running ones or both, newest first."""
    source, vmid = request.get("source") or "archive", request.get("vmid")
    rows = tasks.active(request.node, vmid) if source in ("active", "all") else []
    if source in ("archive", "all"):
        rows += tasks.listing(request.node, vmid, request.get("typefilter"), request.flag("errors"))
    return Listed(rows[: int(request.get("limit") or 50)], len(rows))


@route("GET", "/nodes/{node}/tasks/{upid}/status")
def get_task_status(request: Request) -> dict[str, Any]:
    """Return whether a task runs and how it ended."""
    return tasks.status(request.node, request["upid"])


@route("GET", "/nodes/{node}/tasks/{upid}/log")
def get_task_log(request: Request) -> Any:
    """Return lines of a task's log; ``limit`` 0 means all."""
    limit = request.get("limit")
    rows, total = tasks.log(request.node, request["upid"], int(request.get("start") or 0), 50 if limit is None else int(limit))
    return Listed(rows, total)
