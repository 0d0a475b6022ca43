# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creating a container: checks at once, volume and template in a task, everything removed again when that fails."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from . import devices, guest_files, guest_os, lxc_config, normalise, storage, store
from .config_file import Config
from .errors import ApiError, failed, forbidden
from .locks import config_lock
from .node import Node
from .routes import Request, route
from .tasks import Outcome, Task, run_task

# Parameters of the call that are no keys of the configuration.
CALL_ONLY = frozenset(
    {"node", "vmid", "ostemplate", "storage", "start", "force", "restore", "unique", "pool", "password", "bwlimit",
     "ssh-public-keys", "ignore-unpack-errors", "ha-managed"}
)  # fmt: skip
DEFAULT_GIB = 4
HOST_KEYS = ("rsa", "ecdsa", "ed25519")


@route("POST", "/nodes/{node}/lxc")
def create(request: Request) -> Outcome:
    """Create a container from a template, or with ``restore`` from a backup."""
    if request.flag("restore"):
        from .backup import restore

        return restore(request)
    node, vmid = request.node, request["vmid"]
    changes = {key: text for key, text in request.parameters.items() if key not in CALL_ONLY}
    changes.setdefault("unprivileged", "0" if node.is_pve8 else "1")
    if pool := request.get("pool"):
        raise forbidden(f"pool '{pool}' does not exist")
    unprivileged = changes["unprivileged"] == "1"
    normalise.check_permissions(node, changes, unprivileged, [])
    if owner := store.owner_of(node, vmid):
        raise failed(f"{owner[0]} {vmid} already exists on node '{owner[1]}'")
    archive = _archive(node, request["ostemplate"])
    rootfs = _check_rootfs(node, request.get("storage"), changes.get("rootfs"))
    config = Config()
    for key in sorted(changes.keys() - {"rootfs", "unprivileged"}):
        text = changes[key]
        config.current.values[key] = normalise.network(key, text) if key.startswith("net") else normalise.value(node, key, text)
    if unprivileged:
        config.current.values["unprivileged"] = "1"
    values = config.current.values
    values.setdefault("memory", "512")
    values.setdefault("swap", "512")
    values.setdefault("hostname", f"CT{vmid}")
    outcome = request.task("vzcreate", lambda task, at: _work(at, vmid, config, rootfs, archive, task, request))
    return outcome


def _archive(node: Node, ostemplate: str) -> str:
    """Return the template's path, or the text given when it is no volume id (Proxmox finds that out in the task)."""
    if ":" not in ostemplate:
        return ostemplate
    path = storage.volume_path(node, ostemplate)
    if storage.content_of(ostemplate) != "vztmpl":
        raise failed(f"unable to use volume {ostemplate} - content type needs to be 'vztmpl'")
    return path


def _check_rootfs(node: Node, storage_name: str | None, rootfs: str | None) -> str:
    name = storage_name or "local"
    if rootfs is not None:
        first = rootfs.split(",")[0].removeprefix("volume=")
        if not first.startswith("/"):
            name = storage.parse_volid(first)[0]
    found = storage.get(node, name)
    if "rootdir" not in found.contents:
        raise failed(f"storage '{name}' does not support container directories")
    return rootfs or f"{name}:{DEFAULT_GIB}"


def _work(node: Node, vmid: str, config: Config, rootfs: str, archive: str, task: Task, request: Request) -> None:
    with config_lock(node, vmid):
        store.save(node, vmid, _locked())
        made: list[str] = []
        try:
            _fill(node, vmid, config, rootfs, archive, task, made, request)
        except ApiError as error:
            for volid in made:
                storage.free(node, volid)
            node.driver.forget(node, vmid)
            node.config_path(vmid).unlink(missing_ok=True)
            raise failed(f"unable to create CT {vmid} - {error.message}") from error
    guest_os.warn_about_nesting(node, config, task)
    if request.flag("start"):
        from .lifecycle import start

        run_task(node, "vzstart", vmid, lambda inner, at: start(at, vmid, inner))


def _locked() -> Config:
    config = Config()
    config.current.values["lock"] = "create"
    return config


