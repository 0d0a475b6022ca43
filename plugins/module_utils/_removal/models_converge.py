# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of model_cleanup: observe, plan, remove."""

from __future__ import annotations

import os
import pathlib
import typing as t

from .._core.changes import Change, plan_result
from .._core.errors import KproError
from .._linux.safe_tree_edge import Folder, open_folder
from .._linux.system_folders import check_source
from .._model import hub_protocol as protocol
from .._model import manifest as manifests
from .._model.store_edge import INCOMING
from .._pve.host_edge import Host
from . import models as removal
from .models import NodeStore, RemovalOptions, Snapshot, shown
from .models_edge import Users, look_at_snapshot, numbers_in, remove_snapshot

Result = tuple[list[Change], list[str]]


def clean_up(options: RemovalOptions, node: str, root: str, *, apply: bool) -> dict[str, t.Any]:
    """Return the module's result; nothing is removed if ``apply`` is false.

    :raises KproError: if somebody else uses what would be removed, or nothing proves that it is this deployment's.
    """
    protocol.check_repository(options.repository)
    changes, notes = _plan(options, node, root)
    if changes and apply:
        _apply(options, root, changes)
        left, _notes = _plan(options, node, root)
        if left:
            raise KproError(left[0].sentence, "it is still to be done after it was done", "Look who changes the folder meanwhile, then run again")
    paths = [f"{one.path}/{shown(path)}" for one in _snapshots(changes) for path, _stat in one.files]
    return {**plan_result(changes), "paths": paths, "notes": notes}


def _plan(options: RemovalOptions, node: str, root: str) -> Result:
    store = removal.node_store(options)
    if store is None:
        return [], [f"The store {options.store} is on no folder of the node: it goes with the container"]
    if store.read_only:
        return [], [f"{store.source} is mounted read-only: it is never removed from here"]
    host = Host(pathlib.Path(root))
    for path in (store.source, store.path):
        check_source(f"mount source '{path}'", path, host.look_at_source(path).real)
    folder = open_folder(store.path, root)
    if folder is None:
        return [], []
    with folder:
        return _plan_store(options, store, folder, Users(node, root))


def _plan_store(options: RemovalOptions, store: NodeStore, folder: Folder, users: Users) -> Result:
    names = folder.names()
    wanted = {manifests.folder_name(options.repository, commit): commit for commit in options.commits}
    found = [one for name, commit in wanted.items() if (one := look_at_snapshot(folder, name, options.repository, commit))]
    others = [name for name in names if removal.is_snapshot_of(name, options.repository) and name not in wanted]
    if others and not wanted:
        raise KproError(
            folder.path,
            f"it is not known at which commit this deployment uses {options.repository}; there are {', '.join(map(shown, others))}",
            "Nothing was removed. Name the commit (hf_model__revision, 40 digits)",
        )
    real = folder.path
    reason = users.shared_reason(real, store.shared)
    for snapshot in (one for one in found if one.files):
        removal.check_users(snapshot.path, _users_of(options, users, folder, snapshot, reason))
        removal.check_shared(snapshot.path, reason, options.allow_shared)
    changes = [removal.removal(snapshot) for snapshot in found if snapshot.files]
    gone = {os.path.basename(one.path) for one in found if not one.stays}
    left = [name for name in names if name not in gone and not (name == INCOMING and _is_empty(folder, name))]
    changes += _plan_folder(options, folder, users, left, bool(reason))
    notes = [f"{real}/{shown(name)} stays: {_why(name, options, found)}" for name in left[: removal.MANY]]
    notes += [f"{one.path}: {', '.join(one.stays[: removal.MANY])} stay" for one in found if one.stays]
    return changes, notes


def _users_of(options: RemovalOptions, users: Users, folder: Folder, snapshot: Snapshot, shared_reason: str) -> list[str]:
    return [
        *options.other_users,
        *users.by_configuration(snapshot.path, options.leaving, all_nodes=bool(shared_reason)),
        *users.by_mount(snapshot.path),
        *users.by_open_file(numbers_in(folder, snapshot)),
    ]


def _plan_folder(options: RemovalOptions, folder: Folder, users: Users, left: t.Sequence[str], shared: bool) -> list[Change]:
    """Return the removal of the store's own folder, if nothing is left in it and nobody needs it."""
    if left or folder.linked or options.other_users or (shared and not options.allow_shared):
        return []
    mount = users.mount_of(folder.path)
    if mount is None or mount.point == folder.path or users.by_configuration(folder.path, options.leaving, all_nodes=shared) or users.by_mount(folder.path):
        return []
    return [Change(f"Remove the empty folder {folder.path}", folder.path, None, ("folder", folder.path))]


def _apply(options: RemovalOptions, root: str, changes: t.Sequence[Change]) -> None:
    store = removal.node_store(options)
    folder = open_folder(store.path, root) if store else None
    if folder is None:
        return
    with folder:
        for snapshot in _snapshots(changes):
            remove_snapshot(folder, snapshot)
        for change in changes:
            if change.action[0] == "folder":
                folder.remove_if_empty(INCOMING)
                parent = open_folder(os.path.dirname(folder.path), root)
                if parent:
                    with parent:
                        parent.remove_if_empty(os.path.basename(folder.path))


def _snapshots(changes: t.Sequence[Change]) -> list[Snapshot]:
    return [change.action[1] for change in changes if change.action[0] == "snapshot"]


def _is_empty(folder: Folder, name: str) -> bool:
    inner = folder.enter(name)
    if inner is None:
        return False
    with inner:
        return not inner.names()


def _why(name: str, options: RemovalOptions, found: t.Sequence[Snapshot]) -> str:
    if any(os.path.basename(one.path) == name for one in found):
        return "it holds more than the snapshot"
    if removal.is_snapshot_of(name, options.repository):
        return "it is another commit than the inventory's"
    return "it holds downloads that were not finished" if name == INCOMING else "it is not of this deployment"
