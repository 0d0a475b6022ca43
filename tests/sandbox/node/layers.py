# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers: the disk of a provisioned node, kept read-only, so that many nodes can start from it."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from node.files import locked, read_json, remove_tree, write_json
from node.folders import Folders, SandboxError

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def check_key(key: str) -> str:
    if not _KEY.match(key):
        raise SandboxError(f"layer name {key!r}: use letters, digits, dot, dash and underscore, at most 100")
    return key


def layer_upper(folders: Folders, key: str) -> Path:
    return folders.layers / key / "up"


def layer_information(folders: Folders, key: str) -> dict[str, Any] | None:
    """Return what a layer was made from, ``None`` if there is no such layer."""
    return read_json(folders.layers / check_key(key) / "made.json")


def layer_chain(folders: Folders, key: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what a layer was made from and the layers to mount, topmost first."""
    information = layer_information(folders, key)
    if information is None:
        raise SandboxError(f"there is no layer {key}; 'sandbox layer list' names those that are there")
    return information, (key, *information["layers"])


def store(folders: Folders, key: str, upper: Path, record: Any) -> None:
    """Move a stopped node's own folder into the cache as a layer."""
    target = folders.layers / check_key(key)
    with locked(folders.cache_locks / f"layer-{key}", f"layer {key}"):
        if target.exists():
            raise SandboxError(f"layer {key} is there already; remove it with 'sandbox layer remove {key}'")
        temporary = folders.building / f"layer-{key}"
        remove_tree(temporary)
        temporary.mkdir()
        information = {"image": asdict(record.image), "layers": list(record.layers), "hostname": record.hostname, "made_at_s": int(time.time())}
        write_json(temporary / "made.json", information)
        upper.rename(temporary / "up")
        temporary.rename(target)


def layer_keys(folders: Folders) -> list[str]:
    """Return the names of all layers."""
    if not folders.layers.is_dir():
        return []
    return sorted(path.name for path in folders.layers.iterdir() if (path / "made.json").exists())


def remove(folders: Folders, key: str, used: set[str]) -> None:
    """Remove a layer that no node and no other layer stands on."""
    for other in layer_keys(folders):
        information = layer_information(folders, other)
        used = used | set(information["layers"] if information else [])
    if key in used:
        raise SandboxError(f"layer {key} is in use by a node or by another layer; take that down first")
    if layer_information(folders, key) is None:
        raise SandboxError(f"there is no layer {key}")
    with locked(folders.cache_locks / f"layer-{key}", f"layer {key}"):
        dead = folders.building / f"removed-layer-{key}"
        remove_tree(dead)
        (folders.layers / key).rename(dead)
        remove_tree(dead)
