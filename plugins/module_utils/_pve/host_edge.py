# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the node's own files: device nodes, folders, guests' configuration files, bridges."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import hashlib
import os
import pathlib
import re
import stat
import time
import typing as t

from .._core.errors import KproError
from .._gpu.guest_files_edge import guest_files, read_regular
from .._gpu.holders_edge import ProcessFiles
from .._linux.held_folder_edge import HeldFolder, Refused
from .._linux.mount_table import Mount, read_mounts, within
from .._linux.system_folders import FOLDERS, TREES
from .gpu_processes import GpuProcess, short_command, started_by_service
from .idmap import KINDS, FileState, granted_ranges

FOREIGN_LINK = "link that others than root could have made"
TAIL_BYTES = 4096
LOCK_WAIT_S = 10.0  # as PVE::LXC::Config::lock_config waits


def _state(path: str, found: os.stat_result | None) -> FileState:
    if found is None:
        return FileState(path, "absent")
    mode = found.st_mode
    kind = "folder" if stat.S_ISDIR(mode) else "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "file"
    kind = FOREIGN_LINK if stat.S_ISLNK(mode) else kind
    return FileState(path, kind, stat.S_IMODE(mode), found.st_uid, found.st_gid, (os.major(found.st_rdev), os.minor(found.st_rdev)))


