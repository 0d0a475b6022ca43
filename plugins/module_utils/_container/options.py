# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of ``lxc_container``: their specification, and the declaration that they make."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._pve import property as prop
from .._pve.giving import Request
from .._pve.raw_declared import read_line
from .declared import Declared, Mount

# Options that are one plain key of Proxmox: the key, and the type.
SCALARS = {
    "hostname": ("hostname", "str"),
    "cores": ("cores", "int"),
    "memory_mib": ("memory", "int"),
    "swap_mib": ("swap", "int"),
    "onboot": ("onboot", "bool"),
    "description": ("description", "str"),
}
WAITS_S = {"task_timeout_s": 600, "shutdown_timeout_s": 180, "ready_timeout_s": 120, "api_timeout_s": 30}
NAME_KEYS = ("nameserver", "searchdomain")


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    texts = ("template", "storage", "startup")
    flags = {"unprivileged": True, "share_gpus": False, "adopt": False, "restart": False, "require_devices": True}
    network = {name: {"type": "str"} for name in ("bridge", "name", "ip", "gw", "ip6", "gw6", "hwaddr", *NAME_KEYS)}
    mount = {name: {"type": "str", "required": True} for name in ("source", "target")}
    device = {"path": {"type": "str", "required": True}, "mode": {"type": "str"}, "uid": {"type": "int"}, "gid": {"type": "int"}}
    neighbour = {"vmid": {"type": "int", "required": True}, "name": {"type": "str", "default": ""}, "gpus": {"type": "raw"}}
    neighbour |= {"share_gpus": {"type": "bool", "default": False}, "in_run": {"type": "bool", "default": True}}
    return {
        "vmid": {"type": "int", "required": True},
        "state": {"type": "str", "choices": ["present", "started", "stopped", "absent"], "default": "started"},
        **{name: {"type": "str"} for name in texts},
        "template_storage": {"type": "str", "default": "local"},
        "rootfs_gib": {"type": "int"},
        **{name: {"type": kind} for name, (_key, kind) in SCALARS.items()},
        **{name: {"type": "bool", "default": default} for name, default in flags.items()},
        "tags": {"type": "list", "elements": "str"},
        "features": {"type": "dict"},
        "network": {
            "type": "dict",
            "options": {**network, "tag": {"type": "int"}, "mtu": {"type": "int"}, "firewall": {"type": "bool"}},
        },
        "mounts": {
            "type": "list",
            "elements": "dict",
            "options": {**mount, "read_only": {"type": "bool", "default": False}, **{name: {"type": "bool"} for name in ("shared", "backup")}},
        },
        "gpus": {"type": "raw"},
        "node_gpus": {"type": "list", "elements": "dict"},
        "node_cards": {"type": "list", "elements": "dict", "default": []},
        "neighbours": {"type": "list", "elements": "dict", "default": [], "options": neighbour},
        "device_mode": {"type": "str", "default": "0666"},
        "devices": {"type": "list", "elements": "dict", "options": device},
        "options": {"type": "dict", "default": {}},
        "raw_lines": {"type": "list", "elements": "str", "default": []},
        **{name: {"type": "int", "default": default_s} for name, default_s in WAITS_S.items()},
        **{name: {"type": "str"} for name in ("node", "api_host", "api_token_id")},
        "api_password": {"type": "str", "no_log": True},
        "api_token_secret": {"type": "str", "no_log": True},
        "api_ca_file": {"type": "path"},
        "api_user": {"type": "str", "default": "root@pam"},
        "api_port": {"type": "int", "default": 8006},
    }


def declared_from(params: t.Mapping[str, t.Any]) -> Declared:
    """Return the declaration in the module's options."""
    network = {key: value for key, value in (params["network"] or {}).items() if value is not None}
    scalars = {key: params[name] for name, (key, _kind) in SCALARS.items() if params[name] is not None}
    scalars |= {key: network.pop(key) for key in NAME_KEYS if key in network}
    taken = [key for key in params["options"] if key in {*(key for key, _kind in SCALARS.values()), *NAME_KEYS, "features", "startup", "tags"}]
    if taken:
        raise KproError(f"option '{taken[0]}'", "it has an option of its own", "Take it out of options")
    features = params["features"]
    devices = params["devices"]
    same = ("vmid", "state", "gpus", "device_mode", "unprivileged", "template_storage", "rootfs_gib", "adopt", "restart", "share_gpus", "require_devices")
    return Declared(
        **{name: params[name] for name in same},
        scalars={key: _text(value) for key, value in {**scalars, **params["options"]}.items()},
        features=None if features is None else {key: _text(value) for key, value in features.items()},
        startup=prop.parse(params["startup"], prop.STARTUP) if params["startup"] else None,
        tags=None if params["tags"] is None else tuple(params["tags"]),
        network={key: _text(value) for key, value in network.items()} if network else None,
        mounts=None if params["mounts"] is None else tuple(Mount(**mount) for mount in params["mounts"]),
        devices=None if devices is None else tuple({k: str(v) for k, v in device.items() if v is not None} for device in devices),
        template=params["template"] or "",
        storage=params["storage"] or "",
        raw_lines=tuple(read_line(line) for line in params["raw_lines"]),
        neighbours=tuple(Request(row["vmid"], row["name"], row["gpus"], row["share_gpus"], row["in_run"]) for row in params["neighbours"]),
    )


def _text(value: t.Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)
