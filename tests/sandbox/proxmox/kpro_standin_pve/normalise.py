# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Proxmox rewrites and judges values before it stores them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from . import devices, schema, storage
from .config_file import Config, Values
from .errors import bad_parameters, failed, forbidden
from .formats import parse_boolean, parse_or_refuse, parse_property_string, print_property_string, split_list
from .node import Node

INTEGER: Mapping[str, Any] = {"type": "integer"}
MAC_PREFIX = "BC:24:11"
NOT_OPTIONS = frozenset({"node", "vmid", "digest", "delete", "revert"})


@lru_cache(maxsize=1)
def properties() -> dict[str, dict[str, Any]]:
    """Return the specifications of all configuration keys."""
    found: dict[str, dict[str, Any]] = schema.load()["/nodes/{node}/lxc/{vmid}/config"]["PUT"]["properties"]
    return found


def is_option(key: str) -> bool:
    """Tell whether a key may stand in a configuration."""
    return key not in NOT_OPTIONS and schema.spec_of(properties(), key) is not None


def property_spec(key: str) -> dict[str, Any]:
    """Return the property-string format of a key such as ``net0``."""
    found = schema.spec_of(properties(), key)
    if found is None:
        raise KeyError(key)
    form: dict[str, Any] = found["format"]
    return form


def tags(text: str) -> str:
    """Return tags lower-cased, without doubles, sorted and joined with semicolons."""
    return ";".join(sorted({tag.lower() for tag in split_list(text)}))


def new_mac() -> str:
    """Return a fresh address below Proxmox's prefix."""
    return MAC_PREFIX + "".join(f":{octet:02X}" for octet in secrets.token_bytes(3))


def network(key: str, text: str) -> str:
    """Return a ``net[n]`` complete: type and address added, name and bridge first."""
    parts = parse_or_refuse(property_spec(key), text, key)
    parts.setdefault("type", "veth")
    parts.setdefault("hwaddr", new_mac())
    return print_property_string(parts, first=("name", "bridge"))


def mount_point(key: str, text: str) -> str:
    """Return a mount point as stored."""
    return print_mount(parse_or_refuse(property_spec(key), text, key))


def print_mount(parts: Mapping[str, str]) -> str:
    """Return a mount point's text: the volume, its place, then the rest sorted."""
    return print_property_string(parts, first=("volume", "mp"), default_key="volume")


def mount_kind(parts: Mapping[str, str]) -> str:
    """Return "bind", "device" or "volume"; something that is none of them is Proxmox's 500."""
    volume = parts.get("volume", "")
    if volume.startswith("/dev/"):
        return "device"
    if volume.startswith("/"):
        return "bind"
    storage.parse_volid(volume)
    return "volume"


def value(node: Node, key: str, text: str) -> str:
    """Return a changed key's value as it is stored; raises what Proxmox refuses."""
    if key == "tags":
        return tags(text)
    if key in ("nameserver", "searchdomain"):
        return " ".join(split_list(text))
    if key == "unprivileged":
        raise failed("unable to modify read-only option: 'unprivileged'")
    if key.startswith("dev"):
        if not devices.parse(key, text):
            raise failed("Path has to be defined")
        devices.resolve(node, key, text)
    elif key == "rootfs" or key.startswith("mp"):
        kind = mount_kind(parse_or_refuse(property_spec(key), text, key))
        if kind == "volume":
            storage.get(node, storage.parse_volid(text.split(",")[0].removeprefix("volume="))[0])
    elif key == "hookscript":
        check_hookscript(node, text)
    return text


def check_hookscript(node: Node, volid: str) -> None:
    """Refuse a hook script that is not there or not executable."""
    path = node.path(storage.volume_path(node, volid))
    if not path.is_file():
        raise failed(f"script '{volid}' does not exist")
    if not path.stat().st_mode & 0o100:
        raise failed(f"script '{volid}' is not executable")


def check_permissions(node: Node, parameters: Mapping[str, str], unprivileged: bool, deletes: list[str]) -> None:
    """Refuse what only the literal root@pam may change; an API token of root is somebody else."""
    if node.is_root_user:
        return
    for key in (*parameters, *deletes):
        text = parameters.get(key)
        if key.startswith("dev"):
            raise forbidden("configuring device passthrough is only allowed for root@pam")
        if key == "hookscript":
            raise forbidden("changing the hookscript is only allowed for root@pam")
        if (key == "rootfs" or key.startswith("mp")) and text is not None:
            parts = parse_or_refuse(property_spec(key), text, key)
            if (kind := mount_kind(parts)) != "volume":
                raise forbidden(f"mount point type {kind} is only allowed for root@pam")
        if key == "features":
            _check_features(text or "", unprivileged)


def _check_features(text: str, unprivileged: bool) -> None:
    if not unprivileged:
        raise forbidden("changing feature flags for privileged container is only allowed for root@pam")
    parts = parse_or_refuse(property_spec("features"), text, "features")
    if any(name != "nesting" for name in parts):
        raise forbidden("changing feature flags (except nesting) is only allowed for root@pam")


def typed(key: str, text: str) -> int | str:
    """Return a stored value as the API gives it: integers and booleans as numbers, the rest as text."""
    spec = INTEGER if key == "snaptime" else schema.spec_of(properties(), key)
    if spec and spec.get("type") in ("integer", "boolean"):
        number = parse_boolean(text) if spec["type"] == "boolean" else None
        if number is not None:
            return number
        try:
            return int(text)
        except ValueError:
            return text
    return text


def invalid_values(config: Config) -> dict[str, str]:
    """Return the keys whose stored value the schema refuses (a hand-edited file); the command line fails on them."""
    errors = {}
    for key, text in config.current.values.items():
        spec = schema.spec_of(properties(), key)
        reason = schema.check_value(key, text, spec) if spec and key != "description" else None
        if reason:
            errors[key] = reason
    return errors


def parts_of(key: str, text: str) -> dict[str, str]:
    """Return the parts of a stored property string; a bad one is an internal error of the file's author."""
    try:
        return parse_property_string(property_spec(key), text, key)
    except ValueError as error:
        raise bad_parameters({key: f"invalid format - {error}"}) from error


def flag(values: Values, key: str, default: bool = False) -> bool:
    """Return a stored boolean."""
    return (parse_boolean(values[key]) or 0) == 1 if key in values else default
