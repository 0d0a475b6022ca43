# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to a store that is to be emptied: what lies there, who uses it, and the removal itself."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import typing as t

from .._container.declared import OWNER_TAG
from .._core.errors import KproError
from .._gpu.holders_edge import container_of_cgroup
from .._linux import mount_table
from .._linux.mount_table import overlap, place_of, within
from .._linux.safe_tree_edge import Folder
from .._model import manifest as manifests
from .._model.hub_protocol import MANIFEST_NAME
from .._model.manifest import Manifest, Stat
from .._pve.config import read_config_file, split_tags
from .._pve.guest_references import Reference, directory_mappings, exported_paths, included_files, references, shared_storage
from .models import Entry, Snapshot, check_manifest, shown, sorted_out

MOST_MANIFEST_BYTES = 64 << 20
MOST_TEXT_BYTES = 4 << 20
MOST_ENTRIES = 100_000
MOST_DEPTH = 32


def look_at_snapshot(store: Folder, name: str, repository: str, commit: str) -> Snapshot | None:
    """Return what of a snapshot is proven to be this one's; None if there is no such folder.

    :raises KproError: if something of this name is there and not proven to be it.
    """
    path = os.path.join(store.path, name)
    if store.look(name) is None:
        return None
    folder = store.enter(name)
    if folder is None:
        raise KproError(path, "it is no plain folder (a link, a file, or something is mounted on it)", "Nothing of it is removed. Look at it by hand")
    with folder:
        content = folder.read(MANIFEST_NAME, MOST_MANIFEST_BYTES)
        manifest = check_manifest(path, _manifest(content), repository, commit)
        found = folder.look(MANIFEST_NAME)
        entries = _entries(folder)
    if found is None:
        raise KproError(path, f"its {MANIFEST_NAME} has just gone", "Run again")
    return sorted_out(path, entries, manifest, _stat_of(found))


def remove_snapshot(store: Folder, snapshot: Snapshot) -> None:
    """Remove a snapshot's files, if they still are what was looked at, and then its empty folders."""
    name = os.path.basename(snapshot.path)
    with contextlib.ExitStack() as stack:
        top = store.enter(name)
        if top is None:
            return
        stack.enter_context(top)
        for path, known in snapshot.files:
            _remove_file(top, path, known)
        for path in snapshot.folders:
            _in_folder(top, os.path.dirname(path), lambda folder, path=path: folder.remove_if_empty(os.path.basename(path)))  # type: ignore[misc]
    store.remove_if_empty(name)


def numbers_in(store: Folder, snapshot: Snapshot) -> dict[tuple[int, int], str]:
    """Return device and inode of everything in a snapshot, with its path."""
    found: dict[tuple[int, int], str] = {}
    top = store.enter(os.path.basename(snapshot.path))
    if top is None:
        return found
    with top:
        found[top.number] = snapshot.path
        for path, _known in snapshot.files:
            status = _in_folder(top, os.path.dirname(path), lambda folder, path=path: folder.look(os.path.basename(path)))  # type: ignore[misc]
            if status:
                found[status.st_dev, status.st_ino] = f"{snapshot.path}/{shown(path)}"
    return found


