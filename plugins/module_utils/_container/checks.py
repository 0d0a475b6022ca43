# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preconditions on the node for making or changing a container."""

from __future__ import annotations

import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .._gpu.claims import guest_of
from .._gpu.raw_lines import RawLine, driver_file, shadowing
from .._linux.mount_table import stale
from .._linux.system_folders import check_source
from .._pve import config as cfg
from .._pve import gpus as gpu_rules
from .._pve import property as prop
from .._pve.giving import Grant, Request, give_out
from .._pve.gpus import Gpu
from .._pve.idmap import MAP_KEYS, can_use, custom_map, map_gaps, map_problem, root_ids
from .declared import OWNER_TAG, Declared, Mount
from .facts import Facts, Present


def choose_gpus(declared: Declared, facts: Facts) -> tuple[Gpu, ...] | None:
    """Return the GPUs for the container; None if none are declared or the node's GPUs are not known yet.

    :raises KproError: if one is not there, or another guest has it and sharing is not allowed.
    """
    grant = _grant(declared, facts)
    if grant is None:
        return None
    if grant.problem:
        raise grant.problem
    return None if facts.gpus is None else grant.gpus


def gpu_notes(declared: Declared, facts: Facts) -> list[str]:
    """Return sentences on the chosen GPUs; before there is a driver, which ones they will be."""
    grant = _grant(declared, facts)
    if grant is None:
        return []
    will = [f"{declared.name} will get {', '.join(gpu.label for gpu in grant.gpus)}"] if facts.gpus is None and grant.gpus else []
    return [*will, *grant.notes]


def _grant(declared: Declared, facts: Facts) -> Grant | None:
    gpus = facts.cards if facts.gpus is None else facts.gpus
    if declared.gpus is None or (facts.gpus is None and not gpus):
        return None
    own = Request(declared.vmid, wanted=declared.gpus, share=declared.share_gpus)
    others = [request for request in declared.neighbours if request.vmid != declared.vmid]
    # Of the container itself the API's answer counts, which is there over https too.
    guests = [guest for guest in facts.guests if (guest.kind, guest.vmid) != ("container", declared.vmid)]
    if facts.present:
        guests.append(guest_of(declared.vmid, "container", facts.present.config.keys, facts.present.config.raw))
    return give_out((own, *others), gpus, guests)[declared.vmid]


def check_half_made(declared: Declared, present: Present, node: str) -> None:
    """Stop if a creation or removal was cut off that was more than begun (a restore over a container, say): nobody else's to judge.

    :raises KproError: naming the lock; taking it over is not offered.
    """
    if present.lock in ("create", "destroyed"):
        raise KproError(
            f"{declared.name} on {node}",
            f"CT is locked ({present.lock}), and no task works on it: a restore, creation or removal was cut off, and its configuration has more than the lock",
            f"Look what it is ('pct config {declared.vmid}'); 'pct unlock {declared.vmid}' keeps it, "
            f"after that 'pct destroy {declared.vmid} --purge 1' removes it with the volumes that it names",
        )


def check_owner(declared: Declared, present: Present) -> bool:
    """Return True if the container is to be taken over, False if it is ours already.

    :raises KproError: if it belongs to somebody else and may not be taken over.
    """
    if OWNER_TAG in cfg.split_tags(present.config.keys.get("tags", "")):
        return False
    name = present.config.keys.get("hostname", "no name")
    what = f"{declared.name} ({name})"
    if declared.state == "absent":
        raise KproError(what, f"it is not ours (no tag {OWNER_TAG}), so it is never removed", f"Remove it by hand: pct destroy {declared.vmid}")
    if prop.flag(present.config.keys.get("template", "0")) == "1":
        raise KproError(what, "it is a container template", "Choose another id")
    if not declared.adopt:
        raise KproError(
            what,
            f"the id is taken by a container that was made by somebody else (no tag {OWNER_TAG})",
            "Choose another id, or take the container over with adopt: true (its data, volumes and MAC addresses stay)",
        )
    return True


def take_over(declared: Declared, present: Present) -> Change:
    """Return the step that says whose container is taken over; the tag that makes it ours is set with the other settings."""
    name = present.config.keys.get("hostname", "no name")
    tags = present.config.keys.get("tags", "")
    sentence = f"Take over {declared.name} (takes over '{name}', made by somebody else)"
    return Change(sentence, f"'{name}', tags: {tags or 'none'}", f"of this deployment, tag {OWNER_TAG}", ("take_over",))


