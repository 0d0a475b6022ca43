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
import time
import typing as t

from .._core.changes import Change, plan_result
from .._core.errors import KproError
from .._linux.command_edge import Command
from .._pve import answers as text
from .._pve import config as cfg
from .._pve import property as prop
from .._pve.api_edge import PveApi, PveError, good
from .._pve.call_record import Record
from .._pve.calls_edge import Calls, boot_id
from .._pve.tasks_edge import Tasks
from .declared import OWNER_TAG
from .facts import Work
from .observe import volumes_of

WRITE_TRIES = 3
SETTLE_TRIES = 3


@dataclasses.dataclass(frozen=True)
class MoveOptions:
    """The wanted move.

    :param target: name of the node to which the container goes.
    :param target_storage: storage of the volumes there; empty: the one of the same name.
    :param adopt: whether a container that is not ours may be moved.
    """

    vmid: int
    target: str
    target_storage: str = ""
    adopt: bool = False


@dataclasses.dataclass(frozen=True)
class Whereabouts:
    """Where the container is and how it stands there.

    :param work: what moves it now; how it stands is known after that only.
    """

    node: str
    running: bool
    lock: str
    managed_by_ha: bool
    config: cfg.Config
    work: Work | None = None


@dataclasses.dataclass(frozen=True)
class Left:
    """The remains of an earlier, interrupted move of ours, from its record on this node.

    :param here: the node on which the record is, and on which a lock can be taken off.
    :param ours: whether there is such a record of a move of this container to this target.
    :param marks: mount points as they were before they were marked.
    :param copies: volumes on the target that it had copied.
    """

    here: str = ""
    ours: bool = False
    marks: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: tuple[str, ...] = ()


def marked(config: cfg.Config, shared: bool) -> dict[str, str]:
    """Return the mount points of node folders with their mark set or taken off, those that have to change only."""
    found = {}
    for key, value in config.numbered("mp").items():
        parts = prop.parse(value, prop.MOUNT)
        if parts.get("volume", "").startswith("/") and (prop.flag(parts.get("shared", "0")) == "1") != shared:
            found[key] = prop.merged(value, {"shared": "1" if shared else None}, prop.MOUNT)
    return found


def still_marked(config: cfg.Config, marks: t.Mapping[str, str]) -> dict[str, str]:
    """Return which mount points carry the mark of an earlier move, each as it was before."""
    return {
        key: before for key, before in marks.items() if key in config.keys and cfg.same(key, config.keys[key], prop.merged(before, {"shared": "1"}, prop.MOUNT))
    }


def migration_plan(options: MoveOptions, place: Whereabouts, left: Left = Left()) -> list[Change]:
    """Return the steps of the move; none if the container is there already and nothing of an earlier move is left.

    :raises KproError: if it must not or cannot be moved.
    """
    if place.work is not None:
        task = f" (task {place.work.upid})" if place.work.upid else ""
        return [Change(f"Wait until the {place.work.words} has ended{task}: it runs already", "running", "ended", ("wait",))]
    unlock = _unlock(options, place, left)
    earlier = still_marked(place.config, left.marks)
    if place.node == options.target:
        return [*unlock, *_unmark(earlier)]
    _check_movable(options, place)
    changes = [*unlock]
    if left.copies:
        names = ", ".join(left.copies)
        changes.append(Change(f"Remove what a move that was cut off had copied to {options.target}: {names}", names, None, ("sweep", left.copies)))
    if place.running:
        changes.append(Change(f"Shut down container {options.vmid} on {place.node}", "running", "stopped", ("shutdown",)))
    mounts = marked(place.config, shared=True)
    before = {**{key: place.config.keys[key] for key in mounts}, **earlier}
    if mounts:
        names = ", ".join(mounts)
        old = {key: place.config.keys[key] for key in mounts}
        changes.append(Change(f"Mark {names} as shared for the time of the move; its content does not travel", old, mounts, ("mark", mounts, before)))
    changes.append(Change(f"Move container {options.vmid} with its volumes to {options.target}", place.node, options.target, ("migrate", before)))
    return [*changes, *_unmark(before)]