class Users:
    """Who uses a folder of the node.

    :param root: where its file tree begins.
    """

    def __init__(self, node: str, root: str = "/") -> None:
        self._root = pathlib.Path(root)
        self._node = node
        self._own = mount_table.read_mounts(self._text("proc/self/mountinfo"))
        # Without these nobody would seem to use anything.
        if not self._own:
            raise KproError("/proc/self/mountinfo", "it cannot be read, so nothing tells who has the models mounted", "Nothing was removed. Mount /proc")
        if not (self._root / "etc/pve/nodes" / node).is_dir():
            reason = f"/etc/pve/nodes/{node} cannot be read, so nothing tells which guests use the models"
            raise KproError(f"Proxmox's configuration on {node}", reason, "Nothing was removed. See 'systemctl status pve-cluster' on the node")

    def mount_of(self, path: str) -> mount_table.Mount | None:
        """Return the mount that a path without links lies on."""
        return mount_table.mount_of(path, self._own)

    def shared_reason(self, path: str, declared: bool) -> str:
        """Return why other machines may use a path without links, empty if nothing says so."""
        mount = self.mount_of(path)
        if mount and mount.is_shared:
            return f"it lies on a file system of kind {mount.kind}"
        if storage := shared_storage(self._text("etc/pve/storage.cfg"), path):
            return f"it lies on the storage '{storage}', which Proxmox shares between nodes"
        return "the inventory says that every node has the same content there (shared)" if declared else ""

    def by_configuration(self, path: str, leaving: t.Collection[int], *, all_nodes: bool) -> list[str]:
        """Return who refers to a path without links, to something below it or to a folder that holds it.

        :param leaving: containers of this node that do not count, if they are ours.
        :param all_nodes: the guests of all nodes of the cluster see the path.
        """
        found = []
        for reference in self._references(leaving, all_nodes):
            if self._is_same(reference.path, path):
                found.append(f"{reference.guest} refers to {shown(reference.path)} ({reference.key})")
        exports = exported_paths(self._text("var/lib/nfs/etab"))
        found += [f"the node exports {shown(one)} by NFS" for one in exports if self._is_same(one, path)]
        return list(dict.fromkeys(found))

    def by_mount(self, path: str) -> list[str]:
        """Return who has a path without links mounted, or something below it or a folder that holds it."""
        place, covering = place_of(path, self._own), self.mount_of(path)
        if place is None or covering is None:
            return []
        found = [
            f"it is mounted on {shown(mount.point)} of the node"
            for mount in self._own
            if mount.number != covering.number and mount.root != "/" and overlap(mount.place, place) and not within(covering.point, mount.point)
        ]
        seen = {self._link("self", "ns/mnt")}
        for pid in self._pids():
            namespace = self._link(pid, "ns/mnt")
            if namespace in seen or not namespace:
                continue
            seen.add(namespace)
            rows = mount_table.read_mounts(self._text(f"proc/{pid}/mountinfo"))
            hits = [mount for mount in mount_table.foreign_mounts(rows, self._own) if overlap(mount.place, place)]
            found += [f"{self._words(pid)} has it mounted on {shown(hits[-1].point)}"] if hits else []
        return found

    def by_open_file(self, numbers: t.Mapping[tuple[int, int], str]) -> list[str]:
        """Return the processes that have one of these files or folders open or mapped, or work in it."""
        names = {os.path.basename(path) for path in numbers.values()}
        found = []
        for pid in self._pids():
            hit = next((numbers[number] for number in self._open_numbers(pid, names) if number in numbers), "")
            if hit and pid != str(os.getpid()):
                found.append(f"{self._words(pid)} has {hit} open")
        return found

    def _references(self, leaving: t.Collection[int], all_nodes: bool) -> list[Reference]:
        mappings = self._text("etc/pve/mapping/directory.cfg")
        found = []
        for folder, kind in (("lxc", "container"), ("qemu-server", "VM")):
            for path in sorted((self._root / "etc/pve/nodes").glob(f"*/{folder}/*.conf")):
                node = path.parent.parent.name
                if not path.stem.isdigit() or (node != self._node and not all_nodes):
                    continue
                content = self._text(str(path.relative_to(self._root)))
                own = node == self._node and kind == "container" and int(path.stem) in leaving
                if own and OWNER_TAG in split_tags(read_config_file(content).keys.get("tags", "")):
                    continue
                more = {name: self._text(name.lstrip("/")) for name in included_files(content)}
                where = kind if node == self._node else f"on {node}: {kind}"
                found += references(where, int(path.stem), content, directory_mappings(mappings, node), more)
        return found

    def _is_same(self, path: str, target: str) -> bool:
        plain = os.path.normpath(path)
        if within(plain, target) or within(target, plain):
            return True
        place = place_of(target, self._own)
        mount = mount_table.mount_of(plain, self._own)
        # A server that does not answer must not hold this up: there, the path is taken as it is written.
        real = plain if mount is None or mount.is_shared else os.path.realpath(plain)
        other = place_of(real, self._own)
        return bool(place and other and overlap(place, other)) or within(real, target) or within(target, real)

    def _pids(self) -> list[str]:
        return sorted((name for name in os.listdir(self._root / "proc") if name.isdigit()), key=int)

    def _open_numbers(self, pid: str, names: t.Collection[str]) -> t.Iterator[tuple[int, int]]:
        places = [f"proc/{pid}/{name}" for name in ("cwd", "root")]
        for folder in ("fd", "map_files"):
            with contextlib.suppress(OSError):
                places += [f"proc/{pid}/{folder}/{name}" for name in os.listdir(self._root / f"proc/{pid}/{folder}")]
        for place in places:
            with contextlib.suppress(OSError):
                # Only what has the right name is looked at: a look at a file of a silent server does not end.
                if os.path.basename(os.readlink(self._root / place)).removesuffix(" (deleted)") in names:
                    status = os.stat(self._root / place)
                    yield status.st_dev, status.st_ino

    def _words(self, pid: str) -> str:
        vmid = container_of_cgroup(self._text(f"proc/{pid}/cgroup"))
        name = shown(self._text(f"proc/{pid}/comm").strip()) or "a process"
        return f"running container {vmid} ({name}, pid {pid})" if vmid else f"{name} (pid {pid})"

    def _link(self, pid: str, name: str) -> str:
        with contextlib.suppress(OSError):
            return os.readlink(self._root / "proc" / pid / name)
        return ""

    def _text(self, path: str) -> str:
        """Return a text of the node, empty if there is none; only regular files (and those of /proc) of a fair size are read."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            with open(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return file.read(MOST_TEXT_BYTES).decode("utf-8", "surrogateescape")
        return ""


def _manifest(content: bytes | None) -> Manifest | None:
    return None if content is None else manifests.from_text(content.decode("utf-8", "replace"))


def _stat_of(found: os.stat_result) -> Stat:
    return Stat(found.st_size, found.st_mtime_ns)


def _entries(top: Folder) -> list[Entry]:
    """Return everything in a folder, at whatever depth; a folder on which something is mounted is no folder of it."""
    found: list[Entry] = []

    def walk(folder: Folder, before: str, depth: int) -> None:
        for name in folder.names():
            path = f"{before}{name}"
            status = folder.look(name)
            inner = folder.enter(name) if status and stat.S_ISDIR(status.st_mode) and depth < MOST_DEPTH else None
            if inner:
                with inner:
                    found.append(Entry(path, is_folder=True))
                    walk(inner, f"{path}/", depth + 1)
            elif status:
                found.append(Entry(path, stat=_stat_of(status) if stat.S_ISREG(status.st_mode) else None))
            if len(found) > MOST_ENTRIES:
                raise KproError(top.path, f"it holds more than {MOST_ENTRIES} files, which no snapshot does", "Nothing of it is removed. Look at it by hand")

    walk(top, "", 0)
    return found


def _remove_file(top: Folder, path: str, known: Stat) -> None:
    def remove(folder: Folder) -> None:
        name = os.path.basename(path)
        status = folder.look(name)
        if status and stat.S_ISREG(status.st_mode) and _stat_of(status) == known:
            folder.remove_file(name)

    _in_folder(top, os.path.dirname(path), remove)


T = t.TypeVar("T")


def _in_folder(top: Folder, path: str, use: t.Callable[[Folder], T]) -> T | None:
    """Use a folder below another one, opened step by step; None if the way is not there any more."""
    with contextlib.ExitStack() as stack:
        folder = top
        for part in filter(None, path.split("/")):
            inner = folder.enter(part)
            if inner is None:
                return None
            folder = stack.enter_context(inner)
        return use(folder)