def check_privilege(declared: Declared, present: Present, adopted: bool) -> str:
    """Return a sentence if a container that is taken over keeps another privilege level than declared.

    :raises KproError: if our own container has the other level, which can't be changed afterwards.
    """
    now = prop.flag(present.config.keys.get("unprivileged", "0")) == "1"
    if now == declared.unprivileged:
        return ""
    words = {True: "unprivileged", False: "privileged"}
    if not adopted and not declared.adopt:
        raise KproError(
            declared.name,
            f"it is {words[now]}, declared is {words[declared.unprivileged]}; Proxmox can't change that afterwards",
            f"Declare unprivileged: {str(now).lower()}, or remove the container and have it made anew",
        )
    return f"{declared.name} stays {words[now]} (declared: {words[declared.unprivileged]}); the level can't be changed afterwards"


def check_lock(declared: Declared, present: Present) -> None:
    """Stop on a lock in the configuration; it is never removed from here.

    :raises KproError: naming the lock.
    """
    if present.lock and present.lock != "mounted":
        raise KproError(
            declared.name,
            f"CT is locked ({present.lock}): another operation works on it, or one was cut off",
            f"Wait for it; if no task runs any more, 'pct unlock {declared.vmid}' on the node",
        )


def check_devices(wanted: t.Mapping[str, str], facts: Facts, required: bool) -> list[str]:
    """Return a sentence for each passed path that is no device node of this node.

    With one such path Proxmox writes any change and then fails, and a start fails.

    :param wanted: all ``dev[n]`` keys as they will be.
    :raises KproError: instead, if they are required now.
    """
    found = []
    for key, value in wanted.items():
        path = gpu_rules.device_path(value)
        state = (facts.paths or {}).get(path)
        if state is None or state.kind == "device":
            continue
        if state.kind == "absent":
            reason = f"{key} passes it, but {facts.node} has no such device node"
            remedy = "Load the driver and make its nodes (role gpu_node; 'nvidia-modprobe -u -c0'), or take the entry out"
        else:
            reason = f"{key} passes it, but on {facts.node} it is a {state.kind}, not a device (left by an old bind mount?)"
            remedy = f"Remove it on the node ('rm {path}') and let the driver or udev make the node again"
        if required:
            raise KproError(path, reason, remedy)
        found.append(f"{path}: {reason} yet")
    return found


def check_map(declared: Declared, facts: Facts, now: t.Sequence[RawLine], after: t.Sequence[RawLine], unprivileged: bool, starts: bool) -> list[str]:
    """Check a container's own map of ids (``lxc.idmap``) as it will be; return sentences on what a person should know about it.

    :param now: its raw lines as they are; for a new container there are none.
    :param starts: the container will be started, or started anew.
    :raises KproError: if Proxmox or the kernel would refuse it, or its root file system belongs to another root.
    """
    extents = custom_map(after)
    if not extents:
        return []
    changed = _map_lines(now) != _map_lines(after)
    remedy = (
        "Correct the lines lxc.idmap (raw_lines)" if declared.raw_lines else f"Correct the lines lxc.idmap in /etc/pve/lxc/{declared.vmid}.conf on the node"
    )
    problem = map_problem(extents, facts.granted)
    if problem:
        if starts or changed:
            raise KproError(declared.name, problem, remedy)
        return [f"{declared.name} can't start again: {problem}"]
    ids, before = root_ids(unprivileged, after), _root_before(now, unprivileged)
    if before and ids != before:
        reason = f"its map (lxc.idmap) makes its root {ids[0]}:{ids[1]} on the node, and its files belong to the root {before[0]}:{before[1]}"
        raise KproError(declared.name, reason, f"Let the map begin with 'u 0 {before[0]} ...' and 'g 0 {before[1]} ...'")
    gaps = map_gaps(extents)
    return [f"The map of {declared.name} (lxc.idmap) leaves out {gaps}: files of these belong to nobody in it"] if gaps and changed else []


def _root_before(now: t.Sequence[RawLine], unprivileged: bool) -> tuple[int, int] | None:
    """Return whom the container's files belong to, None if no valid map says it."""
    try:
        extents = custom_map(now)
    except KproError:
        return None
    return None if map_problem(extents) else root_ids(unprivileged, now)


def _map_lines(raw: t.Iterable[RawLine]) -> list[str]:
    return sorted(" ".join(value.split()) for key, value in raw if key in MAP_KEYS)


