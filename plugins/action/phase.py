# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Begins a phase of the deployment on the controller, if it may begin, and notes what ended one."""

from __future__ import annotations

import time
import typing as t

from ..plugin_utils import _preflight as preflight
from ..plugin_utils import _run_state as run_state
from ..plugin_utils._on_controller import OnController, this_run


class ActionModule(OnController):
    """Returns the state of the host, which the playbook registers."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {
        "name": {"type": "str", "default": ""},
        "looks_only": {"type": "bool", "default": False},
        "needs": {"type": "list", "elements": "str", "default": []},
        "ended": {"type": "dict"},
    }

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        state = variables.get(run_state.STATE) or {}
        if given["ended"] is not None:
            after = run_state.stopped(state, preflight.reason({**given["ended"], "failed": True}))
            return {**after, "go": False, "missing": []}
        after = run_state.begun(state, given["name"], time.time())
        me, hosts = variables["inventory_hostname"], variables["hostvars"]
        if after["stopped"]:
            return {**after, "go": False, "missing": []}
        if not given["looks_only"]:
            # Of the run's deployments only: another host's variables may be anything.
            left = {host: hosts[host].get(run_state.PREFLIGHT) for host in variables["groups"].get("llm_container", [])}
            preflights = {host: answer for host, answer in left.items() if answer and answer.get("run") == this_run()}
            gate = run_state.gate(me, preflights, {host: str(hosts[host].get("pct_node", "")) for host in preflights})
            if gate.refusal:
                return {**after, "go": False, "missing": [], "failed": True, "msg": gate.refusal}
            if gate.left_alone:
                return {**after, "go": False, "missing": [], "warnings": [gate.left_alone]}
        node = str(variables.get("pct_node", ""))
        of_node: t.Any = hosts[node] if node in hosts else {}  # noqa: SIM401 - get() of an unknown host is an undefined variable
        if node:
            after["stopped"] = run_state.stopped_by_node(node, of_node.get(run_state.STATE) or {}, run_state.NODE_RESULT in of_node)
        there = {name: variables if name != run_state.NODE_RESULT else of_node for name in given["needs"]}
        missing = [name for name, where in there.items() if name not in where]
        return {**after, "go": not after["stopped"], "missing": missing}
