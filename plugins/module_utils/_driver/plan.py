# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from the driver that is there to the one that is wanted."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import Change
from .._gpu.model import CONTROL_MINOR, NVIDIA_MAJOR
from .._gpu.raw_lines import breaks_with_version
from .._gpu.secure_boot import check_signing
from .._gpu.text import DkmsEntry, version_key
from . import files
from .checks import needs_install, wanted_flavour
from .model import Present, Wanted
from .steps import needed_packages, runs_another

LONG_ACTIONS = ("packages", "key", "initramfs", "install", "build", "forget", "load")
_EARLY = (files.MODPROBE, files.PREFERENCES)


@dataclasses.dataclass(frozen=True)
class DriverPlan:
    """Changes in the order in which they are made.

    :param reboot: why a reboot is needed after (or before) them.
    :param notes: what a person should know before they are made.
    """

    changes: tuple[Change, ...]
    reboot: str = ""
    notes: tuple[str, ...] = ()

    @property
    def long_actions(self) -> tuple[tuple[t.Any, ...], ...]:
        """The actions that a worker does in its own unit: from the first long one to the last, with the files that come between them."""
        places = self._long_places()
        return tuple(change.action for change in self.changes[places[0] : places[-1] + 1]) if places else ()

    @property
    def first_changes(self) -> tuple[Change, ...]:
        """The quick changes that come before the first long one."""
        places = self._long_places()
        return self.changes[: places[0]] if places else self.changes

    def _long_places(self) -> list[int]:
        return [number for number, change in enumerate(self.changes) if change.action[0] in LONG_ACTIONS]


def node_plan(wanted: Wanted, present: Present) -> DriverPlan:
    """Return the plan for a node. Steps that may fail because of the node (packages, download, build) come first, while nothing is changed yet.

    :raises KproError: the module would be rejected by Secure Boot.
    """
    texts = files.node_files(present.minors, wanted.persistence, wanted.power_limit_w, wanted.repository, wanted.version)
    sources = _source_changes(wanted, present, texts)
    boot = _file_changes({files.MODPROBE: texts[files.MODPROBE]}, present)
    boot += _initramfs(boot, present)
    if "nouveau" in present.modules:
        reason = f"nouveau holds {', '.join(gpu.bus_id for gpu in present.pci if gpu.driver == 'nouveau') or 'the GPUs'} until the next boot"
        check_signing(present.secure_boot)
        return DriverPlan(tuple(boot), reason)
    work, reboot = _driver_changes(wanted, present)
    if work:
        check_signing(present.secure_boot)
    needed = needed_packages(present, [*([present.kernel] if _has(work, "install") else []), *(each.action[1] for each in work if each.action[0] == "build")])
    changes = [Change(f"Install the packages {', '.join(needed)}", None, "installed", ("packages", tuple(needed)))] if needed else []
    # The vendor's repository has to be there before its packages, else the driver comes first and its settings follow.
    changes += [*sources, *work[:-1], *boot, *work[-1:]] if wanted.repository else [*work[:-1], *sources, *boot, *work[-1:]]
    late = _file_changes({path: text for path, text in texts.items() if path not in _EARLY and path != _sources_path(wanted)}, present)
    changes += late
    if not reboot:
        stopped = "nvidia" in present.modules and (_has(changes, "install") or (_has(changes, "load") and runs_another(wanted, present)))
        changes += _unit_changes(files.node_units(wanted.persistence), present, {change.action[1] for change in late}, stopped)
        changes += _power_changes(wanted, present)
    return DriverPlan(tuple(changes), reboot, _notes(wanted, work, reboot, present))


def _has(changes: t.Sequence[Change], kind: str) -> bool:
    return any(change.action[0] == kind for change in changes)


def _sources_path(wanted: Wanted) -> str:
    return wanted.repository.sources_path if wanted.repository else ""


def _source_changes(wanted: Wanted, present: Present, texts: t.Mapping[str, str]) -> list[Change]:
    """Return what apt is told about the driver's packages: where they come from and which version, or that it should have none."""
    files_changes = _file_changes({path: text for path, text in texts.items() if path in (files.PREFERENCES, _sources_path(wanted))}, present)
    return [*_key_changes(wanted, present), *files_changes]


def _notes(wanted: Wanted, work: t.Sequence[Change], reboot: str, present: Present) -> tuple[str, ...]:
    """Return the containers that have the GPUs while their driver is changed under them."""
    if not present.loaded or not (reboot or any(change.action[0] in ("install", "load") for change in work)):
        return ()
    busy = " ".join(user.words for user in present.users)
    files = _file_notes(wanted, present)
    users = [container for container in present.containers if container.running and container.has_gpus]
    idle = [container.words for container in users if f"container {container.vmid}" not in busy]
    if not idle:
        return files
    few = len(idle) == 1
    return (
        f"{', '.join(idle)} {'runs' if few else 'run'} with these GPUs and {'uses' if few else 'use'} none now: a changed driver needs the same "
        f"userland there, and a restart of {'it' if few else 'them'}",
        *files,
    )


def _file_notes(wanted: Wanted, present: Present) -> tuple[str, ...]:
    """Return the containers over whose own files the node's driver files are mounted: another version breaks them."""
    notes = []
    for container in present.containers:
        gone = [mount.source for mount in container.driver_files if breaks_with_version(mount) and wanted.version not in mount.source]
        if gone:
            notes.append(
                f"{container.words} mounts {', '.join(gone)} of the node's driver (lxc.mount.entry), which {wanted.version} takes away: "
                "it can't start then until these lines are taken out"
            )
        elif container.driver_files:
            names = ", ".join(mount.source for mount in container.driver_files)
            notes.append(f"{container.words} mounts {names} of the node's driver over its own files: it keeps the old ones until its next start")
    return tuple(notes)


