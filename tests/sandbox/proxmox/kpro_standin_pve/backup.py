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

from . import config_file, normalise, storage, store
from .config_file import Config
from .errors import failed
from .formats import split_list
from .locks import config_lock
from .node import Node
from .routes import Request, route
from .tasks import Outcome, Task

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


def restored(config: Config, given: dict[str, str], unique: bool) -> tuple[dict[str, str], str]:
    """Return the keys of the new container and the size of its root file system: the archive's, changed by what was given."""
    values = {key: text for key, text in config.current.values.items() if key not in NOT_RESTORED and not key.startswith("unused")}
    rootfs = normalise.parts_of("rootfs", values.pop("rootfs"))
    volumes = [key for key in values if re.fullmatch(r"mp\d+", key) and not normalise.parts_of(key, values[key])["volume"].startswith("/")]
    for key in volumes:
        del values[key]
    if unique:
        for key in [key for key in values if re.fullmatch(r"net\d+", key)]:
            values[key] = re.sub(r",hwaddr=[0-9A-Fa-f:]+", "", values[key])
    return {**values, **given}, rootfs.get("size", "")


def unpack(archive: Path, root: Path) -> None:
    """Unpack an archive as it was packed: owners are those of the container's own shifted numbers."""
    argv = ["tar", "--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*", "--zstd", "-xpf", str(archive), "-C", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise failed(f"command 'tar' failed: {done.stderr.strip()}")
