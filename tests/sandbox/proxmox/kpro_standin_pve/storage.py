# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Storages of the node: what /etc/pve/storage.cfg declares, volumes as plain folders, templates as files.

Labelled stand-in: a volume is always a folder, whatever the storage's type says; no file system is made, no quota held.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .errors import bad_parameters, failed
from .formats import CONTENT_TYPES
from .node import Node

ARCHIVES = {".tar.zst": "tzst", ".tar.gz": "tgz", ".tar.xz": "txz", ".tar.bz2": "tbz2"}
GIB = 1024**3
# What Proxmox takes for granted when storage.cfg does not declare "local".
UNDECLARED_LOCAL = {
    "path": "/var/lib/vz", "content": "rootdir,iso,images,backup,snippets,vztmpl", "priority": "0",
    "prune-backups": "keep-all=1",
}  # fmt: skip
SIZE_FILE = ".kpro-standin-size"


@dataclass(frozen=True)
class Storage:
    """One entry of storage.cfg."""

    name: str
    kind: str
    options: dict[str, str]

    @property
    def contents(self) -> tuple[str, ...]:
        """Return the content types it may hold."""
        return tuple(part for part in self.options.get("content", "").split(",") if part)

    @property
    def folder(self) -> str:
        """Return the folder that stands for the storage."""
        return self.options.get("path") or "/" + self.options.get("pool", self.name)

    @property
    def is_enabled(self) -> bool:
        """Tell whether it is in use."""
        return "disable" not in self.options

    def is_on(self, name: str) -> bool:
        """Tell whether the node of this name has it (``nodes`` in storage.cfg; absent means all)."""
        return name in self.options.get("nodes", name).split(",")


@dataclass(frozen=True)
class Volume:
    """One volume or file of a storage; sizes in bytes."""

    volid: str
    content: str
    format: str
    size: int
    ctime: int
    vmid: int | None = None


def storages(node: Node) -> dict[str, Storage]:
    """Return the declared storages by name, in the file's order."""
    try:
        text = node.path("/etc/pve/storage.cfg").read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    found: dict[str, Storage] = {}
    options: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if head := re.fullmatch(r"([a-z]+):\s*(\S+)\s*", line):
            options = {}
            found[head[2]] = Storage(head[2], head[1], options)
        else:
            key, _blank, value = line.strip().partition(" ")
            options[key] = value.strip()
    found = {name: entry for name, entry in found.items() if entry.is_on(node.name)}
    if "local" not in found:
        found["local"] = Storage("local", "dir", dict(UNDECLARED_LOCAL))
    return found


def get(node: Node, name: str) -> Storage:
    """Return one storage; an unknown one is Proxmox's 500."""
    found = storages(node).get(name)
    if found is None:
        raise failed(f"storage '{name}' does not exist")
    return found


def parse_volid(volid: str) -> tuple[str, str]:
    """Return (storage, volume name)."""
    match = re.fullmatch(r"([a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]):(.+)", volid)
    if not match:
        raise failed(f"unable to parse volume ID '{volid}'")
    return match[1], match[2]


def volume_path(node: Node, volid: str) -> str:
    """Return the path of a volume or file on the node, whether it exists or not."""
    name, volume = parse_volid(volid)
    storage = get(node, name)
    content, slash, rest = volume.partition("/")
    if slash and content == "vztmpl":
        return f"{storage.folder}/template/cache/{rest}"
    if slash and content == "iso":
        return f"{storage.folder}/template/iso/{rest}"
    if slash and content in ("snippets", "backup"):
        return f"{storage.folder}/{'dump' if content == 'backup' else content}/{rest}"
    if storage.kind == "dir":
        if not slash:
            raise failed(f"unable to parse directory volume name '{volume}'")
        return f"{storage.folder}/images/{volume}"
    return f"{storage.folder}/{volume}"


def content_of(volid: str) -> str:
    """Return the content type that a volume id names."""
    head = parse_volid(volid)[1].partition("/")[0]
    return head if head in ("vztmpl", "iso", "snippets", "backup") else "rootdir"


def allocate(node: Node, storage: Storage, vmid: str, size_bytes: int) -> str:
    """Make an empty volume for a container and return its volume id."""
    form = ("images/{0}/vm-{0}-disk-{1}.raw", "{0}/vm-{0}-disk-{1}.raw") if storage.kind == "dir" else (
        "subvol-{0}-disk-{1}", "subvol-{0}-disk-{1}")  # fmt: skip
    number = 0
    while (folder := node.path(f"{storage.folder}/{form[0].format(vmid, number)}")).exists():
        number += 1
    folder.mkdir(parents=True, mode=0o755)
    (folder.parent / f"{SIZE_FILE}-{folder.name}").write_text(f"{size_bytes}\n", encoding="ascii")
    return f"{storage.name}:{form[1].format(vmid, number)}"


