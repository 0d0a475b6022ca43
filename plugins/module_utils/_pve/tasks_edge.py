# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox tasks: start one, follow it to its end, find one that still runs."""

from __future__ import annotations

import dataclasses
import time
import typing as t

from .._core.errors import KproError
from . import answers as text
from .api_edge import Params, PveApi, PveError, PveTimeout
from .call_record import Record, work_of
from .calls_edge import Calls

POLL_S = 1.0
LOCK_TRIES = 3  # Proxmox itself waits 10 s for the lock each time
LOG_LINES = 20
LIMIT_OPTION = "task_timeout_s (in the inventory: gpu_container__task_timeout_s)"


class Tasks:
    """Runs tasks of one node to their end.

    :param timeout_s: longest wait for one task.
    :param calls: the calls that were made on the node; None if this process is not there.
    :param limit: the option that sets ``timeout_s``, as messages name it.
    """

    def __init__(self, api: PveApi, node: str, timeout_s: float, calls: Calls | None = None, limit: str = LIMIT_OPTION) -> None:
        self._api = api
        self._node = node
        self._timeout_s = timeout_s
        self._calls = calls
        self._limit = limit

    def run(
        self,
        what: str,
        path: str,
        params: Params,
        *,
        verb: str = "create",
        tries: int = LOCK_TRIES,
        details: Params | None = None,
        settle: bool = True,
    ) -> str:
        """Start a task, wait for its end and return its name; a busy configuration is tried again.

        :param what: the work in words, for messages ("start of container 129").
        :param verb: ``create``, ``set`` or ``delete``, as ``pvesh`` has them.
        :param details: what a later run has to know of the work, for its record.
        :param settle: whether the work is done with its task; else whoever asked writes that down.
        :raises KproError: if it is not started, fails (with the end of its log), or has no end in time.
        """
        name = work_of(verb, path, params).name
        for attempt in range(1, tries + 1):
            try:
                upid = self._api.task(verb, path, params, self._timeout_s, details)
                end = self.follow(what, upid)
            except PveError as error:
                if attempt < tries and text.is_lock_timeout(error.reason):
                    continue
                raise
            except PveTimeout as error:
                upid = str(error.details.get("upid") or "") or self._name(name, params, verb, path)
                raise self.unfinished(what, upid) from error
            if end.good:
                if settle:
                    self.settle(name)
                return upid
            if attempt < tries and text.is_lock_timeout(end.exitstatus):
                continue
            raise self._failed(what, end)
        raise AssertionError("the loop ends by return or raise")

    def _name(self, name: str, params: Params, verb: str, path: str) -> str:
        """Look up the name of a task that goes on, and write it down."""
        upid = self.running(work_of(verb, path, params).vmid)
        record = self.record(name)
        if upid and record and self._calls:
            self._calls.note(dataclasses.replace(record, upid=upid))
        return upid

    def follow(self, what: str, upid: str) -> text.TaskEnd:
        """Wait for the end of a task.

        :raises KproError: if it still runs after the timeout; the next run can attach to it.
        """
        node = text.upid_node(upid) or self._node
        end_at = time.monotonic() + self._timeout_s
        while True:
            state = self._api.get(f"/nodes/{node}/tasks/{upid}/status")
            if state.get("status") != "running":
                return text.TaskEnd(upid, str(state.get("exitstatus") or "stopped without a state"))
            if time.monotonic() >= end_at:
                raise self.unfinished(what, upid)
            time.sleep(POLL_S)

    def await_earlier(self, vmid: int) -> list[str]:
        """Wait for what earlier runs began on a container on this node and what still runs; return it in words.

        :raises KproError: if one has no end in time.
        """
        waited = []
        for record in self._calls.running(vmid) if self._calls else ():
            if self._calls and not self._calls.wait(record.name, self._timeout_s):
                raise self.unfinished(record.words, record.upid)
            waited.append(record.words)
        return waited

    def earlier(self, vmid: int) -> Record | None:
        """Return one work that an earlier run began on a container on this node and that still runs."""
        return next(iter(self._calls.running(vmid)), None) if self._calls else None

    def record(self, name: str) -> Record | None:
        """Return what was written down of a work on this node."""
        return self._calls.record(name) if self._calls else None

    def settle(self, name: str) -> None:
        """Write down that a work has come to a good end."""
        if self._calls:
            self._calls.settle(name)

    def running(self, vmid: t.Any) -> str:
        """Return the name of a task that now works on a guest, empty if there is none."""
        return next(iter(self.active(**({"vmid": vmid} if vmid else {}))), "")

    def active(self, **about: t.Any) -> list[str]:
        """Return the names of the tasks that now run on the node, narrowed by container or type."""
        rows = self._api.get(f"/nodes/{self._node}/tasks", {"source": "active", **about}) or []
        return [str(row.get("upid", "")) for row in rows if not row.get("endtime")]

    def history(self, vmid: int) -> list[t.Mapping[str, t.Any]]:
        """Return the tasks of a guest, those that run too, newest first."""
        return self._api.get(f"/nodes/{self._node}/tasks", {"source": "all", "vmid": vmid}) or []

    def works(self, name: str) -> bool:
        """Tell whether a work that was begun on this node still runs."""
        return self._calls is not None and self._calls.alive(name)

    def wait(self, name: str, what: str) -> None:
        """Wait for a work that was begun on this node.

        :raises KproError: if it has no end in time.
        """
        if self._calls is not None and not self._calls.wait(name, self._timeout_s):
            record = self._calls.record(name)
            raise self.unfinished(what, record.upid if record else "")

    def log(self, upid: str, first: bool = False) -> list[str]:
        """Return the last lines of a task's log, or the first ones."""
        limit = {"limit": LOG_LINES} if first else {"limit": 0}
        rows = self._api.get(f"/nodes/{text.upid_node(upid) or self._node}/tasks/{upid}/log", limit) or []
        lines = [str(row.get("t", "")) for row in rows if row.get("t")]
        return lines[:LOG_LINES] if first else lines[-LOG_LINES:]

    def unfinished(self, what: str, upid: str) -> KproError:
        """Return the error of work that goes on after this run has waited long enough for it."""
        return KproError(
            what,
            f"no end after {self._timeout_s:g} s, {f'task {upid}' if upid else 'it'} still runs and was not touched",
            f"Run the same command again to wait on, or raise {self._limit}",
            upid=upid,
        )

    def _failed(self, what: str, end: text.TaskEnd) -> PveError:
        """Return the error of a task that failed, each thing told once."""
        if end.exitstatus in ("unexpected status", "stopped without a state"):
            return PveError(
                what, "its task was cut off before its end", f"Task {end.upid}. Run again: what it left is looked at first", upid=end.upid, cut=True
            )
        try:
            told = text.short_log(self.log(end.upid), end.exitstatus)
        except PveError:
            told = ""
        remedy = f"Task {end.upid}{f'; before that its log says: {told}' if told else ''}"
        return PveError(what, text.short_reason(end.exitstatus), remedy, upid=end.upid)
