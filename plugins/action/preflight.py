# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges on the controller what the preflight of one deployment saw."""

from __future__ import annotations

import dataclasses
import typing as t

from ..module_utils._core.errors import KproError
from ..plugin_utils import _inventory_values as inventory_values
from ..plugin_utils import _preflight as preflight
from ..plugin_utils._on_controller import OnController

_LOOKS = ("node", "container", "model", "service", "plan", "entry")


class ActionModule(OnController):
    """Returns the findings; kpro.llm.findings prints those of all deployments and stops."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {
        "wanted": {"type": "dict", "required": True},
        "node": {"type": "dict", "required": True},
        **{name: {"type": "dict", "default": {}} for name in (*_LOOKS[1:], "previous", "errors")},
    }

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        looked = {name: _asked(given[name]) for name in _LOOKS}
        errors = {name: preflight.reason({**answer, "failed": True}) for name, answer in (given["errors"] or {}).items() if answer}
        # How the look at the service failed tells more than that it did.
        errors |= {name: words for name, answer in looked.items() if name != "service" and name not in errors and (words := preflight.reason(answer))}
        if looked["node"].get("unreachable"):
            errors["node"] = f"{given['wanted'].get('node', 'The node')} can't be reached: {errors['node']}"
        answers = {name: {} if name in errors and name != "service" else answer for name, answer in looked.items()}
        launch = answers["plan"]
        answers["plan"] = launch.get("plan", launch)
        refused = self._refused_values(variables)
        found = preflight.of_inventory(refused)
        # What follows from a value that is refused says nothing.
        if str(given["wanted"]["port"]).isdecimal():
            observed = preflight.Observed(**answers, previous=given["previous"] or {}, errors=errors)
            try:
                wanted = preflight.wanted_of(given["wanted"], observed, launch.get("tp_size"))
            except KproError as error:
                found += [] if "plan" in errors else [preflight.Finding("GPUs", preflight.NEEDS_YOU, error.sentence)]
                wanted = preflight.wanted_of({**given["wanted"], "tp_size": "auto"}, observed, None)
            found += preflight.findings(wanted, observed)
        return {"findings": [dataclasses.asdict(finding) for finding in found]}

    def _refused_values(self, variables: t.Mapping[str, t.Any]) -> list[str]:
        hosts, node = variables["hostvars"], variables.get("pct_node")
        of_node = dict(hosts.raw_get(node)) if node in hosts else {}
        return [
            *inventory_values.missing(variables),
            *self._refused(inventory_values.OF_CONTAINER, variables),
            *self._refused(inventory_values.OF_NODE, {**of_node, "hostvars": hosts, "groups": variables["groups"], "inventory_hostname": node}),
        ]

    def _refused(self, roles: tuple[str, ...], variables: t.Mapping[str, t.Any]) -> list[str]:
        """Ask for the values as the roles will see them, with their defaults, to which an inventory may refer."""
        known: dict[str, t.Any] = {}
        for path in inventory_values.defaults_files(roles):
            known |= self._loader.load_from_file(str(path), trusted_as_template=True)
        seen = {**known, **variables}
        templar = self._templar.copy_with_new_env(available_variables=seen)
        return inventory_values.problems(inventory_values.specs(roles), variables, lambda name: templar.template(seen[name]))


def _asked(answer: t.Any) -> dict[str, t.Any]:
    """A look that was passed over has no answer."""
    return {} if not answer or answer.get("skipped") else dict(answer)
