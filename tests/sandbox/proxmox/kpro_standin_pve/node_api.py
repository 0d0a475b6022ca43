# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls about the node: version, status, storages, templates, PCI devices, virtual machines' files."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from . import cluster, config_file, storage, store
from .errors import bad_parameters, failed
from .node import REPOID, Node
from .routes import Request, route
from .tasks import Outcome, Task

GPU_STATE = "/etc/kpro-standin/gpu.json"
TEMPLATE_INDEX = "/var/lib/pve-manager/apl-info/kpro-standin.json"
TEMPLATE_OFFER = "/etc/kpro-standin/templates.json"


def version(node: Node) -> dict[str, str]:
    """Return what GET /version says."""
    return {"version": node.version, "release": node.release, "repoid": REPOID}


@route("GET", "/version")
@route("GET", "/nodes/{node}/version")
def get_version(request: Request) -> dict[str, str]:
    """Return version, release and build of the manager."""
    return version(request.node)


@route("GET", "/nodes")
def get_nodes(request: Request) -> list[dict[str, Any]]:
    """Return the nodes of the cluster: this one, and those whose configuration folders exist."""
    node = request.node
    rows = []
    for name in cluster_nodes(node):
        rows.append({"id": f"node/{name}", "node": name, "type": "node", "status": node_status(node, name), "ssl_fingerprint": ""})
    return rows


def cluster_nodes(node: Node) -> list[str]:
    """Return the names of all nodes."""
    folder = node.path("/etc/pve/nodes")
    found = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    return sorted(found | {node.name})


def node_status(node: Node, name: str) -> str:
    """Return "online" or "offline"; a folder that belongs to no member is a node that went long ago."""
    member = cluster.members(node).get(name)
    return "online" if name == node.name or (member is not None and cluster.is_online(node, member)) else "offline"


@route("GET", "/nodes/{node}/status")
def get_status(request: Request) -> dict[str, Any]:
    """Return memory, load, kernel and space of the node."""
    node = request.node
    memory = _memory()
    kernel = os.uname()
    total, used, available = storage.usage(node, storage.Storage("root", "dir", {"path": "/"}))
    uptime_s = int(float(_read("/proc/uptime").split()[0]))
    return {
        "pveversion": f"pve-manager/{node.version}/{REPOID}",
        "kversion": f"Linux {kernel.release} {kernel.version}",
        "current-kernel": {
            "sysname": kernel.sysname, "release": kernel.release, "version": kernel.version, "machine": kernel.machine,
        },
        "boot-info": {"mode": "legacy-bios"},
        "uptime": uptime_s, "loadavg": _read("/proc/loadavg").split()[:3], "cpu": 0, "wait": 0, "idle": 0,
        "memory": memory, "swap": {"total": 0, "used": 0, "free": 0}, "ksm": {"shared": 0},
        "rootfs": {"total": total, "used": used, "avail": available, "free": total - used},
        "cpuinfo": {"cpus": os.cpu_count(), "cores": os.cpu_count(), "sockets": 1, "model": _cpu_model(),
                    "user_hz": os.sysconf("SC_CLK_TCK")},
    }  # fmt: skip


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1] if match else ""


def _memory() -> dict[str, int]:
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)}
    total, free, available = (kib[name] * 1024 for name in ("MemTotal", "MemFree", "MemAvailable"))
    return {"total": total, "free": free, "available": available, "used": total - available}


@route("GET", "/nodes/{node}/storage")
def get_storages(request: Request) -> list[dict[str, Any]]:
    """Return the storages of the node with their space."""
    node, content, name = request.node, request.get("content"), request.get("storage")
    if name is not None and name not in storage.storages(node):
        raise bad_parameters({"storage": "No such storage."})
    wanted = set(content.split(",")) if content else None
    return [
        storage.status(node, found)
        for found in storage.storages(node).values()
        if (name is None or found.name == name) and (wanted is None or wanted & set(found.contents)) and (found.is_enabled or not request.flag("enabled"))
    ]


