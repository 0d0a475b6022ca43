# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out the plan for a container. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import itertools
import time
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils import _pve_config as cfg
from ansible_collections.kpro.llm.plugins.module_utils import _pve_raw
from ansible_collections.kpro.llm.plugins.module_utils import _pve_text as text
from ansible_collections.kpro.llm.plugins.module_utils._changes import Change
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._lxc_observe import Observer
from ansible_collections.kpro.llm.plugins.module_utils._pve_api import PveApi, PveError
from ansible_collections.kpro.llm.plugins.module_utils._pve_host import Host
from ansible_collections.kpro.llm.plugins.module_utils._pve_raw_wanted import add_lines
from ansible_collections.kpro.llm.plugins.module_utils._pve_tasks import Tasks

WRITE_TRIES = 3
STATE_WAIT_S = 30.0  # HA and the post-stop hook act a moment after their task has ended


class Applier:
    """Applies changes to one container on one node, in order.

    :param host: the node's files; None if this process is not on the node.
    :param shutdown_timeout_s: time for the guest to shut down; it is never killed.
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
    ) -> None:
        self._vmid = vmid
        self._node = node
        self._api = api
        self._tasks = tasks
        self._observer = observer
        self._host = host
        self._shutdown_timeout_s = shutdown_timeout_s
        self.notes: list[str] = []

    def apply(self, changes: t.Sequence[Change]) -> None:
        """Carry out changes; neighbouring settings go out in one call. A container that was stopped for them is started again on failure.

        :raises KproError: at the first change that fails.
        """
        stopped_by_us = False
        try:
            for name, group in itertools.groupby(changes, key=lambda change: change.action[0]):
                steps = [change.action[1:] for change in group]
                if name == "set":
                    self._write(dict(steps))
                    continue
                if name == "raw":
                    self._edit_raw(steps)
                    continue
                for step in steps:
                    getattr(self, f"_do_{name}")(*step)
                stopped_by_us = name == "stop" or (stopped_by_us and name != "start")
        except KproError as error:
            if stopped_by_us and any(change.action[0] == "start" for change in changes):
                raise self._up_again(error) from error
            raise

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

    def _do_template(self, storage: str, name: str) -> None:
        if not any(row.get("template") == name for row in self._observer.offered()):
            raise KproError(f"template '{name}'", "Proxmox does not offer it for download", "See 'pveam available' on the node")
        self._tasks.run(f"download of {name}", f"/nodes/{self._node}/aplinfo", {"storage": storage, "template": name})

    def _do_create(self, parameters: dict[str, str]) -> None:
        what = f"creation of container {self._vmid}"
        for attempt in range(1, WRITE_TRIES + 1):
            try:
                self._tasks.run(what, f"/nodes/{self._node}/lxc", parameters, tries=1)
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
        state = "the change was written all the same" if written else "nothing of it was written" if present else "it has gone meanwhile"
        remedy = "Stop the container first, or allow a restart with restart: true" if text.is_hotplug_refusal(error.reason) else ""
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
                hint = f"The cause is in 'journalctl -u pve-container@{self._vmid}' on {self._node}"
                raise PveError(what, error.reason, f"{error.remedy}. {hint}" if error.remedy else hint) from error
        self._await_state(what, running=True)

    def _do_stop(self) -> None:
        what = f"shutdown of container {self._vmid}"
        try:
            path = f"/nodes/{self._node}/lxc/{self._vmid}/status/shutdown"
            self._tasks.run(what, path, {"timeout": self._shutdown_timeout_s})
        except PveError as error:
            if "not running" not in error.reason:
                raise PveError(what, error.reason, f"Look what holds it up inside, or 'pct stop {self._vmid}' on {self._node}") from error
        self._await_state(what, running=False)

    def _do_destroy(self) -> None:
        what = f"removal of container {self._vmid}"
        # A volume that its configuration does not name is not proven to be its own: somebody may have kept it.
        params = {"purge": 1, "destroy-unreferenced-disks": 0}
        self._tasks.run(what, f"/nodes/{self._node}/lxc/{self._vmid}", params, verb="delete")

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
