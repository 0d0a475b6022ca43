# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints what the preflight found for all deployments of a run, in one table, and ends the run if one needs a person."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible.utils.display import Display

from ..module_utils._core.shown_text import one_line
from ..plugin_utils import _preflight as preflight
from ..plugin_utils import _run_state as run_state
from ..plugin_utils._on_controller import OnController, this_run

display = Display()

_COLOURS = {preflight.OK: "green", preflight.NOTE: "yellow", preflight.WILL_FIX: "yellow", preflight.NEEDS_YOU: "red"}


class ActionModule(OnController):
    """Runs once for all hosts of the play, also for those that can't go on."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {"hosts": {"type": "list", "elements": "str", "required": True}, "judged": {"type": "str", "required": True}}

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        of = variables["hostvars"]
        states, before = ({host: of[host].get(name) for host in given["hosts"]} for name in (run_state.STATE, run_state.PREFLIGHT))
        hosts = run_state.judges(given["hosts"], variables["ansible_play_hosts"], states, before)
        # A host that could not even begin left its reason there.
        found = {host: _findings(of[host].get(given["judged"]) or (states[host] if (states[host] or {}).get("failed") else None)) for host in hosts}
        several = len(found) > 1
        width = max(map(len, found)) if several else 0
        display.display("")
        for host, rows in found.items():
            for finding, line in zip(rows, preflight.table(rows, f"{host:{width}}" if several else ""), strict=True):
                display.display(f"  {one_line(line)}", color=_COLOURS.get(finding.state))
        display.display("")
        problems = [f"{host + ': ' if several else ''}{row.sentence}" for host, rows in found.items() for row in rows if row.state == preflight.NEEDS_YOU]
        result: dict[str, t.Any] = {
            "hosts": list(found),
            "finished": not problems,
            "run": this_run(),
            "findings": {host: [dataclasses.asdict(row) for row in rows] for host, rows in found.items()},
        }
        if problems:
            msg = f"Nothing was changed. {len(problems)} finding(s) need you: " + " | ".join(problems)
            result |= {"failed": True, "msg": msg + ("" if not several else ". Settle them, or leave a host out (--limit)")}
        return result


def _findings(judged: t.Any) -> list[preflight.Finding]:
    """Return the findings of one host from what its preflight left."""
    if not judged:
        return preflight.lost()
    if "findings" not in judged:
        return preflight.ended(judged)
    return [preflight.Finding(**{name: str(row[name]) for name in ("subject", "state", "sentence")}) for row in judged["findings"]]