def _key_changes(wanted: Wanted, present: Present) -> list[Change]:
    if wanted.repository is None or present.key == (wanted.repository.key_fingerprint,):
        return []
    before = " ".join(present.key) if present.key else None
    return [Change("Fetch the key of NVIDIA's package repository", before, wanted.repository.key_fingerprint, ("key", wanted.repository))]


def userland_plan(wanted: Wanted, present: Present) -> DriverPlan:
    """Return the plan for a container."""
    changes = _file_changes(files.userland_files(), present)
    if not present.libraries_are(wanted.version):
        before = present.nvml_library or present.cuda_library
        changes.append(Change("Install the driver's userland", before, wanted.version, ("install",)))
    return DriverPlan(tuple(changes))


def _driver_changes(wanted: Wanted, present: Present) -> tuple[list[Change], str]:
    """Return installation, build for other kernels, and (re)loading; and why a reboot is needed."""
    changes: list[Change] = []
    disk = present.on_disk.version if present.on_disk else None
    loaded = present.loaded.version if present.loaded else None
    install = needs_install(wanted, present)
    swap = loaded is not None and loaded != wanted.version
    if install:
        flavour = wanted_flavour(wanted, present)
        before = f"{disk} ({present.on_disk.flavour})" if present.on_disk else None
        changes.append(Change("Install the NVIDIA driver", before, f"{wanted.version} ({flavour})", ("install", flavour)))
    for kernel in kernels_to_build(wanted, present, install):
        changes.append(Change(f"Build the kernel module for {kernel}", None, wanted.version, ("build", kernel)))
    for entry in _left_over(wanted, present):
        changes.append(Change(f"Remove driver {entry.version} from DKMS", entry.version, None, ("forget", entry.name, entry.version)))
    if swap and present.users and not install:
        return changes, f"driver {loaded} is loaded and used by {', '.join(user.words for user in present.users)}"
    # The installer unloads what is loaded, whatever the version.
    if install or swap or loaded is None or "nvidia_uvm" not in present.modules:
        changes.append(Change("Load the kernel modules", loaded, wanted.version, ("load",)))
    return changes, ""


def _left_over(wanted: Wanted, present: Present) -> list[DkmsEntry]:
    """Return one entry for each other version of ours that DKMS still keeps: it would build them for each new kernel."""
    return list({entry.version: entry for entry in present.dkms if entry.version != wanted.version and entry.version in present.ours}.values())


def kernels_to_build(wanted: Wanted, present: Present, install: bool) -> list[str]:
    """Return kernels that lack the module: the running one, and the newest installed one, which the next boot takes."""
    newest = max(present.kernels, key=version_key)
    kernels = [kernel for kernel in dict.fromkeys((present.kernel, newest)) if not present.built_for(wanted.version, kernel)]
    # The package's own build is for the running kernel.
    return [kernel for kernel in kernels if not (install and kernel == present.kernel)]


def nodes_right(present: Present) -> bool:
    """Say whether every device node is there, with the kernel's number and open to all."""
    uvm = present.majors.get("nvidia-uvm")
    if uvm is None:
        return False
    wanted = {"/dev/nvidiactl": (NVIDIA_MAJOR, CONTROL_MINOR), "/dev/nvidia-uvm": (uvm, 0), "/dev/nvidia-uvm-tools": (uvm, 1)}
    wanted |= {f"/dev/nvidia{minor}": (NVIDIA_MAJOR, minor) for minor in present.minors}
    there = {node.path: (node.major, node.minor) for node in present.nodes if node.kind == "character" and node.mode == "0666"}
    return all(there.get(path) == number for path, number in wanted.items())


def _file_changes(texts: t.Mapping[str, str], present: Present) -> list[Change]:
    return [Change(f"Write {path}", present.files.get(path), text, ("file", path, text)) for path, text in texts.items() if present.files.get(path) != text]


def _initramfs(changes: t.Sequence[Change], present: Present) -> list[Change]:
    """Return the rebuild that a changed module option needs: nouveau is loaded from the initramfs."""
    if present.initramfs_tool and any(change.action[:2] == ("file", files.MODPROBE) for change in changes):
        return [Change("Rebuild the initramfs of all kernels", None, "nouveau left out", ("initramfs",))]
    return []


def _unit_changes(names: t.Sequence[str], present: Present, written: t.Collection[str], stopped: bool) -> list[Change]:
    """Return the units to start; ``stopped``: the persistence daemon is stopped to unload the modules."""
    changes = []
    for name in names:
        unit = present.units[name]
        stale = name == files.NODES_UNIT and not nodes_right(present)
        if not unit.enabled or not unit.active or stale or f"{files.UNIT_FOLDER}/{name}" in written or (stopped and name == files.PERSISTENCE_UNIT):
            words = ["enabled" if unit.enabled else "disabled", "active" if unit.active else "inactive", *(["device nodes wrong"] if stale else [])]
            changes.append(Change(f"Enable and start {name}", ", ".join(words), "enabled, active", ("unit", name)))
    return changes


def _power_changes(wanted: Wanted, present: Present) -> list[Change]:
    """Return the GPUs whose power limit is another one, within the half watt to which drivers round."""
    if not wanted.power_limit_w:
        return []
    return [
        Change(f"Set the power limit of {uuid}", f"{limit:g} W", f"{wanted.power_limit_w} W", ("power", uuid, wanted.power_limit_w))
        for uuid, limit in present.power_limits_w.items()
        if abs(limit - wanted.power_limit_w) > 0.5
    ]
