# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from a container as observed to a container as declared: a list of changes.

Order of a plan: template, folders on the node, stop (if a restart is due), creation or changes, start. A change that has
to wait for a restart is made while the container is down: no hotplug can refuse it then, and one start applies everything.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .._pve import config as cfg
from .._pve import gpu_processes as holding
from .._pve import property as prop
from .._pve import stores
from .._pve.gpus import Gpu, device_path
from .._pve.idmap import root_ids
from .._pve.raw import RawLine, RawSplit, split_raw
from .._pve.raw_declared import edit_for, lines_after
from .._pve.remnant import Remnant, refusal
from . import checks
from .declared import Declared, create_parameters, size_gib, wanted_keys
from .facts import Facts, Present, Work


@dataclasses.dataclass(frozen=True)
class LxcPlan:
    """Changes to make, and notes for a person.

    :param changes: the steps in order; empty means that the container is as declared.
    :param notes: sentences for people; they change nothing.
    :param gpus: the chosen GPUs (None: not declared or not known yet).
    :param waiting: keys whose change waits for a restart that is not allowed.
    """

    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] | None = None
    waiting: tuple[str, ...] = ()


def make_plan(declared: Declared, facts: Facts) -> LxcPlan:
    """Return what makes the observed container the declared one.

    :raises KproError: on anything that has to be settled by a person; nothing has been changed then.
    """
    if facts.work is not None:
        return _plan_wait(declared, facts, facts.work)
    if facts.remnant is not None:
        return _plan_remnant(declared, facts, facts.remnant)
    if facts.present is not None:
        return _plan_present(declared, facts, facts.present)
    if facts.elsewhere is not None:
        return _plan_elsewhere(declared, facts)
    return LxcPlan() if declared.state == "absent" else _plan_new(declared, facts)


def _plan_wait(declared: Declared, facts: Facts, work: Work) -> LxcPlan:
    """Return the plan of a look at a container on which something works: what it is can be judged after that only."""
    being = {"creation": "is being created", "removal": "is being removed", "migration": "is being moved"}
    state = being.get(work.words.split()[0], f"is being worked on ({work.words})")
    sentence = f"Wait until the {work.words} has ended{f' (task {work.upid})' if work.upid else ''}: it {state} now"
    gpus = checks.choose_gpus(declared, facts) if declared.state != "absent" else None
    return LxcPlan((Change(sentence, state, "as it will be", ("wait",)),), ("Other changes are known after that",), gpus)


def _plan_remnant(declared: Declared, facts: Facts, remnant: Remnant) -> LxcPlan:
    if not remnant.ours:
        raise refusal(remnant)
    clean = Change(remnant.sentence, f"lock: {remnant.lock}", None, ("remnant", remnant))
    if declared.state == "absent":
        return LxcPlan((clean,))
    plan = _plan_new(declared, facts)
    return dataclasses.replace(plan, changes=(clean, *plan.changes))


def _plan_elsewhere(declared: Declared, facts: Facts) -> LxcPlan:
    other = facts.elsewhere
    if other is None:
        raise TypeError("the container is not on another node")
    if other.kind != "lxc":
        raise KproError(
            f"id {declared.vmid}",
            f"it is taken by the VM '{other.name}' on {other.node}",
            "Choose another id for the container",
        )
    sentence = f"Container {declared.vmid} lives on {other.node}, the play says {facts.node}; nothing was done there"
    advice = f"{sentence}. Name {other.node} as its node, or migrate it first ('pct migrate {declared.vmid} {facts.node} --restart' there)"
    obstacles = list(other.obstacles)
    gpus = None
    try:
        gpus = checks.choose_gpus(declared, facts) if declared.state != "absent" else None
    except KproError as error:
        obstacles.append(error.sentence)
    return LxcPlan(notes=(advice, *(f"In the way of a migration: {obstacle}" for obstacle in obstacles)), gpus=gpus)