def _fill(node: Node, vmid: str, config: Config, rootfs: str, archive: str, task: Task, made: list[str], request: Request) -> None:
    values = config.current.values
    _allocate(node, vmid, config, rootfs, task, made)
    for volume, _target, _read_only in lxc_config.bind_mounts(values):
        if volume.startswith("/") and not node.path(volume).exists():
            task.log("mounting container failed")
            raise failed(f"directory '{volume}' does not exist")
    root = storage.rootfs_folder(node, values["rootfs"])
    with node.driver.mounted(node, vmid, root):
        _unpack(node, vmid, config, request["ostemplate"], archive, root, task)
        _detect(config, root, task)
        # As in Proxmox: from here on the configuration has all that was asked for, and no lock any more.
        store.save(node, vmid, config)
        _keys(node, root, values.get("hostname", ""), task, normalise.flag(values, "unprivileged"))
        if keys := request.get("ssh-public-keys"):
            _authorize(root, keys, normalise.flag(values, "unprivileged"))
    guest_files.write_all(node, vmid, config, root)
    # What the runtime reads is written by the first start: a bridge that is not there fails only then.
    store.save(node, vmid, config)


def _allocate(node: Node, vmid: str, config: Config, rootfs: str, task: Task, made: list[str]) -> None:
    for key, text in [("rootfs", rootfs), *((k, config.current.values[k]) for k in devices.keys(config.current.values, "mp"))]:
        parts = normalise.parts_of(key, text)
        if normalise.mount_kind(parts) != "volume":
            config.current.values[key] = normalise.mount_point(key, text)
            continue
        name, _colon, size = parts["volume"].partition(":")
        if not re.fullmatch(r"\d+(?:\.\d+)?", size):
            storage.volume_path(node, parts["volume"])
            raise failed(f"volume '{parts['volume']}' does not exist")
        size_bytes = int(float(size) * storage.GIB)
        found = storage.get(node, name)
        parts["volume"] = storage.allocate(node, found, vmid, size_bytes)
        parts["size"] = storage.size_text(size_bytes)
        made.append(parts["volume"])
        if found.kind == "dir":
            path = storage.volume_path(node, parts["volume"])
            task.log(f"Formatting '{path}', fmt=raw size={size_bytes} preallocation=off")
            task.log("kpro stand-in: the volume is a plain folder, no file system is made")
        config.current.values[key] = normalise.print_mount(parts)


def _unpack(node: Node, vmid: str, config: Config, ostemplate: str, archive: str, root: Path, task: Task) -> None:
    path = node.path(archive)
    if not path.is_file():
        reason = f"can't find file '{archive}'" if ":" not in ostemplate else f"volume '{ostemplate}' does not exist"
        task.log(reason)
        raise failed(reason)
    task.log(f"extracting archive '{archive}'")
    node.driver.unpack(path, root, vmid, normalise.flag(config.current.values, "unprivileged"), task.log)


def _detect(config: Config, root: Path, task: Task) -> None:
    values = config.current.values
    if "ostype" not in values:
        found = guest_os.ostype(root)
        if found is None:
            task.log("/etc/os-release file not found and autodetection failed, falling back to 'unmanaged'")
        values["ostype"] = found or "unmanaged"
    if "arch" not in values:
        architecture = guest_os.architecture(root)
        task.log(f"Detected container architecture: {architecture}" if architecture else "Falling back to amd64.")
        if architecture is None:
            task.log("Use `pct set VMID --arch ARCH` to change.")
        values["arch"] = architecture or "amd64"


def _keys(node: Node, root: Path, hostname: str, task: Task, unprivileged: bool) -> None:
    """Make the guest's SSH host keys, as Proxmox does with each new container."""
    folder = root / "etc/ssh"
    if not folder.is_dir():
        return
    guest = guest_files.Guest(root, lxc_config.SHIFT if unprivileged else 0)
    comment = f"root@{hostname.partition('.')[0] or 'localhost'}"
    for kind in HOST_KEYS:
        name = f"ssh_host_{kind}_key"
        key = folder / name
        for old in (key, folder / f"{name}.pub"):
            old.unlink(missing_ok=True)
        task.log(f"Creating SSH host key '{name}' - this may take some time ...")
        node.pause("key_s")
        bits = ("-b", "2048") if kind == "rsa" else ()
        argv = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-C", comment, "-f", str(key)]
        answer = subprocess.run(argv, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise failed(f"command 'ssh-keygen' failed: {answer.stderr.strip()}")
        for made in (key, folder / f"{name}.pub"):
            guest.own(made)
        told = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=False).stdout
        task.log(f"done: {told.split()[1] if told.split()[1:] else ''} {comment}")


def _authorize(root: Path, keys: str, unprivileged: bool) -> None:
    guest = guest_files.Guest(root, lxc_config.SHIFT if unprivileged else 0)
    folder = root / "root/.ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    guest.own(folder)
    guest.write("/root/.ssh/authorized_keys", f"# --- BEGIN PVE ---\n{keys.strip()}\n# --- END PVE ---\n")
