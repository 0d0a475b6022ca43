# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting, stopping and removing containers; start of all at the node's boot."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from . import cluster, config_api, guest_os, lxc_config, normalise, storage, store
from .config_file import Config
from .driver import StartError
from .errors import bad_parameters, failed
from .locks import config_lock
from .node import Node
from .routes import Request, route
from .tasks import Outcome, Task, run_task

STATUS = "/nodes/{node}/lxc/{vmid}/status"
DEFAULT_SHUTDOWN_S = 60
# All that a task shows of a failing pre-start hook, as recorded; the cause is not among it.
HOOK_FAILED = (
    "run_buffer: 571 Script exited with status {1}",
    'lxc_init: 845 Failed to run lxc.hook.pre-start for container "{0}"',
    '__lxc_start: 2039 Failed to initialize container "{0}"',
)
MOUNT_FAILED, REFUSED = 2, 255


def start(node: Node, vmid: str, task: Task, skip_lock: bool = False) -> None:
    """Start a container: lock, pending changes, hook, devices, LXC."""
    cluster.require_quorum(node)
    with config_lock(node, vmid):
        config = store.load(node, vmid)
        if not skip_lock and config.current.values.get("lock") != "mounted":
            store.check_lock(config)
        if config.pending.values:
            config_api.apply_stopped(node, vmid, config, None)
            store.save(node, vmid, config)
            config = store.load(node, vmid)
        node.driver.write_runtime_config(node, vmid, config)
        _hook(node, vmid, config, "pre-start")
        for volume, _target, _read_only in lxc_config.bind_mounts(config.current.values):
            if not node.path(lxc_config.source_path(node, volume)).exists():
                _fail_in_hook(vmid, MOUNT_FAILED, task)
        try:
            node.driver.start(node, vmid, config)
        except StartError as error:
            for line in error.lines:
                task.log(line)
            raise failed(f"startup for container '{vmid}' failed") from error
        guest_os.warn_about_nesting(node, config, task)


def _fail_in_hook(vmid: str, code: int, task: Task) -> None:
    for line in HOOK_FAILED:
        task.log(line.format(vmid, code))
    raise failed(f"startup for container '{vmid}' failed")


def _hook(node: Node, vmid: str, config: Config, phase: str) -> None:
    volid = config.current.values.get("hookscript")
    if not volid:
        return
    import subprocess

    script = node.path(storage.volume_path(node, volid))
    code = subprocess.run([script, vmid, phase], check=False).returncode
    if code:
        shown = storage.volume_path(node, volid)
        # The blank at the end is a line break of the inner error in Proxmox.
        raise failed(f"hookscript error for {vmid} on {phase}: command '{shown} {vmid} {phase}' failed: exit code {code} ")


def stop(node: Node, vmid: str, skip_lock: bool = False) -> None:
    """End a container at once and apply what waited for it."""
    with config_lock(node, vmid):
        if not skip_lock:
            store.check_lock_for_stop(store.load(node, vmid))
        node.driver.kill(node, vmid)
        config_api.apply_pending(node, vmid)


def shutdown(node: Node, vmid: str, timeout_s: int, force: bool) -> None:
    """Let the guest end itself; with ``force`` kill it after the time."""
    with config_lock(node, vmid):
        store.check_lock_for_stop(store.load(node, vmid))
        if not node.driver.shutdown(node, vmid, timeout_s):
            if not force:
                raise failed("container did not stop")
            node.driver.kill(node, vmid)
        config_api.apply_pending(node, vmid)


def _skip_lock(request: Request) -> bool:
    if request.flag("skiplock") and not request.node.is_root_user:
        raise bad_parameters({"skiplock": "Only root may use this option."})
    return request.flag("skiplock")


def _require(node: Node, vmid: str, running: bool, noun: str = "CT") -> None:
    if node.driver.is_running(node, vmid) != running:
        raise failed(f"CT {vmid} already running" if not running else f"{noun} {vmid} not running")


@route("POST", f"{STATUS}/start")
def post_start(request: Request) -> Outcome:
    """Start a container."""
    vmid = request["vmid"]
    skip_lock = _skip_lock(request)
    _require(request.node, vmid, running=False)
    return request.task("vzstart", lambda task, node: start(node, vmid, task, skip_lock))


@route("POST", f"{STATUS}/stop")
def post_stop(request: Request) -> Outcome:
    """End a container at once."""
    vmid = request["vmid"]
    skip_lock = _skip_lock(request)
    _require(request.node, vmid, running=True)
    return request.task("vzstop", lambda task, node: stop(node, vmid, skip_lock))


@route("POST", f"{STATUS}/shutdown")
def post_shutdown(request: Request) -> Outcome:
    """Let a guest end itself."""
    vmid, timeout_s = request["vmid"], int(request.get("timeout") or DEFAULT_SHUTDOWN_S)
    _require(request.node, vmid, running=True)
    return request.task("vzshutdown", lambda task, node: shutdown(node, vmid, timeout_s, request.flag("forceStop")))


