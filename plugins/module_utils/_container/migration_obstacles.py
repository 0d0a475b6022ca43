# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Obstacles to the migration of a container, and to its start afterwards. Pure.

Sources: PVE::LXC::Migrate refuses bind and device mounts without ``shared=1`` and does not look at ``dev[n]`` at all.
"""

from __future__ import annotations

import typing as t

from .._gpu.raw_lines import MountLine, mount_of
from .._pve import property as prop
from .._pve.config import Config
from .._pve.gpus import device_path
from .._pve.idmap import FileState


def obstacles(config: Config, target: str, paths: t.Mapping[str, FileState]) -> list[str]:
    """Return a sentence for each obstacle to a migration; nothing is detached or removed.

    :param config: the container's configuration on the node where it is.
    :param target: name of the node to which it would go.
    :param paths: what is at the passed paths on the target.
    """
    found = []
    for key, value in config.numbered("mp").items():
        parts = prop.parse(value, prop.MOUNT)
        source = parts.get("volume", "")
        if not source.startswith("/") or prop.flag(parts.get("shared", "0")) == "1":
            continue
        state = paths.get(source)
        there = "has" if state is not None and state.kind == "folder" else "lacks"
        remedy = "once its content there is the same, mark it shared=1" if there == "has" else "copy it there first, then mark it shared=1"
        found.append(f"{key} ({source}) is a local bind mount, with which Proxmox migrates nothing; {target} {there} {source}: {remedy}")
    for key, value in config.numbered("dev").items():
        path = device_path(value)
        state = paths.get(path)
        if state is not None and state.kind != "device":
            found.append(f"{key} passes {path}, which {target} does not have; a start there would fail")
    for mount in _raw_mounts(config):
        state = paths.get(mount.source)
        if state is not None and state.kind == "absent":
            found.append(f"lxc.mount.entry mounts {mount.source}, which {target} does not have; a start there would fail")
    return found


def _raw_mounts(config: Config) -> list[MountLine]:
    """Return the mounts of raw lines without whose source a start fails."""
    mounts = (mount_of(line) for line in config.raw)
    return [mount for mount in mounts if mount and mount.source.startswith("/") and not mount.optional]


def passed_paths(config: Config) -> set[str]:
    """Return the paths of the node that a container's configuration passes."""
    mounts = (prop.parse(value, prop.MOUNT).get("volume", "") for value in config.numbered("mp").values())
    devices = {device_path(value) for value in config.numbered("dev").values()}
    return {path for path in mounts if path.startswith("/")} | devices | {mount.source for mount in _raw_mounts(config)}
