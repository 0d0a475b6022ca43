# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving a container to another node of the cluster.

Labelled stand-in, held to no recording: it follows what is known of Proxmox's. ``dev[n]`` is not looked at, a mount point that
is no volume is refused unless it is marked ``shared``, a running container is stopped and started again on the target, and one
that does not start there stays there, stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import cluster, config_api, devices, lifecycle, normalise, storage, store, tasks
from .config_file import Config
from .errors import ApiError, bad_parameters, failed
from .formats import split_list
from .locks import config_lock
from .node import Node
from .routes import Request, route
from .tasks import Outcome, Task

PATH = "/nodes/{node}/lxc/{vmid}/migrate"
DEFAULT_SHUTDOWN_S = 180
IMPORT = "/usr/lib/kpro-standin/proxmox/bin/volume-import"
PACK = ("tar", "--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*", "--sparse")
PARTIAL = ".kpro-standin-import"


@route("GET", PATH)
def preconditions(request: Request) -> dict[str, Any]:
    """Return whether the container runs and which nodes could take it."""
    node, vmid = request.node, request["vmid"]
    store.load(node, vmid)
    others = [member for name, member in cluster.members(node).items() if name != node.name]
    return {
        "running": int(node.driver.is_running(node, vmid)),
        "allowed-nodes": sorted(member.name for member in others if cluster.is_online(node, member)),
        "not-allowed-nodes": {},
    }


@route("POST", PATH)
def migrate(request: Request) -> Outcome:
    """Move a container; a running one needs ``restart``."""
    node, vmid, target = request.node, request["vmid"], request["target"]
    if target == node.name:
        raise bad_parameters({"target": "target is local node."})
    member = cluster.members(node).get(target)
    if member is None:
        raise failed(f"no such cluster node '{target}'")
    cluster.require_quorum(node)
    config = store.load(node, vmid)
    store.check_lock(config)
    if node.driver.is_running(node, vmid) and not request.flag("restart"):
        raise failed("running container can only be migrated in restart mode")
    return request.task("vzmigrate", lambda task, at: Migration(at, vmid, member, request, task).run())


def mapped_storage(mapping: str | None, name: str) -> str:
    """Return the target storage: ``--target-storage`` is one for all, or pairs SOURCE:TARGET; 1 and absent mean the same name."""
    default = name
    for part in split_list(mapping or ""):
        source, colon, target = part.partition(":")
        if colon and source == name:
            return target
        if not colon and part != "1":
            default = part
    return default