def _plan_new(declared: Declared, facts: Facts) -> LxcPlan:
    for name, value in (("template", declared.template), ("storage", declared.storage), ("rootfs_gib", declared.rootfs_gib)):
        if not value:
            raise KproError(declared.name, f"it does not exist, and {name} is not declared", f"Declare {name}, it is needed to make it")
    changes: list[Change] = []
    notes: list[str] = []
    volume = stores.template_volume(declared.template, declared.template_storage)
    template_store = stores.check_storage(volume.split(":")[0], "vztmpl", facts.storages, facts.login)
    root_store = stores.check_storage(declared.storage, "rootdir", facts.storages, facts.login)
    stored = next((row for row in facts.stored if row.get("volid") == volume), None)
    if stored is None:
        if facts.download is None:
            stores.check_offer(volume, facts.stored, facts.offered, facts.index_failure)
        changes.append(_fetch(volume, str(template_store["storage"]), facts.download))
    notes.append(stores.check_space(root_store, float(declared.rootfs_gib or 0), int((stored or {}).get("size") or 0)))
    gpus = checks.choose_gpus(declared, facts)
    notes += checks.gpu_notes(declared, facts)
    wanted = wanted_keys(declared, cfg.Config({}), gpus)
    devices = {key: value for key, value in wanted.items() if value is not None and cfg.kind_of(key) == "dev"}
    notes += checks.check_devices(devices, facts, declared.require_devices)
    if wanted.get("net0"):
        checks.check_bridge("net0", str(wanted["net0"]), facts)
    notes += checks.check_map(declared, facts, (), declared.raw_lines, declared.unprivileged, starts=True)
    folders, folder_notes = checks.mount_findings(declared.mounts or (), facts, declared.unprivileged, declared.raw_lines)
    parameters = create_parameters(declared, wanted, volume)
    changes += _make_folders(folders, root_ids(declared.unprivileged, declared.raw_lines), declared)
    changes.append(
        Change(
            f"Create {declared.name} from {stores.template_file(volume)} on {declared.storage} ({declared.rootfs_gib} GiB)",
            None,
            "".join(f"\n    {key}: {value}" for key, value in parameters.items()),
            ("create", parameters),
        )
    )
    changes += _declared_raw(declared, ())
    if declared.state == "started":
        changes.append(_start(declared))
    return LxcPlan(tuple(changes), tuple(note for note in (*notes, *folder_notes) if note), gpus)


def _plan_present(declared: Declared, facts: Facts, present: Present) -> LxcPlan:
    checks.check_half_made(declared, present, facts.node)
    adopted = checks.check_owner(declared, present)
    if declared.state == "absent":
        return _plan_removal(declared, present)
    gpus = checks.choose_gpus(declared, facts)
    unprivileged = cfg.prop.flag(present.config.keys.get("unprivileged", "0")) == "1"
    stored = present.config.raw
    raw = split_raw(stored, facts.majors, not unprivileged) if gpus is not None else RawSplit((), stored)
    settings = cfg.differences(present.config, wanted_keys(declared, present.config, gpus))
    notes = [checks.check_privilege(declared, present, adopted), *checks.gpu_notes(declared, facts), *checks.cover_notes(declared, facts, raw.kept)]
    after = lines_after(raw.kept, declared.raw_lines)
    folders, folder_notes = checks.mount_findings(declared.mounts or (), facts, unprivileged, after)
    resize, size_notes = _resize(declared, present)
    stale = checks.stale_devices(present, facts) if gpus is not None else {}
    strange = checks.stale_mounts(present, facts)
    # A restart for a mount that is not declared here is not ours to make.
    ours = {f"/{mount.target.strip('/')}" for mount in declared.mounts or ()}
    stale |= {row["key"]: strange[row["key"]] for row in checks.binds(present.active) if row["key"] in strange and f"/{row['mp'].strip('/')}" in ours}
    waiting = tuple(sorted({*_waiting(declared, facts, present, settings), *stale}))
    raw_work = [*(_remove_raw(declared, line, reason) for line, reason in raw.replaced), *_declared_raw(declared, raw.kept)]
    work = [
        *_make_folders(folders, root_ids(unprivileged, after), declared),
        *raw_work,
        *(_set(declared, setting, gpus or ()) for setting in settings),
        *resize,
    ]
    late = ("dev[n]",) * bool(raw.replaced) + ("raw lines",) * (len(raw_work) > len(raw.replaced))
    changes, waits = _with_power(declared, facts, present, work, waiting, late)
    changes = [checks.take_over(declared, present), *changes] if adopted else changes
    starts = any(change.action[0] == "start" for change in changes)
    notes += checks.check_map(declared, facts, stored, after, unprivileged, starts)
    if any(change.action[0] == "stop" for change in changes):
        notes.append(holding.ends_with_restart(declared.name, facts.holders))
    elif adopted:
        notes += holding.started_by_hand(declared.vmid, facts.node, facts.holders)
    if changes:
        checks.check_lock(declared, present)
        notes += _check_result(declared, facts, present, settings)
    notes += [
        *stale.values(),
        *(reason for key, reason in strange.items() if key not in stale),
        *folder_notes,
        *size_notes,
        *_foreign_pending(present, settings, waiting),
    ]
    if waits:
        notes.append(f"{declared.name} needs a restart so that {', '.join(waits)} take effect; allow it with restart: true")
    return LxcPlan(tuple(changes), tuple(note for note in notes if note), gpus, waits)


