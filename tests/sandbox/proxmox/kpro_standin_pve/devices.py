# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``dev[n]``: which node a container gets, with its owner and mode there."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import schema
from .config_file import Values
from .errors import ApiError, failed
from .formats import parse_or_refuse
from .node import Node

DEFAULT_MODE = 0o660


@dataclass(frozen=True)
class Device:
    """One passed device: path in node and container, numbers of the node's, owner and mode in the container."""

    path: str
    kind: str  # "c" or "b"
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    deny_write: bool


@lru_cache(maxsize=1)
def spec() -> dict[str, Any]:
    """Return the property-string format of ``dev[n]``."""
    found: dict[str, Any] = schema.load()["/nodes/{node}/lxc/{vmid}/config"]["PUT"]["properties"]["dev[n]"]["format"]
    return found


def parse(key: str, value: str) -> dict[str, str]:
    """Return the parts of one ``dev[n]``; raises the 400 of a bad format and the 500 of a missing path."""
    parts = parse_or_refuse(spec(), value, key)
    if not parts.get("path"):
        raise ApiError(500, "Path has to be defined")
    return parts


def resolve(node: Node, key: str, value: str) -> Device:
    """Look at the node's device now (numbers move between boots); absent or no device is Proxmox's 500."""
    parts = parse(key, value)
    try:
        found = node.path(parts["path"]).stat()
    except OSError:
        raise failed(f"Device {parts['path']} does not exist") from None
    if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        raise failed(f"{parts['path']} is not a device")
    return Device(
        path=os.path.normpath(parts["path"]),
        kind="c" if stat.S_ISCHR(found.st_mode) else "b",
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        mode=int(parts["mode"], 8) if "mode" in parts else DEFAULT_MODE,
        uid=int(parts.get("uid", 0)),
        gid=int(parts.get("gid", 0)),
        deny_write=parts.get("deny-write") == "1",
    )


def keys(values: Values, prefix: str) -> list[str]:
    """Return the numbered keys of a kind (``dev``, ``mp``, ``net``) in the order of their numbers."""
    return sorted((key for key in values if re.fullmatch(rf"{prefix}\d+", key)), key=lambda key: int(key[len(prefix) :]))


def all_of(node: Node, values: Values) -> list[Device]:
    """Return every passed device; the first one missing is an error."""
    return [resolve(node, key, values[key]) for key in keys(values, "dev")]
