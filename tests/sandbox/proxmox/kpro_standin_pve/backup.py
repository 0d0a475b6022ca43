# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backup to an archive, and a container made from one.

Labelled stand-in, held to no recording, and only as far as "it was restored from a backup" needs: one archive of the root file
system with the configuration in it. Mode and compression are as Proxmox names them; it is always a plain copy under zstd.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from . import config_file, lifecycle, normalise, storage, store
from .config_file import Config
from .errors import ApiError, failed
from .formats import split_list
from .locks import config_lock
from .node import Node
from .routes import Request, route
from .tasks import Outcome, Task, run_task

STORED_CONFIG = "etc/vzdump/pct.conf"
# Keys of a configuration that belong to the place it was on.
NOT_RESTORED = ("lock", "parent", "snaptime")


@route("POST", "/nodes/{node}/vzdump")
def vzdump(request: Request) -> Outcome:
    """Back containers of this node up into a storage."""
    vmids = split_list(request.get("vmid") or "")
    found = storage.get(request.node, request.get("storage") or "local")
    if "backup" not in found.contents:
        raise failed(f"storage '{found.name}' does not support backups")
    return request.task("vzdump", lambda task, node: [_dump(node, vmid, found, task) for vmid in vmids] and None)


def _dump(node: Node, vmid: str, found: storage.Storage, task: Task) -> None:
    name = f"vzdump-lxc-{vmid}-{time.strftime('%Y_%m_%d-%H_%M_%S')}.tar.zst"
    path = node.path(storage.volume_path(node, f"{found.name}:backup/{name}"))
    with config_lock(node, vmid):
        config = store.load(node, vmid)
        store.check_lock(config)
        root = storage.rootfs_folder(node, config.current.values["rootfs"])
        task.log(f"INFO: creating vzdump archive '{path}'")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the root file system, never in it: the container may run.
        side = node.path(f"/var/lib/kpro-standin/vzdump/{vmid}")
        stored = side / STORED_CONFIG
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(config_file.render(Config(current=config.current)), encoding="utf-8", errors="surrogateescape")
        partial = path.with_suffix(".dat")
        argv = ["tar", "--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*", "--sparse", "--zstd", "--warning=no-file-changed"]
        argv += ["-cf", str(partial), "-C", str(side), f"./{STORED_CONFIG}", "-C", str(root), "--exclude=./dev/*", "."]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        # 1 says that a file changed while it was read: the container runs.
        if done.returncode > 1:
            partial.unlink(missing_ok=True)
            raise failed(f"Backup of VM {vmid} failed - {done.stderr.strip()}")
        partial.rename(path)
    task.log(f"INFO: Finished Backup of VM {vmid}")


def read_config(archive: Path) -> Config:
    """Return the configuration that an archive holds."""
    done = subprocess.run(["tar", "--zstd", "-xOf", str(archive), f"./{STORED_CONFIG}"], capture_output=True, check=False)
    if done.returncode:
        raise failed(f"unable to restore CT from '{archive}' - no configuration in the archive")
    return config_file.parse(done.stdout.decode(errors="surrogateescape"), re.sub(r"\D", "", archive.name) or "0")


def restore(request: Request) -> Outcome:
    """Make a container from an archive (``restore`` of the creating call); ``force`` takes the place of a stopped one."""
    node, vmid = request.node, request["vmid"]
    archive = node.path(storage.volume_path(node, request["ostemplate"]) if ":" in request["ostemplate"] else request["ostemplate"])
    if not archive.is_file():
        raise failed(f"volume '{request['ostemplate']}' does not exist")
    owner = store.owner_of(node, vmid)
    if owner and (owner[1] != node.name or not request.flag("force")):
        raise failed(f"{owner[0]} {vmid} already exists on node '{owner[1]}'")
    if owner and node.driver.is_running(node, vmid):
        raise failed(f"unable to restore CT {vmid} - container is running")
    found = storage.get(node, request.get("storage") or "local")
    if "rootdir" not in found.contents:
        raise failed(f"storage '{found.name}' does not support container directories")
    return request.task("vzrestore", lambda task, at: _restore(at, vmid, archive, found, request, task))


def _restore(node: Node, vmid: str, archive: Path, found: storage.Storage, request: Request, task: Task) -> None:
    config, size = _wanted(read_config(archive), request)
    with config_lock(node, vmid):
        if store.exists(node, vmid):
            lifecycle.destroy(node, vmid, store.load(node, vmid), task)
        volid = storage.allocate(node, found, vmid, size)
        root = node.path(storage.volume_path(node, volid))
        task.log(f"restoring '{archive}' now..")
        try:
            _unpack(archive, root)
            config.current.values["rootfs"] = normalise.print_mount({"volume": volid, "size": storage.size_text(size)})
            store.save(node, vmid, config)
        except ApiError:
            storage.free(node, volid)
            raise
    if request.flag("start"):
        run_task(node, "vzstart", vmid, lambda inner, at: lifecycle.start(at, vmid, inner))


def _wanted(stored: Config, request: Request) -> tuple[Config, int]:
    """Return the new configuration and its root file system's size in bytes: the archive's keys, changed by those given.

    Passed devices and bind mounts stay, whether the node has them or not; further volumes are not in the archive and are left out.
    """
    values = {key: text for key, text in stored.current.values.items() if key not in NOT_RESTORED and not key.startswith("unused")}
    size = normalise.parts_of("rootfs", values.pop("rootfs")).get("size", "4G")
    for key in [key for key in values if re.fullmatch(r"mp\d+", key)]:
        if not normalise.parts_of(key, values[key])["volume"].startswith("/"):
            del values[key]
    for key in [key for key in values if re.fullmatch(r"net\d+", key)]:
        if request.flag("unique"):
            values[key] = normalise.network(key, re.sub(r",hwaddr=[0-9A-Fa-f:]+", "", values[key]))
    for key, text in request.parameters.items():
        if normalise.is_option(key) and key not in ("rootfs", "unprivileged"):
            values[key] = normalise.network(key, text) if key.startswith("net") else normalise.value(request.node, key, text)
    config = Config()
    config.current.values.update(values)
    config.current.raw.extend(stored.current.raw)
    factor = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}.get(size[-1:], 1)
    return config, int(float(size.rstrip("KMGT")) * factor)


def _unpack(archive: Path, root: Path) -> None:
    """Unpack an archive as it was packed: its owners are the numbers of the node."""
    argv = ["tar", "--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*", "--zstd", "-xpf", str(archive), "-C", str(root)]
    done = subprocess.run([*argv, f"--exclude=./{STORED_CONFIG}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise failed(f"command 'tar' failed: {done.stderr.strip()}")
