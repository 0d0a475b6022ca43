# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox tasks: start one, follow it to its end, find one that still runs. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils import _pve_text as text
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve_api import Params, PveApi, PveError, PveTimeout

POLL_S = 1.0
LOCK_TRIES = 3  # Proxmox itself waits 10 s for the lock each time
LOG_LINES = 20


class Tasks:
    """Runs tasks of one node to their end.

    :param timeout_s: longest wait for one task.
    """

    def __init__(self, api: PveApi, node: str, timeout_s: float) -> None:
        self._api = api
        self._node = node
        self._timeout_s = timeout_s

    def run(self, what: str, path: str, params: Params, *, verb: str = "create", tries: int = LOCK_TRIES) -> str:
        """Start a task, wait for its end and return its name; a busy configuration is tried again.

        :param what: the work in words, for messages ("start of container 129").
        :param verb: ``create``, ``set`` or ``delete``, as ``pvesh`` has them.
        :raises KproError: if it is not started, fails (with the end of its log), or has no end in time.
        """
        for attempt in range(1, tries + 1):
            try:
                upid = self._api.task(verb, path, params, self._timeout_s)
                end = self.follow(what, upid)
            except PveError as error:
                if attempt < tries and text.is_lock_timeout(error.reason):
                    continue
                raise
            except PveTimeout as error:
                raise self._unfinished(what, self.running(params.get("vmid"))) from error
            if end.good:
                return upid
            if attempt < tries and text.is_lock_timeout(end.exitstatus):
                continue
            raise PveError(what, end.exitstatus, self._advice(upid), upid=upid)
        raise AssertionError("the loop ends by return or raise")

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
                raise self._unfinished(what, upid)
            time.sleep(POLL_S)

    def running(self, vmid: t.Any) -> str:
        """Return the name of a task that now works on a guest, empty if there is none."""
        rows = self._api.get(f"/nodes/{self._node}/tasks", {"source": "active", **({"vmid": vmid} if vmid else {})}) or []
        active = [row for row in rows if not row.get("endtime")]
        return str(active[0].get("upid", "")) if active else ""

    def log(self, upid: str) -> list[str]:
        """Return the last lines of a task's log."""
        rows = self._api.get(f"/nodes/{text.upid_node(upid) or self._node}/tasks/{upid}/log", {"limit": 0}) or []
        return [str(row.get("t", "")) for row in rows if row.get("t")][-LOG_LINES:]

    def _advice(self, upid: str) -> str:
        try:
            lines = self.log(upid)
        except PveError:
            lines = []
        told = f"; its log ends with: {' | '.join(lines)}" if lines else ""
        return f"Task {upid}{told}"

    def _unfinished(self, what: str, upid: str) -> KproError:
        return KproError(
            what,
            f"no end after {self._timeout_s:g} s{f', task {upid} still runs' if upid else ''}",
            "Run the same command again to wait on, or raise timeout_s",
            upid=upid,
        )
