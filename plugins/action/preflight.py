# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges on the controller what the preflight saw, and prints all findings at once."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible.utils.display import Display

from ansible_collections.kpro.llm.plugins.module_utils._shown_text import one_line
from ansible_collections.kpro.llm.plugins.plugin_utils import _preflight as preflight
from ansible_collections.kpro.llm.plugins.plugin_utils._on_controller import OnController

display = Display()

_COLOURS = {preflight.OK: "green", preflight.NOTE: "yellow", preflight.WILL_FIX: "yellow", preflight.NEEDS_YOU: "red"}


class ActionModule(OnController):
    """Fails if anything needs a person."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {
        "wanted": {"type": "dict", "required": True},
        "node": {"type": "dict", "required": True},
        **{name: {"type": "dict", "default": {}} for name in ("container", "model", "service", "plan", "previous")},
    }

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        looked = {name: given[name] or {} for name in ("container", "model", "service", "plan")}
        errors = {name: str(answer.get("msg", "")) for name, answer in looked.items() if answer.get("failed")}
        answers = {name: {} if name in errors else answer for name, answer in looked.items()}
        wanted = preflight.Wanted(**{**given["wanted"], **{name: int(given["wanted"][name]) for name in ("tp_size", "port")}})
        found = preflight.findings(wanted, preflight.Observed(node=given["node"], previous=given["previous"] or {}, errors=errors, **answers))
        display.display("")
        for finding, line in zip(found, preflight.table(found), strict=True):
            display.display(f"  {one_line(line)}", color=_COLOURS[finding.state])
        display.display("")
        problems = [finding.sentence for finding in found if finding.state == preflight.NEEDS_YOU]
        result: dict[str, t.Any] = {"findings": [dataclasses.asdict(finding) for finding in found]}
        if problems:
            result |= {"failed": True, "msg": f"Nothing was changed. {len(problems)} finding(s) need you: " + " | ".join(problems)}
        return result