class Host:
    """The node on which this process runs.

    :param root: where its file tree begins.
    """

    def __init__(self, root: pathlib.Path = pathlib.Path("/")) -> None:
        self._root = root
        self._pve = root / "etc/pve"
        self._locks = root / "run/lock/lxc"

    def _at(self, path: str) -> pathlib.Path:
        return self._root / path.lstrip("/")

    @property
    def root(self) -> pathlib.Path:
        """Where the node's file tree begins."""
        return self._root

    @property
    def node(self) -> str:
        """Name of this node as Proxmox knows it: the host name without its domain."""
        return os.uname().nodename.split(".")[0]

    @property
    def is_root(self) -> bool:
        """True if this process may use the API without restriction."""
        return os.geteuid() == 0

    def look(self, path: str) -> FileState:
        """Return what is at a path; links are followed that only root can have made."""
        place = os.path.normpath(os.path.abspath(self._at(path)))
        try:
            with HeldFolder.at(os.path.dirname(place)) as folder:
                return _state(path, folder.status(os.path.basename(place) or "."))
        except (FileNotFoundError, NotADirectoryError):
            return FileState(path, "absent")
        except Refused:
            return FileState(path, FOREIGN_LINK)

    def look_at_source(self, path: str) -> FileState:
        """Return what is at a path that is to be mounted, with where its links lead."""
        found = self.look(path)
        real = self._inside(os.path.realpath(self._at(path)))
        if found.kind == "folder":
            # The same folder may have been mounted under another name.
            place = self._at(path).stat()
            for folder in (*TREES, *FOLDERS):
                with contextlib.suppress(OSError):
                    other = self._at(folder).stat()
                    if (other.st_dev, other.st_ino) == (place.st_dev, place.st_ino):
                        real = folder
        return dataclasses.replace(found, real=real)

    def _inside(self, path: str) -> str:
        """Return a path of this system as the node's own."""
        root = os.path.realpath(self._root)
        return os.path.normpath(os.path.join("/", os.path.relpath(path, root))) if within(path, root) else path

    def granted_ids(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the ranges of the node's ids that root may map, by kind (``u``, ``g``); a kind whose file is not there is left out."""
        found = {}
        for kind, name in KINDS.items():
            with contextlib.suppress(OSError):
                found[kind] = granted_ranges(self._at(f"/etc/sub{name}").read_text(encoding="utf-8", errors="replace"))
        return found

    def look_inside(self, pid: int, path: str) -> FileState:
        """Return what is at a path inside the container whose init has this process id."""
        try:
            with HeldFolder.seen_by(str(self._at(f"/proc/{pid}/root"))) as root:
                return _state(path, root.status(path.lstrip("/")))
        except OSError:
            return FileState(path, "absent")

    def path_of(self, path: str) -> str:
        """Return where a path of the node really lies."""
        return str(self._at(path))

    def config_written_s(self, vmid: int) -> float:
        """Return when a container's configuration was written last, in seconds since the epoch; 0 if it is gone."""
        with contextlib.suppress(OSError):
            return (self._pve / "lxc" / f"{vmid}.conf").stat().st_mtime
        return 0.0

    def mounts_below(self, folder: str) -> list[str]:
        """Return what is mounted at a folder of the node and below it, the innermost first."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in self._at("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                place = line.split()[4]
                if place == folder or place.startswith(f"{folder}/"):
                    found.append(place)
        return found[::-1]

    def last_line(self, path: str) -> str:
        """Return the last line of a log of the node, empty if there is none."""
        with contextlib.suppress(OSError), open(os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
                lines = file.read(TAIL_BYTES).decode("utf-8", "replace").strip().splitlines()
                return lines[-1].strip() if lines else ""
        return ""

    def partial_downloads(self, path: str) -> dict[str, tuple[int, float]]:
        """Return the parts that downloads of a template left beside its path: each with its process and when it was written last."""
        place = self._at(path)
        found = {}
        for part in sorted(place.parent.glob(f"{glob.escape(place.name)}.tmp_dwnl.*")):
            number = part.name.rpartition(".")[2]
            with contextlib.suppress(OSError):
                if number.isdecimal() and not part.is_symlink() and part.is_file():
                    found[str(pathlib.PurePosixPath(path).with_name(part.name))] = (int(number), part.stat().st_mtime)
        return found

    def remove_file(self, path: str) -> None:
        """Remove a file of the node."""
        with contextlib.suppress(FileNotFoundError):
            self._at(path).unlink()

    def mounts(self, pid: int | str = "self") -> tuple[Mount, ...]:
        """Return what a process sees mounted; nothing if it is gone."""
        with contextlib.suppress(OSError):
            return read_mounts(self._at(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
        return ()

    def without_links(self, path: str) -> str:
        """Return a path of the node with its links followed."""
        return os.path.realpath(path) if self._root == pathlib.Path("/") else path

    def make_folder(self, path: str, uid: int, gid: int) -> None:
        """Make a folder 0755 with this owner; missing parents belong to root, or to whoever has the folder above them.

        :raises KproError: if somebody else could have a hand in what would be given away.
        """
        place = os.path.normpath(os.path.abspath(self._at(path)))
        try:
            with HeldFolder.at(os.path.dirname(place), make=True) as parent:
                parent.make_for(os.path.basename(place), uid, gid)
        except OSError as error:
            raise KproError(path, f"it cannot be made for user {uid} ({error.strerror})", "Make it on the node by hand, with that owner") from error

    def has_bridge(self, name: str) -> bool:
        """Tell whether the node has a network interface of this name."""
        return self._at(f"/sys/class/net/{name}").exists()

    def majors_text(self) -> str:
        """Return ``/proc/devices``."""
        return self._at("/proc/devices").read_text(encoding="utf-8")

    def gpu_processes(self, vmid: int) -> tuple[GpuProcess, ...]:
        """Return the processes of a container that have an NVIDIA device node open."""
        found = []
        for holder in ProcessFiles(str(self._at("/proc"))).holders():
            if holder.container == vmid:
                place = self._at(f"/proc/{holder.pid}")
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    ids = re.search(r"^NSpid:\s+(.*)$", (place / "status").read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
                    argv = (place / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
                    inside = int(ids[1].split()[-1]) if ids else holder.pid
                    command = short_command([word for word in argv if word]) if any(argv) else holder.name
                    found.append(GpuProcess(holder.pid, inside, command, started_by_service(holder.unit or ""), holder.nodes))
        return tuple(found)

    def guest_file(self, node: str, vmid: int) -> str:
        """Return the configuration file of a container of any node of the cluster, empty if it has moved meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            return (self._pve / "nodes" / node / "lxc" / f"{vmid}.conf").read_text(encoding="utf-8", errors="surrogateescape")
        return ""

    def guest_files(self, kind: str) -> dict[int, str]:
        """Return the configuration files of this node's containers (``lxc``) or VMs (``qemu-server``) by id."""
        return guest_files(self._root, kind)

    def mappings_text(self) -> str:
        """Return the cluster's resource mappings of PCI devices, empty if there are none."""
        return read_regular(self._pve / "mapping/pci.cfg")

    def edit_config(self, vmid: int, digest: str, edit: t.Callable[[str], str]) -> None:
        """Rewrite a container's file under Proxmox's own lock, if it is still the one that was read.

        :param digest: SHA-1 of the file as the API gave it.
        :raises KproError: if the lock is busy or the file has changed since.
        """
        path = self._pve / "lxc" / f"{vmid}.conf"
        with self._locked(vmid):
            old = path.read_bytes()
            if digest and hashlib.sha1(old, usedforsecurity=False).hexdigest() != digest:
                raise KproError(f"configuration of container {vmid}", "it was changed by somebody else meanwhile", "Run again")
            new = edit(old.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            # pmxcfs knows neither fsync nor links; writing a sibling and renaming it is how Proxmox itself does it.
            sibling = path.with_name(f"{path.name}.tmp.{os.getpid()}")
            sibling.write_bytes(new)
            sibling.rename(path)

    @contextlib.contextmanager
    def _locked(self, vmid: int) -> t.Iterator[None]:
        self._locks.mkdir(parents=True, exist_ok=True)
        with open(self._locks / f"pve-config-{vmid}.lock", "ab") as lock:
            end = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= end:
                        raise KproError(f"configuration of container {vmid}", "it is locked by somebody else", "Run again") from error
                    time.sleep(0.2)
            yield