@route("POST", f"{STATUS}/reboot")
def post_reboot(request: Request) -> Outcome:
    """Stop and start a container; the lock key is looked at only by the start, so that a locked one stays down."""
    vmid, timeout_s = request["vmid"], int(request.get("timeout") or DEFAULT_SHUTDOWN_S)
    _require(request.node, vmid, running=True, noun="VM")

    def work(task: Task, node: Node) -> None:
        with config_lock(node, vmid):
            if not node.driver.shutdown(node, vmid, timeout_s):
                raise failed("container did not stop")
            config_api.apply_pending(node, vmid)
            if "lock" in store.load(node, vmid).current.values:
                # A reboot looks at the lock only in the start's hook: the container is down by then.
                _fail_in_hook(vmid, REFUSED, task)
        start(node, vmid, task)

    return request.task("vzreboot", work)


@route("DELETE", "/nodes/{node}/lxc/{vmid}")
def delete(request: Request) -> Outcome:
    """Remove a container with its volumes."""
    vmid = request["vmid"]
    config = store.load(request.node, vmid)
    store.check_lock(config)
    if normalise.flag(config.current.values, "protection"):
        raise failed(f"can't remove CT {vmid} - protection mode enabled")
    if request.node.driver.is_running(request.node, vmid) and not request.flag("force"):
        raise failed(f"unable to destroy CT {vmid} - container is running")

    def work(task: Task, node: Node) -> None:
        with config_lock(node, vmid):
            if node.driver.is_running(node, vmid):
                task.log(f"forced to stop CT {vmid} before destroying!")
                node.driver.kill(node, vmid)
            destroy(node, vmid, store.load(node, vmid), task, request.flag("destroy-unreferenced-disks"), request.flag("purge"))

    return request.task("vzdestroy", work)


def destroy(node: Node, vmid: str, config: Config, task: Task, unreferenced: bool = False, purge: bool = False) -> None:
    """Remove volumes, runtime state and the configuration, which is a mark of its id until all else is gone."""
    for key, text in config.current.values.items():
        if key == "rootfs" or re.fullmatch(r"(?:mp|unused)\d+", key):
            volid = text.split(",")[0].removeprefix("volume=")
            if not volid.startswith("/"):
                storage.free(node, volid)
    if unreferenced:
        for found in storage.storages(node).values():
            for volume in storage.contents(node, found, "rootdir", vmid):
                storage.free(node, volume.volid)
    store.save(node, vmid, _zombie())
    if purge:
        task.log(f"purging CT {vmid} from related configurations..")
    node.driver.forget(node, vmid)
    node.config_path(vmid).unlink(missing_ok=True)


def _zombie() -> Config:
    config = Config()
    config.current.values["lock"] = "destroyed"
    return config


def boot_order(node: Node) -> list[tuple[str, int]]:
    """Return (vmid, delay after it in seconds) of the containers that start at boot, in their order."""
    found = []
    for vmid in store.container_ids(node):
        values = store.load(node, vmid).current.values
        if not normalise.flag(values, "onboot") or normalise.flag(values, "template"):
            continue
        named = (part if "=" in part else f"order={part}" for part in values.get("startup", "").split(",") if part)
        parts = {name: number for name, _equals, number in (part.partition("=") for part in named)}
        found.append((float(parts.get("order", "inf")), int(vmid), int(parts.get("up", "0"))))
    return [(str(vmid), delay_s) for _order, vmid, delay_s in sorted(found)]


def _start_work(vmid: str) -> Callable[[Task, Node], None]:
    return lambda task, node: start(node, vmid, task)


def _shutdown_work(vmid: str) -> Callable[[Task, Node], None]:
    return lambda _task, node: shutdown(node, vmid, DEFAULT_SHUTDOWN_S, force=True)


@route("POST", "/nodes/{node}/startall")
def start_all(request: Request) -> Outcome:
    """Start what has ``onboot``; a failure is logged and not tried again."""

    def work(task: Task, node: Node) -> None:
        if not cluster.is_quorate(node):
            task.log("waiting for quorum ...")
            while not cluster.is_quorate(node):
                time.sleep(1)
            task.log("got quorum")
        for vmid, delay_s in boot_order(node):
            if node.driver.is_running(node, vmid):
                continue
            task.log(f"Starting CT {vmid}")
            outcome = run_task(node, "vzstart", vmid, _start_work(vmid))
            if not outcome.is_success:
                task.log(f"Starting CT {vmid} failed: {outcome.exitstatus}")
            time.sleep(delay_s)

    return run_task(request.node, "startall", "", work, request.echo, request.wait)


@route("POST", "/nodes/{node}/stopall")
def stop_all(request: Request) -> Outcome:
    """Shut every running container down, the last started first."""

    def work(task: Task, node: Node) -> None:
        for vmid in reversed(store.container_ids(node)):
            if node.driver.is_running(node, vmid):
                task.log(f"Stopping CT {vmid} (timeout = {DEFAULT_SHUTDOWN_S} seconds)")
                run_task(node, "vzshutdown", vmid, _shutdown_work(vmid))

    return run_task(request.node, "stopall", "", work, request.echo, request.wait)
