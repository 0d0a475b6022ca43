# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings one container to its declared state: observe, plan, apply, observe again."""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from .._core.changes import plan_result
from .._core.errors import KproError
from .._linux.command_edge import Command
from .._pve import gpus as gpu_rules
from .._pve import rights
from .._pve.answers import TaskEnd
from .._pve.api_edge import PveApi
from .._pve.calls_edge import Calls
from .._pve.host_edge import Host
from .._pve.reservations_edge import Reservation, Reservations
from .._pve.tasks_edge import Tasks
from .apply import Applier
from .declared import Declared, check_declared, static_address, wanted_network
from .facts import Facts
from .guest_edge import Guest, wait_for
from .observe import Observer
from .plan import LxcPlan, make_plan

SETTLE_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Waits:
    """Longest times in seconds."""

    task_s: float = 600.0
    shutdown_s: int = 180
    ready_s: float = 120.0
    address_s: float = 60.0


class LxcContainer:
    """One container on one node, through one way to the API.

    :param host: the node's files; None if this process is not on the node.
    :param command: runs programs on the node; None likewise.
    :param cards: what the node's PCI bus shows, for foreseeing while the GPUs are not known.
    :param calls: the calls that were made on the node, with their records; None likewise.
    """

    def __init__(
        self,
        declared: Declared,
        node: str,
        api: PveApi,
        gpus: tuple[gpu_rules.Gpu, ...] | None,
        host: Host | None = None,
        command: Command | None = None,
        waits: Waits = Waits(),
        cards: tuple[gpu_rules.Gpu, ...] = (),
        calls: Calls | None = None,
    ) -> None:
        self._declared = declared
        self._api = api
        self._node = node
        self._tasks = Tasks(api, node, waits.task_s, calls)
        self._observer = Observer(api, node, host, gpus, command, cards, self._tasks)
        self._applier = Applier(declared.vmid, node, api, self._tasks, self._observer, host, waits.shutdown_s, command, declared.restart)
        self._host = host
        self._on_node = host is not None
        self._command = command
        self._waits = waits

    def converge(self, check_mode: bool, notes: t.Sequence[str] = ()) -> dict[str, t.Any]:
        """Return the module's result; in check mode nothing is changed.

        :param notes: list that the API's edge writes its sentences to.
        :raises KproError: on anything that a person has to settle.
        """
        check_declared(self._declared)
        facts = self._settled_facts(check_mode)
        notes = (*notes, *self._cut_off_creation(facts, check_mode))
        plan = make_plan(self._declared, facts)
        self._check_way(plan, facts)
        if plan.changes and not check_mode:
            with self._cards_given(plan, facts) as plan:
                self._applier.apply(plan.changes)
                facts = self._verified()
            plan = dataclasses.replace(plan, changes=(*plan.changes, *self._applier.added))
        address = self._declared_address(facts) if check_mode and plan.changes else self._wait_until_usable(facts)
        return self._result(plan, facts, address, (*notes, *self._applier.notes))

    @contextlib.contextmanager
    def _cards_given(self, plan: LxcPlan, facts: Facts) -> t.Iterator[LxcPlan]:
        """Give the plan with GPUs that nobody else was given since the look, and keep them reserved while it is carried out."""
        if self._host is None or not plan.gpus:
            yield plan
            return
        reservations = Reservations(self._host.root)
        with contextlib.ExitStack() as held:
            with reservations.locked():
                facts = dataclasses.replace(facts, guests=self._observer.guests(self._declared.vmid))
                plan = make_plan(self._declared, facts)
                self._check_way(plan, facts)
                minors = tuple(gpu.minor for gpu in plan.gpus or ())
                held.enter_context(reservations.held(Reservation(self._declared.vmid, self._hostname(facts), minors)))
            yield plan

    def _hostname(self, facts: Facts) -> str:
        return self._declared.scalars.get("hostname") or (facts.present.config.keys.get("hostname", "") if facts.present else "")

    def _check_way(self, plan: LxcPlan, facts: Facts) -> None:
        """Stop before the first step if the way to the API does not lead to all of them."""
        keys = facts.present.config.keys if facts.present else {}
        level = keys.get("unprivileged") == "1" if facts.present else self._declared.unprivileged
        settings = {change.action[1]: change.action[2] for change in plan.changes if change.action[0] == "set"}
        for change in plan.changes:
            settings |= change.action[1] if change.action[0] == "create" else {}
        rights.check_rights(self._api.user, rights.root_only(keys, settings, level))
        if not self._on_node:
            rights.check_place(change.sentence for change in plan.changes if change.action[0] in rights.NODE_ONLY)

    def _settled_facts(self, check_mode: bool) -> Facts:
        """Observe; what still works on the container (for a run that was cut off, or for somebody else) is waited for first."""
        self._observer.check_permissions()
        if not check_mode:
            self._tasks.await_earlier(self._declared.vmid)
        for _attempt in range(SETTLE_TRIES):
            facts = self._observer.facts(self._declared)
            if check_mode or facts.work is None:
                return facts
            if facts.work.upid:
                self._tasks.follow(facts.work.words, facts.work.upid)
            self._tasks.await_earlier(self._declared.vmid)
        raise KproError(self._declared.name, "one task after the other works on it", "Wait until nobody else works on it, then run again")

    def _cut_off_creation(self, facts: Facts, check_mode: bool) -> list[str]:
        """Return a sentence if our creation of the container was cut off after its files were there, which Proxmox doesn't show."""
        name = f"create-{self._declared.vmid}"
        record = self._tasks.record(name)
        if record is None or record.ended or facts.present is None or facts.work is not None:
            return []
        rows = [row for row in self._tasks.history(self._declared.vmid) if row.get("type") == "vzcreate"]
        good = bool(rows) and TaskEnd("", str(rows[0].get("status") or "")).good
        ours = not rows or not record.upid or rows[0].get("upid") == record.upid
        if not check_mode:
            if not good and ours and not facts.present.running:
                self._applier.unmount()
            self._tasks.settle(name)
        if good or not ours:
            return []
        return [
            f"The creation of {self._declared.name} was cut off after its files were unpacked, and is completed now. Proxmox may not have made its SSH"
            f" host keys: once it runs, 'pct exec {self._declared.vmid} -- ssh-keygen -A' makes those that are missing"
        ]

    def _verified(self) -> Facts:
        facts = self._observer.facts(self._declared)
        rest = make_plan(dataclasses.replace(self._declared, restart=False), facts)
        if rest.changes:
            steps = "; ".join(change.sentence for change in rest.changes)
            raise KproError(self._declared.name, f"still not as declared after all changes: {steps}", "Run again, and report it if it stays")
        return facts

    def _declared_address(self, facts: Facts) -> str:
        stored = facts.present.config.keys.get("net0", "") if facts.present else ""
        return static_address(wanted_network(self._declared, stored))

    def _wait_until_usable(self, facts: Facts) -> str:
        """Return the container's address, after its systemd has answered."""
        present = facts.present
        if present is None:
            return ""
        static = static_address(present.config.keys.get("net0", ""))
        if not present.running or self._declared.state != "started":
            return static
        if self._command is not None:
            Guest(self._declared.vmid, self._command).wait_for_systemd(self._waits.ready_s)
        if static or "net0" not in present.config.keys:
            return static
        return wait_for(lambda: self._observer.address(self._declared.vmid, present.config), bool, self._waits.address_s)

    def _result(self, plan: LxcPlan, facts: Facts, address: str, notes: t.Sequence[str]) -> dict[str, t.Any]:
        present, elsewhere = facts.present, facts.elsewhere
        keys = present.config.keys if present else {}
        devices = present.config.numbered("dev").values() if present else ()
        return {
            **plan_result(plan.changes),
            "vmid": self._declared.vmid,
            "node": elsewhere.node if elsewhere else self._node,
            "exists": bool(present or elsewhere),
            "here": present is not None,
            "running": bool((present and present.running) or (elsewhere and elsewhere.running)),
            "hostname": keys.get("hostname", elsewhere.name if elsewhere else ""),
            "unprivileged": keys.get("unprivileged") == "1" if present else self._declared.unprivileged,
            "address": address,
            "devices": [gpu_rules.device_path(value) for value in devices],
            "gpus": [dataclasses.asdict(gpu) for gpu in plan.gpus or ()],
            "restart_needed": bool(plan.waiting),
            "waiting": list(plan.waiting),
            "notes": list(dict.fromkeys((*plan.notes, *notes))),
        }