def stale_devices(present: Present, facts: Facts) -> dict[str, str]:
    """Return the passed NVIDIA device nodes that are no longer the node's own inside the running container, with the reason.

    A driver that was loaded again may have another dynamic major; the container keeps the old one until its next start.
    """
    found = {}
    for key, value in present.active.numbered("dev").items():
        path = gpu_rules.device_path(value)
        inside, here = facts.inside.get(path), (facts.paths or {}).get(path)
        if inside is None or here is None or here.kind != "device" or not gpu_rules.is_nvidia_node(path):
            continue
        if inside.kind != "device":
            found[key] = f"{path} is {'absent' if inside.kind == 'absent' else f'a {inside.kind}'} inside the container"
        elif inside.numbers != here.numbers:
            old, new = (":".join(map(str, state.numbers)) for state in (inside, here))
            found[key] = f"{path} is {old} inside the container, {new} on {facts.node} since the driver was loaded again"
    return found


def binds(active: cfg.Config) -> list[dict[str, str]]:
    """Return the parts of the mounts of folders of the node in a running configuration, each with its "key"."""
    rows = [{**prop.parse(value, prop.MOUNT), "key": key} for key, value in active.numbered("mp").items()]
    return [row for row in rows if row.get("volume", "").startswith("/") and row.get("mp")]


def stale_mounts(present: Present, facts: Facts) -> dict[str, str]:
    """Return the mounts through which the running container does not see the node's folder any more, with the reason.

    A folder that was removed, or a file system that was mounted anew on the node, is not seen before the container's next start.
    """
    found = {}
    for row in binds(present.active):
        source, target = row["volume"], row["mp"]
        if reason := stale(facts.mounts, facts.mounts_inside, facts.sources.get(source, source), f"/{target.strip('/')}"):
            found[row["key"]] = reason
    return found


def check_bridge(key: str, value: str, facts: Facts) -> None:
    """Stop if a network interface names a bridge that the node lacks; Proxmox would write the change and then fail.

    :raises KproError: naming the bridge.
    """
    bridge = prop.parse(value, prop.NET).get("bridge", "")
    if not bridge:
        raise KproError(f"{key} '{value}'", "it names no bridge", "Declare network.bridge")
    if not facts.bridges.get(bridge, True):
        raise KproError(f"bridge '{bridge}'", f"{facts.node} has no such bridge", "Declare one of the node's bridges")


def mount_findings(mounts: t.Iterable[Mount], facts: Facts, unprivileged: bool, raw: t.Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return the folders to make on the node, and sentences on folders that the container's root can't use.

    :raises KproError: if a source is no folder, or one of the system's.
    """
    missing: list[str] = []
    notes = []
    uid, gid = root_ids(unprivileged, raw)
    for mount in mounts:
        state = (facts.paths or {}).get(mount.source)
        if state is None:
            continue
        check_source(f"mount source '{mount.source}'", mount.source, state.real)
        if state.kind == "absent":
            missing.append(mount.source)
        elif state.kind != "folder":
            raise KproError(f"mount {mount.target}", f"{mount.source} on {facts.node} is a {state.kind}, not a folder")
        elif not can_use(state, uid, gid, write=not mount.read_only):
            verb = "read" if mount.read_only else "write"
            notes.append(
                f"{mount.source} on {facts.node} is {state.mode:04o} {state.uid}:{state.gid}; the container's root is {uid}:{gid} there"
                f" and can't {verb} it (chown {uid}:{gid} {mount.source} on the node would let it)"
            )
    return missing, notes


def cover_notes(declared: Declared, facts: Facts, kept: t.Iterable[RawLine]) -> list[str]:
    """Return sentences on raw lines that stay although they are in the way of what is written in the container or passed to it.

    :param kept: the raw lines that stay.
    """
    kept = list(kept)
    notes = [
        f"'{key}: {value}' of {declared.name} covers /{mount.target} with {mount.source} of {facts.node}: what is installed there is not what the engine finds"
        for key, value in kept
        if (mount := shadowing((key, value)))
    ]
    own = next((guest for guest in facts.guests if guest.kind == "container" and guest.vmid == declared.vmid), None)
    if own and any(key == "lxc.include" for key, _value in kept) and declared.gpus is not None:
        shown = {mount.source for line in kept if (mount := driver_file(line))}
        files = [mount.source for mount in own.driver_files if mount.source not in shown]
        if files:
            notes.append(f"a file that {declared.name} includes (lxc.include) mounts {', '.join(files)} of the node's driver: take that out of the file")
    return notes