class Migration:
    """One migration: check, stop, copy the volumes, hand over the configuration, start."""

    def __init__(self, node: Node, vmid: str, member: cluster.Member, request: Request, task: Task) -> None:
        self.node = node
        self.vmid = vmid
        self.member = member
        self.task = task
        self.mapping = request.get("target-storage")
        self.timeout_s = int(request.get("timeout") or DEFAULT_SHUTDOWN_S)
        self.was_running = False
        self.handed_over = False

    def run(self) -> None:
        """Migrate; whatever fails before the hand-over leaves the container here, started again if it ran."""
        started_s = time.monotonic()
        with config_lock(self.node, self.vmid):
            try:
                volumes = self._prepare()
            except ApiError as error:
                self._log("ERROR: migration aborted (duration 00:00:00): " + error.message)
                raise failed("migration aborted") from error
            error = self._attempt(volumes)
        spent = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - started_s))
        try:
            self._clean_up()
        except ApiError as failure:
            self._log(f"ERROR: {failure.message}")
            if error is None:
                self._log(f"ERROR: migration finished with problems (duration {spent})")
                raise failed("migration problems") from failure
        if error is not None:
            self._log(f"ERROR: migration aborted (duration {spent}): {error}")
            raise failed("migration aborted")
        self._log(f"migration finished successfully (duration {spent})")

    def _log(self, text: str) -> None:
        self.task.log(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def _prepare(self) -> list[tuple[str, str]]:
        """Return the volumes (key, volume id), after the checks that Proxmox makes; the container is stopped then."""
        config = store.load(self.node, self.vmid)
        store.check_lock(config)
        volumes = self._volumes(config)
        if cluster.on_member(self.member, "/bin/true").returncode:
            raise failed("Can't connect to destination address using public key")
        self.was_running = self.node.driver.is_running(self.node, self.vmid)
        if self.was_running:
            self._log(f"shutdown CT {self.vmid}")
            if not self.node.driver.shutdown(self.node, self.vmid, self.timeout_s):
                self.node.driver.kill(self.node, self.vmid)
            config_api.apply_pending(self.node, self.vmid)
        return volumes

    def _volumes(self, config: Config) -> list[tuple[str, str]]:
        values = config.current.values
        found = []
        for key in ["rootfs", *devices.keys(values, "mp"), *devices.keys(values, "unused")]:
            parts = normalise.parts_of(key, values[key]) if not key.startswith("unused") else {"volume": values[key]}
            volume = parts["volume"]
            if volume.startswith("/"):
                if parts.get("shared") == "1":
                    continue
                kind = "device" if volume.startswith("/dev/") else "bind"
                raise failed(f"cannot migrate local {kind} mount point '{key}'")
            name = storage.parse_volid(volume)[0]
            if "rootdir" not in storage.get(self.node, name).contents:
                raise failed(f"content type 'rootdir' is not available on storage '{name}'")
            found.append((key, volume))
        return found

    def _attempt(self, volumes: Sequence[tuple[str, str]]) -> str | None:
        """Copy and hand over; return why that failed, None when it did not."""
        self._log(f"starting migration of CT {self.vmid} to node '{self.member.name}' ({self.member.address})")
        config = store.load(self.node, self.vmid)
        config.current.values["lock"] = "migrate"
        try:
            store.save(self.node, self.vmid, config)
            moved = {key: self._copy(volume) for key, volume in volumes}
            self._hand_over(moved)
        except ApiError as error:
            self._log(f"ERROR: {error.message}")
            self._log("aborting phase 1 - cleanup resources")
            return error.message
        for _key, volume in volumes:
            storage.free(self.node, volume)
        self.node.driver.forget(self.node, self.vmid)
        return None

    def _copy(self, volume: str) -> str:
        """Send a volume over the link and return its new id; the copy counts only when it is whole."""
        self._log(f"found local volume '{volume}' (in current VM config)")
        folder = self.node.path(storage.volume_path(self.node, volume))
        name = mapped_storage(self.mapping, storage.parse_volid(volume)[0])
        size = folder.parent / f"{storage.SIZE_FILE}-{folder.name}"
        size_bytes = size.read_text(encoding="ascii").strip() if size.exists() else "0"
        pack = subprocess.Popen([*PACK, "-C", str(folder), "-cf", "-", "."], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        unpack = subprocess.Popen(
            [*cluster.ssh_command(self.member), "--", f"{IMPORT} {name} {self.vmid} {size_bytes}"],
            stdin=pack.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert pack.stdout is not None
        pack.stdout.close()
        while True:
            try:
                out, err = unpack.communicate(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                self.task.log(f"{time.strftime('%H:%M:%S')}   sending {volume}")
        if unpack.returncode or pack.wait():
            raise failed(f"storage migration for '{volume}' to storage '{name}' failed - {err.strip() or 'copy ended early'}")
        return out.strip()

    def _hand_over(self, moved: dict[str, str]) -> None:
        """Give the configuration to the other node, by one rename as in the cluster's file system."""
        config = store.load(self.node, self.vmid)
        for key, volume in moved.items():
            if key.startswith("unused"):
                config.current.values[key] = volume
            else:
                config.current.values[key] = normalise.print_mount({**normalise.parts_of(key, config.current.values[key]), "volume": volume})
        store.save(self.node, self.vmid, config)
        target = self.node.path(f"/etc/pve/nodes/{self.member.name}/lxc")
        target.mkdir(parents=True, exist_ok=True)
        self.node.config_path(self.vmid).rename(target / f"{self.vmid}.conf")
        self.handed_over = True

    def _clean_up(self) -> None:
        self._log("start final cleanup")
        if not self.handed_over:
            config = store.load(self.node, self.vmid)
            if config.current.values.pop("lock", None):
                store.save(self.node, self.vmid, config)
            if self.was_running:
                self._log("start container on source node")
                lifecycle.start(self.node, self.vmid, self.task)
            return
        if (done := cluster.on_member(self.member, "pct", "unlock", self.vmid)).returncode:
            raise failed(f"failed to clear migrate lock: {done.stderr.strip()}")
        if self.was_running:
            self._log("start container on target node")
            done = cluster.on_member(self.member, "pct", "start", self.vmid)
            for line in [*done.stdout.splitlines(), *done.stderr.splitlines()]:
                self.task.log(line)
            if done.returncode:
                raise failed(f"command 'ssh root@{self.member.address} pct start {self.vmid}' failed: exit code {done.returncode}")


def volume_import(argv: Sequence[str]) -> int:
    """On the target: ``volume-import STORAGE VMID BYTES`` unpacks a volume from standard input and prints its id."""
    from .cli_options import exit_code, notice
    from .node import this_node

    name, vmid, size_bytes = argv
    node = this_node(notice)
    try:
        found = storage.get(node, name)
        if not found.is_enabled or "rootdir" not in found.contents:
            raise failed(f"storage '{name}' is not available on node '{node.name}'")
        print(_unpack(node, found, vmid, int(size_bytes)))
    except ApiError as error:
        notice(error.message)
        return exit_code(error)
    return 0


def _unpack(node: Node, found: storage.Storage, vmid: str, size_bytes: int) -> str:
    """Unpack beside the volumes, so that a copy that ends early is none (as ``zfs receive`` has it), and rename."""
    parent = node.path(found.folder)
    partial = parent / f"{PARTIAL}-{vmid}-{os.getpid()}"
    _remove_dead(parent)
    partial.mkdir(parents=True, mode=0o755)
    try:
        done = subprocess.run([*PACK, "-C", str(partial), "-xpf", "-"], stdin=sys.stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise failed(f"cannot receive: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'incomplete stream'}")
        volid = storage.allocate(node, found, vmid, size_bytes)
        folder = node.path(storage.volume_path(node, volid))
        folder.rmdir()
        partial.rename(folder)
    finally:
        _remove(partial)
    return volid


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(parent: Path) -> None:
    """Remove what an import left whose process is gone."""
    for folder in parent.glob(f"{PARTIAL}-*"):
        if not tasks.process_start_ticks(int(folder.name.rpartition("-")[2])):
            _remove(folder)