def _check_movable(options: MoveOptions, place: Whereabouts) -> None:
    what = f"container {options.vmid} on {place.node}"
    if OWNER_TAG not in cfg.split_tags(place.config.keys.get("tags", "")) and not options.adopt:
        raise KproError(what, f"it lacks the tag {OWNER_TAG}, so it is not ours", "Allow it with gpu_container__adopt: true if it is the one that is meant")
    if place.lock and place.lock != "migrate":
        raise KproError(
            what,
            f"it is locked ({place.lock})",
            f"Wait for the end of that work; a lock that was left behind is taken off by 'pct unlock {options.vmid}' on {place.node}",
        )
    if place.managed_by_ha:
        raise KproError(
            what, "the cluster's HA manager decides where it is", f"Move it with 'ha-manager migrate ct:{options.vmid} {options.target}', then deploy"
        )


def _unlock(options: MoveOptions, place: Whereabouts, left: Left) -> list[Change]:
    """Return the step that takes off the lock of a move that was cut off, if it was ours and can be done from here.

    :raises KproError: with the commands otherwise.
    """
    if place.lock != "migrate":
        return []
    if left.ours and left.here == place.node:
        return [Change(f"Take off the lock that a move of container {options.vmid} left which was cut off", "lock: migrate", None, ("unlock",))]
    why = f"{left.here} can't take it off there" if left.ours else f"{left.here or 'this node'} has no record that it was ours"
    copies = ", ".join(f"'pvesm free {volume}'" for volume in left.copies)
    raise KproError(
        f"container {options.vmid} on {place.node}",
        f"it is locked (migrate), and no task moves it: a move was cut off; {why}",
        f"On {place.node}: 'pct unlock {options.vmid}'{f'; on {options.target}, where copies are left: {copies}' if copies else ''}; then run again",
    )


def _unmark(before: t.Mapping[str, str]) -> list[Change]:
    if not before:
        return []
    mounts = {key: prop.merged(value, {"shared": "1"}, prop.MOUNT) for key, value in before.items()}
    return [Change(f"Take the mark off {', '.join(before)} again", mounts, dict(before), ("unmark", dict(before)))]


