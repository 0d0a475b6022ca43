# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which folders of the node the configurations of guests and storages name. Pure."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._gpu.claims import read_guest
from .._linux.mount_table import unescaped, within

# Storages that are on a server by their nature (PVE::Storage::Plugin, ``shared`` without the flag), and where Proxmox mounts them.
SERVER_STORAGES = frozenset({"nfs", "cifs", "cephfs", "glusterfs"})
MOUNTED_AT = "/mnt/pve"
_LINE = re.compile(r"^([A-Za-z0-9_.\-]+)\s*[:=]\s*(.*?)\s*$")
_PATH = re.compile(r"""(?:^|[\s,;:="'])(/[^\s,;:="']+)""")
_LAYERS = ("lowerdir", "upperdir=", "workdir=", "datadir")
_FILES = ("lxc.mount.fstab", "lxc.include")


@dataclasses.dataclass(frozen=True)
class Reference:
    """A path of the node that a guest's configuration names.

    :param guest: in words, with its name.
    :param key: the configuration key, with the snapshot whose configuration it is in.
    """

    guest: str
    key: str
    path: str


def references(kind: str, vmid: int, text: str, folders: t.Mapping[str, str], more: t.Mapping[str, str] | None = None) -> list[Reference]:
    """Return every path that a guest's configuration file names, in whatever section (pending, snapshots).

    :param kind: ``container`` or ``VM``.
    :param folders: paths by the name of their directory mapping (virtiofs).
    :param more: content of the files that raw lines include, by path.
    """
    name = read_guest(vmid, "VM" if kind.endswith("VM") else "container", text).name
    guest = f"{kind} {vmid}{f' ({name})' if name else ''}"
    section, found = "", []
    for line in text.split("\n"):
        if line.startswith("["):
            section = line.strip().strip("[]")
            continue
        for key, path in _paths_of(line, folders, more or {}):
            found.append(Reference(guest, f"{key}{f' in section {section}' if section else ''}", path))
    return found


def included_files(text: str) -> list[str]:
    """Return the files that raw lines of a container's configuration include."""
    lines = (_LINE.match(line) for line in text.split("\n"))
    return [match[2] for match in lines if match and match[1] in _FILES and match[2].startswith("/")]


def directory_mappings(text: str, node: str) -> dict[str, str]:
    """Return a node's folders by the name of their mapping (``/etc/pve/mapping/directory.cfg``)."""
    found = {}
    for name, rows in _sections(text):
        for key, value in rows:
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            if key == "map" and parts.get("node") == node and parts.get("path"):
                found[name] = parts["path"]
    return found


def shared_storage(text: str, path: str) -> str:
    """Return the storage of Proxmox that is shared between nodes and holds a path, empty if there is none.

    :param text: ``/etc/pve/storage.cfg``.
    """
    for head, rows in _sections(text):
        kind, _colon, name = head.partition(":")
        values = dict(rows)
        folder = values.get("path") or (f"{MOUNTED_AT}/{name.strip()}" if kind.strip() in SERVER_STORAGES else "")
        is_shared = kind.strip() in SERVER_STORAGES or values.get("shared", "0").lower() in ("1", "on", "yes", "true")
        if folder and is_shared and within(path, folder.rstrip("/") or "/"):
            return name.strip()
    return ""


def exported_paths(text: str) -> list[str]:
    """Return the folders that an NFS server gives away (``/var/lib/nfs/etab``)."""
    return [unescaped(line.split()[0]) for line in text.split("\n") if line.startswith("/")]


def _paths_of(line: str, folders: t.Mapping[str, str], more: t.Mapping[str, str]) -> list[tuple[str, str]]:
    match = _LINE.match(line)
    if not match or line.startswith("#"):
        return []
    key, value = match[1], match[2]
    if key == "lxc.mount.entry":
        return [(key, path) for path in _paths_of_mount(value)]
    if key in _FILES:
        return [(f"{key} {value}", path) for row in more.get(value, "").split("\n") for path in _paths_of_row(row, folders)]
    if re.match(r"^virtiofs\d+$", key):
        name = next((part.removeprefix("dirid=") for part in value.split(",") if "=" not in part or part.startswith("dirid=")), "")
        return [(key, folders[name])] if name in folders else []
    if re.match(r"^(mp\d+|rootfs|unused\d+)$", key):
        # mp= is a path inside the guest.
        sources = (part.removeprefix("volume=") for part in value.split(","))
        return [(key, source) for source in sources if source.startswith("/")]
    return [(key, path) for path in _PATH.findall(value)]


def _paths_of_mount(fields: str) -> list[str]:
    """Return the node's paths in the fields of a mount: its source, and the layers of an overlay. Its target is the guest's."""
    words = fields.split()
    options = words[3].split(",") if len(words) > 3 else []
    layers = [part for option in options if option.startswith(_LAYERS) for part in re.split(r"(?<!\\):", option.partition("=")[2])]
    return [unescaped(path.replace("\\:", ":")) for path in (*words[:1], *layers) if path.startswith("/")]


def _paths_of_row(row: str, folders: t.Mapping[str, str]) -> list[str]:
    """Return the paths of a line of an fstab or of another LXC configuration."""
    if not _LINE.match(row.strip()) or row.lstrip().startswith("/"):
        return _paths_of_mount(row)
    return [path for _key, path in _paths_of(row.strip(), folders, {})]


def _sections(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the sections of one of Proxmox's configuration files: a head at the beginning of a line, indented rows below."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            found.append((line.strip(), []))
        elif found:
            key, _blank, value = line.strip().partition(" ")
            found[-1][1].append((key, value.strip()))
    return found