def _plan_removal(declared: Declared, present: Present) -> LxcPlan:
    checks.check_lock(declared, present)
    if cfg.prop.flag(present.config.keys.get("protection", "0")) == "1":
        raise KproError(declared.name, "it is protected against removal", f"'pct set {declared.vmid} --protection 0' on the node")
    stop = [_stop(declared, "to remove it")] if present.running else []
    before = "".join(f"\n    {key}: {value}" for key, value in sorted(present.config.keys.items()))
    return LxcPlan((*stop, Change(f"Remove {declared.name} with its volumes", before, None, ("destroy",))))


def _with_power(
    declared: Declared, facts: Facts, present: Present, work: list[Change], waiting: tuple[str, ...], raw: tuple[str, ...]
) -> tuple[list[Change], tuple[str, ...]]:
    """Put stop and start around the work where they are due; return the steps and the keys that wait for a restart.

    :param raw: what raw lines are edited for; a running container does not show whether it was started with them, so that such
        an edit never waits.
    """
    if declared.state == "stopped":
        return ([_stop(declared, "as declared"), *work] if present.running else work), ()
    if not present.running:
        return ([*work, _start(declared)] if declared.state == "started" else work), ()
    if not (waiting or raw):
        return work, ()
    if declared.restart:
        return [_stop(declared, f"to apply {', '.join((*raw, *waiting))}"), *work, _start(declared)], ()
    if raw:
        reason = "its raw lxc lines have to change, which needs a stop and a start"
        if "dev[n]" in raw:
            reason = "it passes NVIDIA devices by raw lxc lines, and replacing them by dev[n] needs a stop and a start"
        by_hand = "".join(f". {sentence}" for sentence in holding.started_by_hand(declared.vmid, facts.node, facts.holders))
        raise KproError(declared.name, reason + by_hand, "Allow it with restart: true, or stop the container first")
    return work, waiting


def _waiting(declared: Declared, facts: Facts, present: Present, settings: t.Sequence[cfg.Setting]) -> tuple[str, ...]:
    if not present.running:
        return ()
    managed = {key: present.config.keys.get(key) for key in wanted_keys(declared, present.config, checks.choose_gpus(declared, facts))}
    # A removal that is pending already is in neither the stored keys nor the wanted ones.
    kinds = {cfg.kind_of(key) for key in managed} | ({"dev"} if declared.gpus is not None else set())
    kinds |= {"mp"} if declared.mounts is not None else set()
    pending = {key: None for key in present.active.keys if key not in present.config.keys and cfg.kind_of(key) in kinds}
    after = {**pending, **managed, **{setting.key: setting.after for setting in settings}}
    late = (key for key, value in after.items() if cfg.needs_restart(key, present.active.keys.get(key), value, facts.pve_major))
    return tuple(sorted(key for key in late if not _only_foreign(declared, key, present.active.keys.get(key), after[key])))


def _only_foreign(declared: Declared, key: str, running: str | None, after: str | None) -> bool:
    """Tell whether all that waits in a key is parts of it that nobody declared (a feature set by hand): no affair of this play."""
    if running is None or after is None:
        return False
    kind = cfg.kind_of(key)
    if kind == "features":
        names: t.Iterable[str] = declared.features or {}
        old, new = (prop.parse(value, prop.FEATURES) for value in (running, after))
        return all(prop.flag(old.get(name, "0")) == prop.flag(new.get(name, "0")) for name in names)
    if kind == "mp":
        old, new = (prop.parse(value, prop.MOUNT) for value in (running, after))
        mount = next((mount for mount in declared.mounts or () if mount.target.rstrip("/") == new.get("mp", "").rstrip("/")), None)
        if mount is None:
            return False
        flags = {"ro": mount.read_only, "shared": mount.shared, "backup": mount.backup}
        mine = [name for name, wanted in flags.items() if wanted is not None]
        same_place = all(old.get(name) == new.get(name) for name in ("volume", "mp"))
        return same_place and all(prop.flag(old.get(name, "0")) == prop.flag(new.get(name, "0")) for name in mine)
    return False