class Migration:
    """One container's move through one way to the cluster's API.

    :param calls: the calls that were made on this node, with their records.
    :param command: runs programs on this node.
    :param here: name of this node.
    """

    def __init__(self, options: MoveOptions, api: PveApi, calls: Calls, command: Command, here: str, task_timeout_s: float, shutdown_timeout_s: int) -> None:
        self._options = options
        self._api = api
        self._calls = calls
        self._command = command
        self._here = here
        self._task_timeout_s = task_timeout_s
        self._shutdown_timeout_s = shutdown_timeout_s

    def run(self, check_mode: bool) -> dict[str, t.Any]:
        """Return the module's result; in check mode nothing is changed.

        :raises KproError: if the container is absent, must not be moved, or a step fails.
        """
        place = self._settled(check_mode)
        changes = migration_plan(self._options, place, self._left(place))
        if not check_mode:
            for change in changes:
                name, *arguments = change.action
                getattr(self, f"_do_{name}")(place, *arguments)
            self._calls.settle(self._record_name)
        return {**plan_result(changes), "vmid": self._options.vmid, "node": self._options.target, "moved_from": place.node if changes else ""}

    @property
    def _record_name(self) -> str:
        return f"migrate-{self._options.vmid}"

    def _settled(self, check_mode: bool) -> Whereabouts:
        """Observe; what still works on the container (for a run that was cut off, or for somebody else) is waited for first."""
        if not check_mode:
            self._tasks(self._here).await_earlier(self._options.vmid)
        for _attempt in range(SETTLE_TRIES):
            place = self._place()
            work = self._work(place)
            if work is None or check_mode:
                return dataclasses.replace(place, work=work)
            if work.upid:
                self._tasks(place.node).follow(work.words, work.upid)
            self._tasks(self._here).await_earlier(self._options.vmid)
        raise KproError(f"container {self._options.vmid}", "one task after the other works on it", "Wait until nobody else works on it, then run again")

    def _work(self, place: Whereabouts) -> Work | None:
        tasks = self._tasks(place.node)
        earlier = tasks.earlier(self._options.vmid)
        if earlier is not None:
            return Work(earlier.words, earlier.upid)
        upid = tasks.running(self._options.vmid) if place.lock == "migrate" else ""
        return Work(f"migration of container {self._options.vmid}", upid) if upid else None

    def _left(self, place: Whereabouts) -> Left:
        """Return what the record of an earlier move says is left; the lock is only looked at where one is."""
        record = self._calls.record(self._record_name)
        if record is None or record.ended or record.details.get("target") != self._options.target or place.work is not None:
            return Left(self._here)
        marks, before = record.details.get("marks") or {}, record.details.get("volumes")
        ours = place.lock != "migrate" or not self._others(record, place)
        copies: tuple[str, ...] = ()
        if ours and before is not None and place.node != self._options.target:
            now = volumes_of(self._api, self._options.target, self._options.vmid, with_shared=False)
            copies = tuple(volume for volume in now if volume not in before)
        return Left(self._here, ours, marks, copies)

    def _others(self, record: Record, place: Whereabouts) -> bool:
        """Tell whether somebody else moved the container after the move that the record is of."""
        nodes = {record.node or place.node, place.node}
        rows = [row for node in nodes for row in self._tasks(node).history(self._options.vmid)]
        later = [row for row in rows if row.get("type") == "vzmigrate" and int(row.get("starttime") or 0) >= int(record.began_s)]
        return any(row.get("upid") != record.upid for row in later) if record.upid else len(later) > 1

    def _place(self) -> Whereabouts:
        rows = self._api.get("/cluster/resources", {"type": "vm"}) or []
        row = next((row for row in rows if int(row.get("vmid", 0)) == self._options.vmid), None)
        if row is None:
            raise KproError(f"container {self._options.vmid}", "the cluster has none with this id", "Deploy instead: there is nothing to move")
        if row.get("type") != "lxc":
            raise KproError(f"guest {self._options.vmid}", f"it is a {row.get('type')} guest on {row.get('node')}", "Choose another id (pct_vmid)")
        base = f"/nodes/{row['node']}/lxc/{self._options.vmid}"
        config, status = (good(answer) for answer in self._api.get_all([(f"{base}/config", {"current": 1}), (f"{base}/status/current", {})]))
        managed = (status.get("ha") or {}).get("managed")
        return Whereabouts(
            str(row["node"]),
            status.get("status") == "running",
            str(status.get("lock") or ""),
            str(managed or "0") not in ("0", "False"),
            cfg.read_config(config),
        )

    def _do_unlock(self, _place: Whereabouts) -> None:
        self._command.check(["pct", "unlock", str(self._options.vmid)])

    def _do_sweep(self, _place: Whereabouts, copies: t.Sequence[str]) -> None:
        node = self._options.target
        for volume in copies:
            path = f"/nodes/{node}/storage/{volume.partition(':')[0]}/content/{volume}"
            self._tasks(node).run(f"removal of {volume} on {node}", path, {}, verb="delete")

    def _do_shutdown(self, place: Whereabouts) -> None:
        what = f"shutdown of container {self._options.vmid} on {place.node}"
        path = f"/nodes/{place.node}/lxc/{self._options.vmid}/status/shutdown"
        try:
            self._tasks(place.node).run(what, path, {"timeout": self._shutdown_timeout_s})
        except PveError as error:
            if "not running" not in error.reason:
                if not error.details.get("upid"):
                    raise
                raise PveError(what, error.reason, f"Look what holds it up inside, or 'pct stop {self._options.vmid}' on {place.node}") from error

    def _do_mark(self, place: Whereabouts, mounts: dict[str, str], before: dict[str, str]) -> None:
        # Written down first: whatever ends this run, the next one knows what the mount points were.
        record = Record(self._record_name, "migrate", self._options.vmid, place.node, boot_id(), time.time(), details=self._details(before))
        self._calls.note(record)
        self._write(place.node, mounts)

    def _do_migrate(self, place: Whereabouts, before: dict[str, str]) -> None:
        storage = {"target-storage": self._options.target_storage} if self._options.target_storage else {}
        path = f"/nodes/{place.node}/lxc/{self._options.vmid}/migrate"
        what = f"migration of container {self._options.vmid} from {place.node} to {self._options.target}"
        params = {"target": self._options.target, **storage}
        self._tasks(place.node).run(what, path, params, details=self._details(before), settle=False)

    def _details(self, marks: dict[str, str]) -> dict[str, t.Any]:
        volumes = volumes_of(self._api, self._options.target, self._options.vmid, with_shared=False)
        return {"target": self._options.target, "marks": marks, "volumes": list(volumes)}

    def _do_unmark(self, _place: Whereabouts, mounts: dict[str, str]) -> None:
        self._write(self._options.target, mounts)

    def _write(self, node: str, mounts: dict[str, str]) -> None:
        path = f"/nodes/{node}/lxc/{self._options.vmid}/config"
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
        return Tasks(self._api, node, self._task_timeout_s, self._calls, "task_timeout_s")
