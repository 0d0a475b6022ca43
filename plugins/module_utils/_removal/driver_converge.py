# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes from a node the files and units of the driver phase, if nobody needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import stat
import typing as t

from .._container.declared import OWNER_TAG
from .._core.changes import Change
from .._core.errors import KproError
from .._driver import files
from .._driver.repository import NAME
from .._driver.users import gpu_users
from .._gpu.holders_edge import ProcessFiles
from .._gpu.host_edge import GpuHost
from .._gpu.model import NvmlReport
from .._linux.command_edge import Command
from .._linux.systemd_edge import Systemd
from .._pve.config import read_config_file, split_tags
from .._runtime.base import Repository

_REPOSITORY = Repository(NAME, "", "", "")
# The last to start goes first.
UNITS = tuple(reversed(files.node_units(persistence=True)))
PATHS = (
    *(f"{files.UNIT_FOLDER}/{unit}" for unit in UNITS),
    *(files.SYSUSERS, files.KERNEL_HOOK, files.MODULES_LOAD, files.MODPROBE, files.PREFERENCES),
    *(_REPOSITORY.sources_path, _REPOSITORY.key_path),
)
# These have no line that says whose they are; their names are ours.
UNMARKED = frozenset({_REPOSITORY.sources_path, _REPOSITORY.key_path})
MARK = "Written by the Ansible collection kpro.llm"
MOST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class NodeDriver:
    """The observed node.

    :param ours: our files, in the order in which they go.
    :param foreign: files of our names that somebody else wrote.
    :param guests: other guests that have a GPU, in words.
    :param users: processes that have one, with the commands that end them.
    """

    ours: tuple[str, ...]
    foreign: tuple[str, ...]
    guests: tuple[str, ...]
    users: tuple[str, ...]


def look(leaving: t.Collection[int], root: str = "/", command: Command | None = None) -> NodeDriver:
    """Observe a node.

    :param leaving: containers that do not count, if they are ours.
    """
    # Without it nobody would seem to need the driver.
    if not (pathlib.Path(root) / "etc/pve/lxc").is_dir():
        reason = "/etc/pve/lxc cannot be read, so nothing tells which guests have a GPU"
        raise KproError("Proxmox's configuration", reason, "Nothing was removed. See 'systemctl status pve-cluster' on the node")
    ours: list[str] = []
    foreign: list[str] = []
    for path in PATHS:
        found = _kind(pathlib.Path(root) / path.lstrip("/"), path)
        if found:
            (ours if found == "ours" else foreign).append(path)
    host = GpuHost(command or Command(), root)
    own = {vmid for vmid in leaving if _is_ours(pathlib.Path(root) / f"etc/pve/lxc/{vmid}.conf")}
    # Also one that only may have a GPU: what keeps the driver stays rather than leaves a guest without it.
    guests = [guest.words for guest in host.guests("lxc") if guest.vmid not in own and (guest.claims or guest.nodes or guest.driver_files)]
    guests += [f"VM {vm}{f' ({name})' if name else ''}" for card in host.pci() for vm, name in zip(card.vms, card.vm_names, strict=True)]
    holders = [one for one in ProcessFiles(f"{root.rstrip('/')}/proc").holders() if one.container not in own]
    users = gpu_users(holders, NvmlReport(""), host.gpu_containers(), files.PERSISTENCE_UNIT)
    return NodeDriver(tuple(ours), tuple(foreign), tuple(dict.fromkeys(guests)), tuple(f"{one.words} ('{one.end}' ends it)" for one in users))


def plan(seen: NodeDriver, deployments: t.Sequence[str], *, driver: bool) -> tuple[list[Change], list[str]]:
    """Return what goes, and sentences on what stays.

    :param deployments: other deployments of the inventory that use the node, in words.
    :param driver: the driver itself goes as well.
    :raises KproError: if it is to go while somebody else needs it.
    """
    needed = [*deployments, *(f"{guest} has a GPU" for guest in seen.guests)]
    if driver and (needed or seen.users):
        words = "; ".join([*needed, *seen.users])
        raise KproError("the driver", f"others need it: {words}", "Nothing was removed. End that first, or leave the driver (without decommission_driver)")
    notes = [f"{path} stays: somebody else wrote it" for path in seen.foreign]
    if needed or seen.users:
        keep = f"what keeps the driver stays ({', '.join(seen.ours)}): {'; '.join([*needed, *seen.users])}"
        return [], [*notes, *([keep] if seen.ours else [])]
    changes = []
    for path in seen.ours:
        unit = os.path.basename(path) if path.startswith(files.UNIT_FOLDER) else ""
        sentence = f"Stop {unit} and remove {path}" if unit else f"Remove {path}"
        changes.append(Change(sentence, path, None, ("unit", unit, path) if unit else ("file", "", path)))
    return changes, notes


def apply(changes: t.Sequence[Change], root: str = "/") -> None:
    """Stop units and remove files.

    :raises KproError: if systemd refuses.
    """
    for change in changes:
        kind, unit, path = change.action
        if kind == "unit":
            systemd = Systemd(unit)
            systemd.stop(60.0)
            systemd.disable()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pathlib.Path(root) / path.lstrip("/"))
    if any(change.action[0] == "unit" for change in changes):
        Systemd(files.NODES_UNIT).daemon_reload()


def _kind(place: pathlib.Path, path: str) -> str:
    """Return whose a file is: ``ours``, ``foreign``, or nothing if there is none."""
    if not os.path.lexists(place):
        return ""
    text = _text(place)
    return "ours" if path in UNMARKED or MARK in text else "foreign"


def _is_ours(place: pathlib.Path) -> bool:
    return OWNER_TAG in split_tags(read_config_file(_text(place)).keys.get("tags", ""))


def _text(place: pathlib.Path) -> str:
    """Return the beginning of a regular file, empty if there is none."""
    with contextlib.suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read(MOST_BYTES).decode("utf-8", "replace")
    return ""
