# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading and changing a container's configuration: GET and PUT config, pending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import cluster, devices, normalise, storage, store
from .config_file import Config
from .driver import HotplugError
from .errors import bad_parameters, failed
from .formats import split_list
from .locks import config_lock
from .node import Node
from .routes import Request, route

REQUIRED = ("memory", "rootfs", "ostype")
# Proxmox writes these into the running configuration at once; nothing has to be done in the container.
FAST = frozenset({"description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "tags", "lock"})
HOT = frozenset({"cpulimit", "cpuunits", "memory", "swap"})
CONFIG = "/nodes/{node}/lxc/{vmid}/config"


def api_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Return stored values with their API types."""
    return {key: normalise.typed(key, text) for key, text in values.items()}


@route("GET", CONFIG)
def get_config(request: Request) -> dict[str, Any]:
    """Return the configuration as it will be (or, with ``current``, as it runs), and its digest."""
    config = store.load(request.node, request["vmid"])
    if name := request.get("snapshot"):
        if name not in config.snapshots:
            raise failed(f"snapshot '{name}' does not exist")
        section = config.snapshots[name]
        return {**api_values(section.values), "digest": config.digest}
    values = dict(config.current.values)
    if not request.flag("current"):
        for key in config.pending_deletes:
            values.pop(key, None)
        values.update({key: text for key, text in config.pending.values.items() if key != "delete"})
    answer = {**api_values(values), "digest": config.digest}
    if config.current.raw:
        answer["lxc"] = [[key, text] for key, text in config.current.raw]
    return answer


@route("GET", "/nodes/{node}/lxc/{vmid}/pending")
def get_pending(request: Request) -> list[dict[str, Any]]:
    """Return each key with what runs, what waits and whether it goes away."""
    config = store.load(request.node, request["vmid"])
    deletes = config.pending_deletes
    rows: list[dict[str, Any]] = []
    for key, text in sorted(config.current.values.items()):
        row: dict[str, Any] = {"key": key, "value": normalise.typed(key, text)}
        if key in config.pending.values:
            row["pending"] = normalise.typed(key, config.pending.values[key])
        if key in deletes:
            row["delete"] = 1
        rows.append(row)
    for key, text in sorted(config.pending.values.items()):
        if key != "delete" and key not in config.current.values:
            rows.append({"key": key, "pending": normalise.typed(key, text)})
    if config.current.raw:
        rows.append({"key": "lxc", "value": [[key, text] for key, text in config.current.raw]})
    rows.append({"key": "digest", "value": config.digest})
    return rows


@route("PUT", CONFIG)
def put_config(request: Request) -> None:
    """Change keys: all of them or none, except that a missing device is noticed only after writing (as in Proxmox)."""
    node, vmid = request.node, request["vmid"]
    changes = {key: text for key, text in request.parameters.items() if normalise.is_option(key)}
    deletes, reverts = split_list(request.get("delete") or ""), split_list(request.get("revert") or "")
    if not changes and not request.parameters.keys() & {"delete", "revert"}:
        raise failed("no options specified")
    _check_lists(changes, deletes, reverts)
    unprivileged = not node.is_root_user and normalise.flag(store.load(node, vmid).current.values, "unprivileged")
    normalise.check_permissions(node, changes, unprivileged, deletes)
    for key in devices.keys(changes, "net"):
        changes[key] = normalise.network(key, changes[key])
    with config_lock(node, vmid):
        config = store.load(node, vmid)
        store.check_lock(config)
        if (digest := request.get("digest")) and digest != config.digest:
            raise failed("detected modified configuration - file changed by other user? Try again.")
        queue(node, config, changes, deletes, reverts)
        running = node.driver.is_running(node, vmid)
        selection = set(changes) | set(deletes)
        if running:
            apply_running(node, vmid, config, selection)
        else:
            apply_stopped(node, vmid, config, selection)
        store.save(node, vmid, config)
        node.driver.write_runtime_config(node, vmid, config)


def _check_lists(changes: Mapping[str, str], deletes: list[str], reverts: list[str]) -> None:
    for key in deletes:
        if key in changes:
            raise bad_parameters({"delete": f"you can't use '-{key}' and -delete {key}' at the same time"})
        if not normalise.is_option(key):
            raise bad_parameters({"delete": f"unknown option '{key}'"})
    for key in reverts:
        if not normalise.is_option(key):
            raise bad_parameters({"revert": f"unknown option '{key}'"})


def queue(node: Node, config: Config, changes: Mapping[str, str], deletes: list[str], reverts: list[str]) -> None:
    """Write the wanted changes into the pending section; entries that change nothing vanish from it."""
    waiting = set(config.pending_deletes)
    for key in reverts:
        config.pending.values.pop(key, None)
        waiting.discard(key)
    for key in deletes:
        if key not in config.current.values and key not in config.pending.values:
            node.notice(f"cannot delete '{key}' - not set in current configuration!")
            continue
        if key in REQUIRED:
            raise failed(f"unable to delete required option '{key}'")
        if key == "unprivileged":
            raise failed("unable to delete read-only option: 'unprivileged'")
        config.pending.values.pop(key, None)
        if key in config.current.values:
            waiting.add(key)
    for key in sorted(changes):
        text = normalise.value(node, key, changes[key])
        waiting.discard(key)
        config.pending.values.pop(key, None)
        if config.current.values.get(key) != text:
            config.pending.values[key] = text
    config.set_pending_deletes(waiting)


def _take(config: Config, key: str, text: str | None) -> None:
    """Move one key from the pending section to the current one."""
    config.pending.values.pop(key, None)
    config.set_pending_deletes(other for other in config.pending_deletes if other != key)
    config.current.set(key, text if text else None if key == "description" else text)


def apply_running(node: Node, vmid: str, config: Config, selection: set[str]) -> None:
    """Apply what a running container can take; one refusal refuses the whole request, the rest waits for a stop."""
    errors: dict[str, str] = {}
    deletes = config.pending_deletes
    for key in sorted(selection):
        text = None if key in deletes else config.pending.values.get(key)
        if text is None and key not in deletes:
            continue
        if not _is_hot(node, config, key, text):
            continue
        try:
            if key not in FAST:
                node.driver.hotplug(node, vmid, key, text, config)
        except HotplugError as error:
            errors[key] = f"unable to hotplug {key}: {error}\n"
        else:
            if key.startswith("mp") and text is not None:
                text = normalise.mount_point(key, text)
            _take(config, key, text)
    if errors:
        raise bad_parameters(errors)


def _is_hot(node: Node, config: Config, key: str, text: str | None) -> bool:
    if key in FAST or key in HOT or key.startswith("net"):
        return True
    is_new = text is not None and key not in config.current.values
    return is_new and (key.startswith("mp") or (key.startswith("dev") and not node.is_pve8))


def apply_stopped(node: Node, vmid: str, config: Config, selection: set[str] | None) -> None:
    """Apply pending entries of a stopped container, all of them when ``selection`` is None."""
    for key in config.pending_deletes:
        if selection is None or key in selection:
            _delete(node, config, key)
    for key, text in sorted(config.pending.values.items()):
        if key == "delete" or (selection is not None and key not in selection):
            continue
        if key.startswith("mp"):
            text = _mount(node, vmid, key, text)
        _take(config, key, text)


def _delete(node: Node, config: Config, key: str) -> None:
    text = config.current.values.get(key, "")
    if key.startswith("mp") and text:
        parts = normalise.parts_of(key, text)
        if normalise.mount_kind(parts) == "volume":
            number = next(n for n in range(256) if f"unused{n}" not in config.current.values)
            config.current.values[f"unused{number}"] = parts["volume"]
    elif key.startswith("unused") and text:
        storage.free(node, text)
    _take(config, key, None)


def _mount(node: Node, vmid: str, key: str, text: str) -> str:
    """Return a mount point as stored, with its volume made when a size was asked for."""
    parts = normalise.parts_of(key, text)
    name, _colon, size = parts["volume"].partition(":")
    if normalise.mount_kind(parts) == "volume" and size.replace(".", "", 1).isdigit():
        size_bytes = int(float(size) * storage.GIB)
        parts["volume"] = storage.allocate(node, storage.get(node, name), vmid, size_bytes)
        parts["size"] = storage.size_text(size_bytes)
        text = normalise.print_mount(parts)
    return normalise.mount_point(key, text)


def apply_pending(node: Node, vmid: str) -> None:
    """Apply everything that waited for a stop (after a stop and before a start)."""
    config = store.load(node, vmid)
    # A stop needs no quorum, unless something waits that has to be written.
    if config.pending.values or cluster.is_quorate(node):
        apply_stopped(node, vmid, config, None)
        store.save(node, vmid, config)
