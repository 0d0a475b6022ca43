# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out the plan for a container."""

from __future__ import annotations

import itertools
import time
import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .._linux.command_edge import Command
from .._pve import answers as text
from .._pve import config as cfg
from .._pve import property as prop
from .._pve import raw as _pve_raw
from .._pve.api_edge import PveApi, PveError
from .._pve.call_record import work_of
from .._pve.host_edge import Host
from .._pve.raw_declared import add_lines
from .._pve.remnant import WORKS, Remnant, refusal
from .._pve.tasks_edge import Tasks
from .observe import Observer

WRITE_TRIES = 3
STATE_WAIT_S = 30.0  # HA and the post-stop hook act a moment after their task has ended


class Applier:
    """Applies changes to one container on one node, in order.

    :param host: the node's files; None if this process is not on the node.
    :param shutdown_timeout_s: time for the guest to shut down; it is never killed.
    :param command: runs programs on the node; None likewise.
    :param may_restart: whether a change that the running container refuses may be made while it is down.
    """

    def __init__(
        self,
        vmid: int,
        node: str,
        api: PveApi,
        tasks: Tasks,
        observer: Observer,
        host: Host | None,
        shutdown_timeout_s: int,
        command: Command | None = None,
        may_restart: bool = False,
    ) -> None:
        self._vmid = vmid
        self._node = node
        self._api = api
        self._tasks = tasks
        self._observer = observer
        self._host = host
        self._shutdown_timeout_s = shutdown_timeout_s
        self._command = command
        self._may_restart = may_restart
        self.notes: list[str] = []
        self.added: list[Change] = []

    def apply(self, changes: t.Sequence[Change]) -> None:
        """Carry out changes; neighbouring settings go out in one call. A container that was stopped for them is started again on failure.

        :raises KproError: at the first change that fails.
        """
        stopped_by_us = False
        try:
            for name, group in itertools.groupby(changes, key=lambda change: change.action[0]):
                steps = [change.action[1:] for change in group]
                if name == "set":
                    stopped_by_us = self._write_hot_or_cold(dict(steps), stopped_by_us)
                    continue
                if name == "raw":
                    self._edit_raw(steps)
                    continue
                for step in steps:
                    getattr(self, f"_do_{name}")(*step)
                stopped_by_us = name == "stop" or (stopped_by_us and name != "start")
            if self.added and stopped_by_us:
                self._do_start()
        except KproError as error:
            if stopped_by_us and (self.added or any(change.action[0] == "start" for change in changes)):
                raise self._up_again(error) from error
            raise

    def _write_hot_or_cold(self, settings: dict[str, str | None], stopped_by_us: bool) -> bool:
        """Write settings, while the container is down if it refuses them running and may be restarted; tell whether it is down now."""
        try:
            self._write(settings)
        except PveError as error:
            if not self._may_restart or stopped_by_us or not text.is_hotplug_refusal(error.reason):
                raise
            keys = ", ".join(sorted(settings))
            self.notes.append(f"container {self._vmid} refused {keys} while it ran ({text.short_reason(error.reason)}); it was stopped and started for it")
            self._do_stop()
            self.added = [
                Change(f"Stop container {self._vmid}, which refused {keys} while it ran", "running", "stopped", ("stop",)),
                Change(f"Start container {self._vmid}", "stopped", "running", ("start",)),
            ]
            try:
                self._write(settings)
            except KproError as second:
                raise self._up_again(second) from second
            return True
        return stopped_by_us

    def _up_again(self, error: KproError) -> KproError:
        try:
            self._do_start()
            after = f"container {self._vmid} was started again as it was before"
        except KproError as second:
            after = f"container {self._vmid} is stopped now, a start failed: {second.reason}"
        return KproError(error.what, f"{error.reason.rstrip('.')}; {after}", error.remedy, **error.details)

    def _do_take_over(self) -> None:
        """Nothing of its own: the tag is one of the settings that follow."""

    def _do_folder(self, path: str, uid: int, gid: int) -> None:
        if self._host is None:
            raise KproError(path, "a folder of the node can only be made on the node itself", "Make it there, or use the way through pvesh")
        self._host.make_folder(path, uid, gid)

    def _do_remnant(self, planned: Remnant) -> None:
        """Remove what a creation or removal of ours left, if it is still what was seen."""
        present = self._observer.present(self._vmid)
        if present is None:
            return
        what = f"what is left of container {self._vmid}"
        found = self._observer.remnant(self._vmid, present)
        if found is None or found.began_s != planned.began_s or self._tasks.running(self._vmid) or self._tasks.earlier(self._vmid):
            raise KproError(what, "another run or somebody else has worked on it meanwhile", "Run again")
        if not found.ours:
            raise refusal(found)
        if self._command is None:
            raise KproError(what, "the API can't take a lock off, only the node itself can", "Use the way through pvesh")
        self.unmount()
        # The lock keeps the id until the volumes are gone.
        for volume in found.volumes:
            storage = volume.partition(":")[0]
            self._tasks.run(f"removal of {volume}", f"/nodes/{self._node}/storage/{storage}/content/{volume}", {}, verb="delete")
        self._command.check(["pct", "unlock", str(self._vmid)])
        self._tasks.run(what, f"/nodes/{self._node}/lxc/{self._vmid}", {"purge": 1}, verb="delete")
        self._tasks.settle(f"{WORKS[found.lock][0]}-{self._vmid}")

    def unmount(self) -> None:
        """Unmount the root file system that a creation which was cut off left mounted; its volume is busy until then."""
        if self._host is None or self._command is None:
            return
        for place in self._host.mounts_below(f"/var/lib/lxc/{self._vmid}/rootfs"):
            self._command.check(["umount", place])

    def _do_template(self, storage: str, name: str) -> None:
        running = self._observer.download(storage, name)
        what = f"download of {name}"
        if running is not None:
            self._await_download(what, running.upid, storage, name)
            if self._observer.has_template(storage, name):
                return
        self._sweep_downloads(storage, name)
        if not any(row.get("template") == name for row in self._observer.offered()):
            raise KproError(f"template '{name}'", "Proxmox does not offer it for download", "See 'pveam available' on the node")
        self._tasks.run(what, f"/nodes/{self._node}/aplinfo", {"storage": storage, "template": name})
        # One that another run began is the same; one that ended by somebody's hand is not there.
        if not self._observer.has_template(storage, name):
            raise KproError(what, f"its task ended well, but the template is not on storage '{storage}'", "Look at the storage, then run again")

    def _await_download(self, what: str, upid: str, storage: str, name: str) -> None:
        if upid:
            self._tasks.follow(what, upid)
        self._tasks.wait(work_of("create", f"/nodes/{self._node}/aplinfo", {"storage": storage, "template": name}).name, what)

    def _sweep_downloads(self, storage: str, name: str) -> None:
        """Remove the part that a download of ours left which was cut off; tell of others."""
        if self._host is None or self._command is None:
            return
        volume = f"{storage}:vztmpl/{name}"
        answer = self._command.run(["pvesm", "path", volume])
        record = self._tasks.record(work_of("create", f"/nodes/{self._node}/aplinfo", {"storage": storage, "template": name}).name)
        upid = record.upid if record and not record.ended else ""
        for part, (process, written_s) in self._host.partial_downloads(answer.stdout.strip()).items() if answer.rc == 0 else ():
            if self._host.look(f"/proc/{process}").kind != "absent":
                continue
            if record and (text.upid_process(upid) == process if upid else written_s >= record.began_s and not record.ended):
                self._host.remove_file(part)
                self.notes.append(f"removed {part}, which a download of ours left that was cut off")
            else:
                self.notes.append(f"{part} on {self._node} was left by a download that was cut off, not by one of ours; 'rm {part}' frees its space")

    def _do_create(self, parameters: dict[str, str]) -> None:
        what = f"creation of container {self._vmid}"
        # A guest that has the id before the creation belongs to somebody else, whether or not the creation succeeds.
        before = {"volumes": list(self._observer.volumes(self._vmid))} if self._host else {}
        for attempt in range(1, WRITE_TRIES + 1):
            try:
                self._tasks.run(what, f"/nodes/{self._node}/lxc", parameters, tries=1, details=before)
                break
            except PveError as error:
                if not text.is_lock_timeout(error.reason) or (attempt == WRITE_TRIES and not self._is_ours(parameters)):
                    raise
                if self._is_ours(parameters):
                    self.notes.append(f"{what}: Proxmox answered '{error.reason}', but container {self._vmid} is there; going on with it")
                    break
        self._complete({key: value for key, value in parameters.items() if key not in ("vmid", "ostemplate", "rootfs", "unprivileged")})

    def _is_ours(self, parameters: dict[str, str]) -> bool:
        """Tell whether the container that a call with an unknown outcome was to make is there; wait if it is still being made."""
        upid = self._tasks.running(self._vmid)
        if upid:
            self._tasks.follow(f"creation of container {self._vmid}", upid)
        present = self._observer.present(self._vmid)
        return present is not None and all(cfg.same(key, present.config.keys.get(key), parameters.get(key)) for key in ("hostname", "tags"))

    def _complete(self, wanted: dict[str, str]) -> None:
        """Add what the creation left out: the same comparison as for a change, in the same run."""
        present = self._observer.present(self._vmid)
        if present is None:
            raise KproError(f"container {self._vmid}", "its creation ended well, but it is not there", "Look at the node's task log")
        missing = {s.key: s.after for s in cfg.differences(present.config, wanted) if s.key != "net0" or "net0" not in present.config.keys}
        if missing:
            self.notes.append(f"Created container {self._vmid}; {', '.join(missing)} were missing after creation and have been added")
            self._write(missing)

    def _write(self, settings: dict[str, str | None]) -> None:
        """Write settings in one call that only succeeds on the configuration that was read; read again after any refusal."""
        for attempt in range(1, WRITE_TRIES + 1):
            present = self._observer.present(self._vmid)
            if present is None:
                raise KproError(f"container {self._vmid}", "it has gone meanwhile", "Run again")
            left = cfg.differences(present.config, settings)
            if not left:
                return
            try:
                self._api.put(f"/nodes/{self._node}/lxc/{self._vmid}/config", _parameters(left, present.config.digest))
                return
            except PveError as error:
                self._judge(error, settings, last=attempt == WRITE_TRIES)

    def _judge(self, error: PveError, settings: dict[str, str | None], last: bool) -> None:
        again = text.is_lock_timeout(error.reason) or text.is_changed_elsewhere(error.reason)
        if again and not last:
            return
        present = self._observer.present(self._vmid)
        written = present is not None and not cfg.differences(present.config, settings)
        what = f"configuration of container {self._vmid}"
        if written and not text.missing_device(error.reason):
            self.notes.append(f"{what}: Proxmox answered '{error.reason}', but the change was written")
            return
        state = "the change was written anyway" if written else "nothing of it was written" if present else "it has gone meanwhile"
        remedy = error.remedy
        if text.is_hotplug_refusal(error.reason):
            remedy = f"Stop it first ('pct shutdown {self._vmid}'), or allow a restart with restart: true (gpu_container__restart: true)"
        raise PveError(what, f"{error.reason} ({state})", remedy) from error

    def _edit_raw(self, steps: t.Sequence[tuple[str, tuple[str, str]]]) -> None:
        """Take raw lines out of the file and add others, in one edit of the file that was read."""
        if self._host is None:
            raise KproError(f"raw line '{steps[0][1][0]}'", "the API can't change it, only an edit of the file on the node", "Use the way through pvesh")
        present = self._observer.present(self._vmid)
        gone = [line for what, line in steps if what == "remove"]
        new = [line for what, line in steps if what == "add"]
        digest = present.config.digest if present else ""
        self._host.edit_config(self._vmid, digest, lambda content: add_lines(_pve_raw.remove_lines(content, gone), new))

    def _do_resize(self, disk: str, size: str) -> None:
        params = {"disk": disk, "size": size}
        path = f"/nodes/{self._node}/lxc/{self._vmid}/resize"
        self._tasks.run(f"resize of {disk} of container {self._vmid}", path, params, verb="set")

    def _do_start(self) -> None:
        what = f"start of container {self._vmid}"
        try:
            self._tasks.run(what, f"/nodes/{self._node}/lxc/{self._vmid}/status/start", {})
        except PveError as error:
            if "already running" not in error.reason:
                hints = self._start_hints(error.reason) if error.details.get("upid") else []
                raise PveError(what, error.reason, ". ".join(part for part in (error.remedy, *hints) if part), **error.details) from error
        self._await_state(what, running=True)

    def _start_hints(self, reason: str) -> list[str]:
        """Return what can be known of the cause of a failed start; its task shows it only if it is Proxmox's own."""
        present = self._observer.present(self._vmid)
        keys = present.config.keys if present else {}
        hints = []
        path = text.missing_device(reason)
        if self._host and path and self._host.look(path).kind == "device":
            hints.append(f"{path} is there on {self._node}, so the message is not the cause")
            common = f"/usr/share/lxc/config/{keys.get('ostype', '')}.common.conf"
            if keys.get("unprivileged") != "1" and self._host.look(common).kind == "absent":
                hints.append(f"Proxmox says so of a privileged container if {common} is missing: correct ostype ('{keys.get('ostype', '')}')")
        if self._host:
            for key, value in present.config.numbered("mp").items() if present else ():
                source = prop.parse(value, prop.MOUNT).get("volume", "")
                if source.startswith("/") and self._host.look(source).kind == "absent":
                    hints.append(f"{key} mounts {source}, which {self._node} does not have: make it, or take {key} out ('pct set {self._vmid} --delete {key}')")
        return hints or [f"'pct start {self._vmid} --debug' on {self._node} tries again and shows the cause"]

    def _do_stop(self) -> None:
        what = f"shutdown of container {self._vmid}"
        try:
            path = f"/nodes/{self._node}/lxc/{self._vmid}/status/shutdown"
            self._tasks.run(what, path, {"timeout": self._shutdown_timeout_s})
        except PveError as error:
            if "not running" not in error.reason:
                if not error.details.get("upid"):
                    raise
                raise PveError(what, error.reason, f"Look what holds it up inside, or 'pct stop {self._vmid}' on {self._node}", **error.details) from error
        self._await_state(what, running=False)

    def _do_destroy(self) -> None:
        what = f"removal of container {self._vmid}"
        present = self._observer.present(self._vmid)
        named = sorted(present.config.volumes()) if present else []
        # A volume that its configuration does not name is not proven to be its own: somebody may have kept it.
        params = {"purge": 1, "destroy-unreferenced-disks": 0}
        self._tasks.run(what, f"/nodes/{self._node}/lxc/{self._vmid}", params, verb="delete", details={"volumes": named})
        left = self._observer.volumes(self._vmid) if self._host else ()
        if left:
            free = ", ".join(f"'pvesm free {volume}'" for volume in left)
            self.notes.append(f"Volumes with the id {self._vmid} that its configuration did not name are still there; {free} would remove them")

    def _await_state(self, what: str, running: bool) -> None:
        end = time.monotonic() + STATE_WAIT_S
        path = f"/nodes/{self._node}/lxc/{self._vmid}/status/current"
        while (str(self._api.get(path).get("status")) == "running") != running:
            if time.monotonic() >= end:
                raise KproError(what, f"the task ended well, but the container is {'not ' if running else ''}running", "Look at its journal")
            time.sleep(1.0)


def _parameters(settings: t.Sequence[cfg.Setting], digest: str) -> dict[str, str]:
    params = {setting.key: setting.after for setting in settings if setting.after is not None}
    gone = [setting.key for setting in settings if setting.after is None]
    return {**params, **({"delete": ",".join(gone)} if gone else {}), **({"digest": digest} if digest else {})}
