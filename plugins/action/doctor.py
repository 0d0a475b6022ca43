# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges on the controller what the doctor saw, and prints its page."""

from __future__ import annotations

import typing as t

from ansible.utils.display import Display

from ..plugin_utils import _doctor as doctor
from ..plugin_utils._on_controller import OnController, block

display = Display()

_SEEN = ("node", "container", "environment", "model", "service", "diagnosis", "answer")


class ActionModule(OnController):
    """Prints the page; a broken link is its answer, not its failure."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {
        "deployment": {"type": "str", "required": True},
        "node_name": {"type": "str", "required": True},
        "vmid": {"type": "int", "required": True},
        "port": {"type": "int", "default": 30000},
        **{name: {"type": "dict", "default": {}} for name in _SEEN},
    }

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        names = {"node": given["node_name"], "vmid": given["vmid"], "port": given["port"]}
        links = doctor.chain(names, doctor.Seen(**{name: _asked(given[name]) for name in _SEEN}))
        worst = doctor.first_broken(links)
        lines = doctor.page(f"{given['deployment']} (container {given['vmid']} on {given['node_name']})", links)
        display.display(block(lines), color="bright red" if worst else "bright green")
        return {"lines": lines, "sentence": doctor.sentence(worst) if worst else "", "report": doctor.report(given["deployment"], links)}


def _asked(answer: t.Any) -> dict[str, t.Any]:
    """A question that was passed over has no answer."""
    return {} if not answer or answer.get("skipped") else dict(answer)
