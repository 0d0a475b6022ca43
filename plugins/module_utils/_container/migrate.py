# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves a container to another node of its cluster, stopped, and leaves it stopped there.

Sources: PVE::LXC::Migrate refuses local bind and device mounts that are not marked ``shared=1`` and copies nothing of them; it
does not look at ``dev[n]``, whose nodes are only missed by the start on the other side. So bind mounts are marked for the time of
the move, nothing is taken out of the configuration that an interruption could lose, and the start is left to whoever declares
the devices of the new node.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import Change, plan_result
from .._core.errors import KproError
from .._pve import answers as text
from .._pve import config as cfg
from .._pve import property as prop
from .._pve.api_edge import PveApi, PveError, good
from .._pve.tasks_edge import Tasks
from .declared import OWNER_TAG

WRITE_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Wish:
    """What is asked for.

    :param target: name of the node to which the container goes.
    :param target_storage: storage of the volumes there; empty: the one of the same name.
    :param adopt: whether a container that is not ours may be moved.
    """

    vmid: int
    target: str
    target_storage: str = ""
    adopt: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the container is and how it stands there."""

    node: str
    running: bool
    lock: str
    managed_by_ha: bool
    config: cfg.Config


def marked(config: cfg.Config, shared: bool) -> dict[str, str]:
    """Return the mount points of node folders with their mark set or taken off, those that have to change only."""
    found = {}
    for key, value in config.numbered("mp").items():
        parts = prop.parse(value, prop.MOUNT)
        if parts.get("volume", "").startswith("/") and (prop.flag(parts.get("shared", "0")) == "1") != shared:
            found[key] = prop.merged(value, {"shared": "1" if shared else None}, prop.MOUNT)
    return found


def migration_plan(wish: Wish, place: Place) -> list[Change]:
    """Return the steps of the move; none if the container is there already.

    :raises KproError: if it must not or cannot be moved.
    """
    what = f"container {wish.vmid} on {place.node}"
    if place.node == wish.target:
        return []
    if OWNER_TAG not in cfg.split_tags(place.config.keys.get("tags", "")) and not wish.adopt:
        raise KproError(what, f"it lacks the tag {OWNER_TAG}, so it is not ours", "Allow it with gpu_container__adopt: true if it is the one that is meant")
    if place.lock:
        raise KproError(what, f"it is locked ({place.lock})", "Wait for the end of that work; a lock that was left behind is taken off by 'pct unlock'")
    if place.managed_by_ha:
        raise KproError(what, "the cluster's HA manager decides where it is", f"Move it with 'ha-manager migrate ct:{wish.vmid} {wish.target}', then deploy")
    changes = []
    if place.running:
        changes.append(Change(f"Shut down container {wish.vmid} on {place.node}", "running", "stopped", ("shutdown",)))
    mounts = marked(place.config, shared=True)
    if mounts:
        before = {key: place.config.keys[key] for key in mounts}
        names = ", ".join(mounts)
        changes.append(Change(f"Mark {names} as shared for the time of the move; its content does not travel", before, mounts, ("mark", mounts)))
    changes.append(Change(f"Move container {wish.vmid} with its volumes to {wish.target}", place.node, wish.target, ("migrate",)))
    if mounts:
        changes.append(Change(f"Take the mark off {', '.join(mounts)} again", mounts, before, ("unmark", before)))
    return changes


class Migration:
    """One container's move through one way to the cluster's API."""

    def __init__(self, wish: Wish, api: PveApi, task_timeout_s: float, shutdown_timeout_s: int) -> None:
        self._wish = wish
        self._api = api
        self._task_timeout_s = task_timeout_s
        self._shutdown_timeout_s = shutdown_timeout_s

    def run(self, check_mode: bool) -> dict[str, t.Any]:
        """Return the module's result; in check mode nothing is changed.

        :raises KproError: if the container is absent, must not be moved, or a step fails.
        """
        place = self._settled(check_mode)
        changes = migration_plan(self._wish, place)
        if not check_mode:
            for change in changes:
                name, *arguments = change.action
                getattr(self, f"_do_{name}")(place, *arguments)
        return {**plan_result(changes), "vmid": self._wish.vmid, "node": self._wish.target, "moved_from": place.node if changes else ""}

    def _settled(self, check_mode: bool) -> Place:
        """Observe; a move that still runs (of a run that was cut off) is waited for first."""
        place = self._place()
        if place.lock == "migrate" and not check_mode:
            tasks = Tasks(self._api, place.node, self._task_timeout_s)
            upid = tasks.running(self._wish.vmid)
            if upid:
                tasks.follow(f"migration of container {self._wish.vmid}", upid)
                place = self._place()
        return place

    def _place(self) -> Place:
        rows = self._api.get("/cluster/resources", {"type": "vm"}) or []
        row = next((row for row in rows if int(row.get("vmid", 0)) == self._wish.vmid), None)
        if row is None:
            raise KproError(f"container {self._wish.vmid}", "the cluster has none with this id", "Deploy instead: there is nothing to move")
        if row.get("type") != "lxc":
            raise KproError(f"guest {self._wish.vmid}", f"it is a {row.get('type')} guest on {row.get('node')}", "Choose another id (pct_vmid)")
        base = f"/nodes/{row['node']}/lxc/{self._wish.vmid}"
        config, status = (good(answer) for answer in self._api.get_all([(f"{base}/config", {"current": 1}), (f"{base}/status/current", {})]))
        managed = (status.get("ha") or {}).get("managed")
        return Place(
            str(row["node"]),
            status.get("status") == "running",
            str(status.get("lock") or ""),
            str(managed or "0") not in ("0", "False"),
            cfg.read_config(config),
        )

    def _do_shutdown(self, place: Place) -> None:
        what = f"shutdown of container {self._wish.vmid} on {place.node}"
        path = f"/nodes/{place.node}/lxc/{self._wish.vmid}/status/shutdown"
        try:
            self._tasks(place.node).run(what, path, {"timeout": self._shutdown_timeout_s})
        except PveError as error:
            if "not running" not in error.reason:
                raise PveError(what, error.reason, f"Look what holds it up inside, or 'pct stop {self._wish.vmid}' on {place.node}") from error

    def _do_mark(self, place: Place, mounts: dict[str, str]) -> None:
        self._write(place.node, mounts)

    def _do_migrate(self, place: Place) -> None:
        storage = {"target-storage": self._wish.target_storage} if self._wish.target_storage else {}
        path = f"/nodes/{place.node}/lxc/{self._wish.vmid}/migrate"
        what = f"migration of container {self._wish.vmid} from {place.node} to {self._wish.target}"
        self._tasks(place.node).run(what, path, {"target": self._wish.target, **storage})

    def _do_unmark(self, _place: Place, mounts: dict[str, str]) -> None:
        self._write(self._wish.target, mounts)

    def _write(self, node: str, mounts: dict[str, str]) -> None:
        path = f"/nodes/{node}/lxc/{self._wish.vmid}/config"
        for attempt in range(1, WRITE_TRIES + 1):
            try:
                self._api.put(path, mounts)
                return
            except PveError as error:
                stored = cfg.read_config(self._api.get(path))
                if all(cfg.same(key, stored.keys.get(key), value) for key, value in mounts.items()):
                    return
                if attempt == WRITE_TRIES or not text.is_lock_timeout(error.reason):
                    raise

    def _tasks(self, node: str) -> Tasks:
        return Tasks(self._api, node, self._task_timeout_s)