def _foreign_pending(present: Present, settings: t.Sequence[cfg.Setting], waiting: tuple[str, ...]) -> list[str]:
    keys = {*present.config.keys, *present.active.keys} - {setting.key for setting in settings} - {*waiting, "lock"}
    late = sorted(key for key in keys if not cfg.same(key, present.config.keys.get(key), present.active.keys.get(key)))
    return [f"Pending in the configuration, not declared here: {', '.join(late)}; the next start applies them"] if late else []


def _check_result(declared: Declared, facts: Facts, present: Present, settings: t.Sequence[cfg.Setting]) -> list[str]:
    """Check the configuration as it will be; return sentences on what is not there yet."""
    after = {**present.config.keys, **{setting.key: setting.after for setting in settings}}
    devices = {key: value for key, value in after.items() if value is not None and cfg.kind_of(key) == "dev"}
    for setting in settings:
        if setting.after is not None and cfg.kind_of(setting.key) == "net":
            checks.check_bridge(setting.key, setting.after, facts)
    return checks.check_devices(devices, facts, declared.require_devices)


def _fetch(volume: str, storage: str, running: Work | None) -> Change:
    name = stores.template_file(volume)
    sentence = f"Download template {name} to {storage}"
    if running is not None:
        sentence = f"Wait for the download of template {name} to {storage} that runs already{f' (task {running.upid})' if running.upid else ''}"
    return Change(sentence, None, volume, ("template", storage, name))


def _make_folders(paths: t.Iterable[str], ids: tuple[int, int], declared: Declared) -> list[Change]:
    written = {mount.source for mount in declared.mounts or () if not mount.read_only}
    found = []
    for path in dict.fromkeys(paths):
        if path in written:
            sentence, owner = f"Make the folder {path} on the node for the container's root ({ids[0]}:{ids[1]})", ids
        else:
            # A container that only reads a folder can't change it for others.
            sentence, owner = f"Make the folder {path} on the node for its root (0:0), the container only reads it", (0, 0)
        found.append(Change(sentence, None, "0755", ("folder", path, *owner)))
    return found


def _resize(declared: Declared, present: Present) -> tuple[list[Change], list[str]]:
    rootfs = present.config.keys.get("rootfs", "")
    now = size_gib(rootfs)
    if declared.rootfs_gib is None or now is None or now == declared.rootfs_gib:
        return [], []
    if now > declared.rootfs_gib:
        return [], [f"rootfs of {declared.name} has {now:g} GiB, declared are {declared.rootfs_gib}; it is never shrunk"]
    sentence = f"Grow rootfs of {declared.name} from {now:g} to {declared.rootfs_gib} GiB"
    return [Change(sentence, f"{now:g} GiB", f"{declared.rootfs_gib} GiB", ("resize", "rootfs", f"{declared.rootfs_gib}G"))], []


def _set(declared: Declared, setting: cfg.Setting, gpus: t.Sequence[Gpu]) -> Change:
    action = ("set", setting.key, setting.after)
    if setting.after is None:
        return Change(f"Remove {setting.key} of {declared.name}", setting.before, None, action)
    kind = cfg.kind_of(setting.key)
    path = device_path(setting.after) if kind == "dev" else ""
    label = next((f" to {gpu.label}" for gpu in gpus if gpu.node == path), f" to {path}" if path else "")
    return Change(f"Set {setting.key} of {declared.name}{label}", setting.before, setting.after, action)


def _remove_raw(declared: Declared, line: RawLine, reason: str) -> Change:
    text = f"{line[0]}: {line[1]}"
    return Change(f"Remove the raw line '{text}' of {declared.name} ({reason})", text, None, ("raw", "remove", line))


def _declared_raw(declared: Declared, stored: t.Sequence[RawLine]) -> list[Change]:
    edit = edit_for(stored, declared.raw_lines)
    new = [(f"{key}: {value}", ("raw", "add", (key, value))) for key, value in edit.new]
    return [
        *(_remove_raw(declared, line, f"not among the declared lines of {line[0]}") for line in edit.gone),
        *(Change(f"Add the raw line '{text}' to {declared.name}", None, text, action) for text, action in new),
    ]


def _start(declared: Declared) -> Change:
    return Change(f"Start {declared.name}", "stopped", "running", ("start",))


def _stop(declared: Declared, reason: str) -> Change:
    return Change(f"Stop {declared.name} {reason}", "running", "stopped", ("stop",))
