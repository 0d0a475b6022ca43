# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One entry for all front ends: find the call, check its parameters by the schema, run the handler."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from . import cluster, schema
from .errors import ApiError, failed
from .node import Node
from .routes import HANDLERS, Request, not_provided

# Handlers live beside their subject; a call loads only the module that has its path, which keeps starts short.
MODULES = (
    ("/nodes/{node}/lxc/{vmid}/config", "config_api"),
    ("/nodes/{node}/lxc/{vmid}/pending", "config_api"),
    ("/nodes/{node}/lxc/{vmid}/status/current", "guest_api"),
    ("/nodes/{node}/lxc/{vmid}/status", "lifecycle"),
    ("/nodes/{node}/lxc/{vmid}/interfaces", "guest_api"),
    ("/nodes/{node}/lxc/{vmid}/resize", "resize"),
    ("/nodes/{node}/lxc/{vmid}/migrate", "migrate"),
    ("/nodes/{node}/vzdump", "backup"),
    ("/nodes/{node}/lxc/{vmid}", "lifecycle"),
    ("/nodes/{node}/lxc", "guest_api create"),
    ("/nodes/{node}/startall", "lifecycle"),
    ("/nodes/{node}/stopall", "lifecycle"),
    ("/nodes/{node}/tasks", "guest_api"),
    ("/cluster", "guest_api"),
    ("/access", "access"),
    ("/", "node_api"),
)


def handler_of(call: schema.Call, path: str) -> Callable[[Request], Any]:
    """Return the handler of a call; Proxmox's calls that the stand-in lacks are a 501 that says so."""
    names = next(names for prefix, names in MODULES if call.template.startswith(prefix))
    for name in names.split():
        importlib.import_module(f".{name}", __package__)
    handler = HANDLERS.get((call.method, call.template))
    if handler is None:
        raise not_provided(call.method, path)
    return handler


def call(
    node: Node,
    method: str,
    path: str,
    parameters: Mapping[str, Any],
    echo: Callable[[str], None] | None = None,
    wait: bool = True,
) -> Any:
    """Run one call and return its data (an Outcome for a task, finished when ``wait``); raises ApiError."""
    found = schema.find(method, path)
    if found is None:
        raise ApiError(501, f"Method '{method} {path}' not implemented")
    handler = handler_of(found, path)
    other = cluster.members(node).get(found.bound.get("node", ""))
    if other is not None and other.name != node.name:
        return cluster.proxy(other, method, path, parameters, echo)
    _check_node(node, found.bound.get("node"))
    checked = schema.validate(found, parameters)
    return handler(Request(replace(node), checked, echo, wait))


def _check_node(node: Node, name: str | None) -> None:
    if name in (None, "localhost", node.name):
        return
    known = node.path(f"/etc/pve/nodes/{name}").is_dir()
    cause = "Temporary failure in name resolution" if re.fullmatch(r"[\w.\-]+", str(name)) else "Name or service not known"
    reason = f"hostname lookup '{name}' failed - failed to get address info for: {name}: {cause}"
    raise failed(f"proxy handler failed: node '{name}' is not reachable from the stand-in" if known else reason)