def free(node: Node, volid: str) -> None:
    """Remove a volume; one that is gone already is no error, one that is mounted is busy."""
    folder = node.path(volume_path(node, volid))
    if folder.exists() and _is_mounted(node, volid):
        raise failed(f"zfs error: cannot destroy '{volid.replace(':', '/')}': dataset is busy")
    node.pause("free_s")
    shutil.rmtree(folder, ignore_errors=True)
    (folder.parent / f"{SIZE_FILE}-{folder.name}").unlink(missing_ok=True)
    if folder.parent.parent.name == "images":
        # Another volume of the container may still be there.
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def size_text(size_bytes: int) -> str:
    """Return a size as Proxmox writes it (16G, 512M)."""
    for unit, factor in (("T", 1024**4), ("G", GIB), ("M", 1024**2), ("K", 1024)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def usage(node: Node, storage: Storage) -> tuple[int, int, int]:
    """Return (total, used, available) bytes of the file system below the storage."""
    folder = node.path(storage.folder)
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    total, available = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return total, total - found.f_bfree * found.f_frsize, available


def status(node: Node, storage: Storage) -> dict[str, object]:
    """Return one row of GET /nodes/{node}/storage."""
    total, used, available = usage(node, storage)
    return {
        "storage": storage.name, "type": storage.kind, "content": ",".join(storage.contents), "active": 1,
        "enabled": int(storage.is_enabled), "shared": int("shared" in storage.options), "total": total, "used": used,
        "avail": available, "used_fraction": round(used / total, 15) if total else 0,
    }  # fmt: skip


def _format_of(name: str) -> str | None:
    return next((form for ending, form in ARCHIVES.items() if name.endswith(ending)), None)


def _templates(node: Node, storage: Storage) -> list[Volume]:
    folder = node.path(f"{storage.folder}/template/cache")
    if "vztmpl" not in storage.contents or not folder.is_dir():
        return []
    return [
        Volume(f"{storage.name}:vztmpl/{file.name}", "vztmpl", form, file.stat().st_size, int(file.stat().st_ctime))
        for file in sorted(folder.iterdir())
        if (form := _format_of(file.name))
    ]


def _disks(node: Node, storage: Storage) -> list[Volume]:
    if "rootdir" not in storage.contents:
        return []
    is_dir = storage.kind == "dir"
    base = node.path(f"{storage.folder}/images" if is_dir else storage.folder)
    found = []
    for folder in sorted(base.glob("*/vm-*-disk-*" if is_dir else "subvol-*-disk-*")):
        match = re.match(r"(?:vm|subvol)-(\d+)-disk-", folder.name)
        if not match:
            continue
        name = f"{folder.parent.name}/{folder.name}" if is_dir else folder.name
        size = folder.parent / f"{SIZE_FILE}-{folder.name}"
        size_bytes = int(size.read_text(encoding="ascii")) if size.exists() else 0
        form = "raw" if is_dir else "subvol"
        found.append(Volume(f"{storage.name}:{name}", "rootdir", form, size_bytes, int(folder.stat().st_ctime), int(match[1])))
    return found


def contents(node: Node, storage: Storage, content: str | None, vmid: str | None) -> list[Volume]:
    """Return what a storage holds, narrowed by content type and container."""
    if content is not None and content not in CONTENT_TYPES:
        raise bad_parameters({"content": f"invalid format - invalid content type '{content}'\n"})
    found = _disks(node, storage) + _templates(node, storage)
    return [volume for volume in found if (content is None or volume.content == content) and (vmid is None or str(volume.vmid) == vmid)]


def _is_mounted(node: Node, volid: str) -> bool:
    """Tell whether a creation that was cut off left the volume mounted (a running container has mounts of its own)."""
    match = re.search(r"(?:vm|subvol)-(\d+)-disk-", volid)
    target = str(node.path(f"/var/lib/lxc/{match[1]}/rootfs")) if match else ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return any(line.split()[4] == target for line in file)


def rootfs_folder(node: Node, rootfs: str) -> Path:
    """Return the folder of a ``rootfs`` value (volume id or absolute path, options after the comma ignored)."""
    first = rootfs.split(",")[0].removeprefix("volume=")
    return node.path(first if first.startswith("/") else volume_path(node, first))