@route("GET", "/nodes/{node}/storage/{storage}/status")
def get_storage_status(request: Request) -> dict[str, Any]:
    """Return one storage's space."""
    found = storage.storages(request.node).get(request["storage"])
    if found is None:
        raise bad_parameters({"storage": "No such storage."})
    hidden = ("storage", "used_fraction")
    return {key: value for key, value in storage.status(request.node, found).items() if key not in hidden}


@route("GET", "/nodes/{node}/storage/{storage}/content")
def get_content(request: Request) -> list[dict[str, Any]]:
    """Return volumes and templates of a storage."""
    node = request.node
    rows = []
    for volume in storage.contents(node, storage.get(node, request["storage"]), request.get("content"), request.get("vmid")):
        row: dict[str, Any] = {
            "volid": volume.volid, "content": volume.content, "format": volume.format, "size": volume.size,
            "ctime": volume.ctime,
        }  # fmt: skip
        if volume.vmid is not None:
            row |= {"vmid": volume.vmid, "parent": None, "used": volume.size}
        rows.append(row)
    return rows


@route("GET", "/nodes/{node}/storage/{storage}/content/{volume}")
def get_volume(request: Request) -> dict[str, Any]:
    """Return one file's path and size."""
    volid = request["volume"]
    if ":" not in volid:
        volid = f"{request['storage']}:{volid}"
    path = storage.volume_path(request.node, volid)
    try:
        found = request.node.path(path).stat()
    except OSError:
        raise failed(f"volume '{volid}' does not exist") from None
    # Proxmox asks qemu-img, which counts whole sectors and knows no archive formats.
    return {"path": path, "size": -(-found.st_size // 512) * 512, "used": found.st_blocks * 512, "format": "raw"}


@route("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}")
def delete_volume(request: Request) -> Outcome:
    """Remove a volume of a container; one that is mounted is busy."""
    volid = request["volume"]
    if ":" not in volid:
        volid = f"{request['storage']}:{volid}"
    if storage.content_of(volid) != "rootdir":
        raise failed("the stand-in frees volumes of containers only")

    def work(task: Task, at: Node) -> None:
        if not at.path(storage.volume_path(at, volid)).exists():
            raise failed(f"volume '{volid}' does not exist")
        storage.free(at, volid)
        task.log(f"Removed volume '{volid}'")

    return request.task("imgdel", work)


@route("GET", "/storage")
def get_storage_config(request: Request) -> list[dict[str, Any]]:
    """Return the storages as declared."""
    return [_declared(found) for found in storage.storages(request.node).values()]


@route("GET", "/storage/{storage}")
def get_one_storage_config(request: Request) -> dict[str, Any]:
    """Return one storage as declared."""
    return _declared(storage.get(request.node, request["storage"]))


def _declared(found: storage.Storage) -> dict[str, Any]:
    row: dict[str, Any] = {**found.options, "storage": found.name, "type": found.kind, "digest": "0" * 40}
    if "priority" in row:
        row["priority"] = int(row["priority"])
    return row


def template_index(node: Node) -> dict[str, dict[str, str]]:
    """Return the templates that can be fetched, by file name; the sandbox puts the index there, absent means none.

    Each has ``source`` (a file on the node that stands for the download), ``sha512sum`` and what ``pveam`` prints; ``seconds``, if
    it is there, says how long the download takes; it counts as it is now, so that a download can be made to end.
    """
    try:
        index: dict[str, dict[str, str]] = json.loads(node.path(TEMPLATE_INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return index


def update_template_index(node: Node) -> bool:
    """Take over the index that stands for the vendor's; return whether there is one."""
    offer, index = node.path(TEMPLATE_OFFER), node.path(TEMPLATE_INDEX)
    if not offer.is_file():
        return False
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(offer.read_bytes())
    return True


def tell_of_absent_index(node: Node) -> None:
    """Warn, as Proxmox does on standard error whenever it reads an index that was never fetched."""
    if not template_index(node):
        for host in ("download.proxmox.com", "releases.turnkeylinux.org"):
            node.notice(f"unable to open file '/var/lib/pve-manager/apl-info/{host}' - No such file or directory")


@route("GET", "/nodes/{node}/aplinfo")
def get_aplinfo(request: Request) -> list[dict[str, Any]]:
    """Return the templates that can be fetched."""
    tell_of_absent_index(request.node)
    return [
        {"template": name, **{key: text for key, text in entry.items() if key not in ("source", "seconds")}}
        for name, entry in sorted(template_index(request.node).items())
    ]


@route("POST", "/nodes/{node}/aplinfo")
def post_aplinfo(request: Request) -> Outcome:
    """Fetch a template and check its sum."""
    node, name = request.node, request["template"]
    tell_of_absent_index(node)
    entry = template_index(node).get(name)
    if entry is None:
        raise bad_parameters({"template": "no such template"})
    target = storage.volume_path(node, f"{request['storage']}:vztmpl/{name}")
    return request.task("download", lambda task, at: _fetch(at, name, target, task))


def _fetch(node: Node, name: str, target: str, task: Task) -> None:
    import hashlib
    import shutil

    entry = template_index(node)[name]
    source, final = node.path(entry["source"]), node.path(target)
    task.log(f"downloading {entry['source']} to {target}")
    if not source.is_file():
        raise failed(f"download failed - {entry['source']} not found")
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f"{final.name}.tmp_dwnl.{os.getpid()}")
    shutil.copyfile(source, part)
    second = 0
    while second < int(template_index(node).get(name, {}).get("seconds", 0)):
        second += 1
        task.log(f"{second:>6}K ........ ........ ........ ........  1% 1.00K")
        time.sleep(1)
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "sha512").hexdigest()
    if found != entry["sha512sum"]:
        part.unlink()
        raise failed(f"checksum mismatch: got '{found}' != expect '{entry['sha512sum']}'")
    part.rename(final)
    task.log(f"download of '{entry['source']}' to '{target}' finished")


@route("GET", "/nodes/{node}/hardware/pci")
def get_pci(request: Request) -> list[dict[str, Any]]:
    """Return the GPU stand-in's cards as PCI devices; Proxmox writes the numbers as text with 0x."""
    try:
        state = json.loads(request.node.path(GPU_STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    rows = []
    for gpu in state.get("gpus", []):
        if gpu.get("lost"):
            continue
        # NVML's form of the number: device before vendor.
        number = str(gpu.get("pci_id", "0x223010de")).removeprefix("0x")
        rows.append({
            "id": str(gpu["bus_id"]).lower()[-12:], "class": "0x030000", "vendor": f"0x{number[4:]}", "device": f"0x{number[:4]}",
            "vendor_name": "NVIDIA Corporation", "device_name": str(gpu["name"]), "iommugroup": -1,
        })  # fmt: skip
    return rows


@route("GET", "/nodes/{node}/qemu")
def get_machines(request: Request) -> list[dict[str, Any]]:
    """Return the virtual machines whose files exist; the stand-in runs none."""
    rows = []
    for vmid in store.machine_ids(request.node):
        values = _machine(request.node, vmid)
        name = values.get("name", f"VM {vmid}")
        rows.append({"vmid": int(vmid), "name": name, "status": "stopped", "cpus": 1, "mem": 0, "uptime": 0})
    return rows


@route("GET", "/nodes/{node}/qemu/{vmid}/config")
def get_machine_config(request: Request) -> dict[str, Any]:
    """Return a virtual machine's keys (a claimed GPU is in hostpci[n])."""
    return dict(_machine(request.node, request["vmid"]))


def _machine(node: Node, vmid: str) -> dict[str, str]:
    path = node.path(f"/etc/pve/nodes/{node.name}/qemu-server/{vmid}.conf")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise failed(f"Configuration file 'nodes/{node.name}/qemu-server/{vmid}.conf' does not exist") from None
    return config_file.parse(text, vmid).current.values


@route("GET", "/cluster/mapping/pci")
def get_pci_mappings(request: Request) -> list[dict[str, Any]]:
    """List the cluster's resource mappings of PCI devices with their entries of all nodes."""
    path = request.node.path("/etc/pve/mapping/pci.cfg")
    found: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        key, _blank, value = line.strip().partition(" ")
        if line.strip() and not line[0].isspace():
            found.append({"id": line.strip(), "map": []})
        elif key == "map" and found:
            found[-1]["map"].append(value)
        elif key and found:
            found[-1][key] = value
    return found
