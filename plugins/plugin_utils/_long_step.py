# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of modules whose work takes minutes.

The work runs in a transient systemd unit on the target; the module starts or attaches to it, waits for an event or a few
seconds, and returns ``finished: false`` with a ``progress`` line. This plugin prints the line and asks again. An
interrupted playbook leaves the unit running, and the next run attaches to it. Each such module has an action plugin of its
name that is nothing but this one. PRIVATE: for use in kpro.llm only.
"""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# A unit that is ended from outside each time must not be started for ever.
MAX_STARTS = 3

display = Display()


class LongStep(ActionBase):
    """Calls the module of the same name until it has finished."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        changed, diff, plan, last, starts = False, None, None, "", 0
        warnings: list[t.Any] = []
        while True:
            answer = self._execute_module(module_name=self._task.action, task_vars=task_vars)
            changed = changed or bool(answer.get("changed"))
            diff = diff or answer.get("diff")
            plan = plan or answer.get("plan")
            warnings += [text for text in answer.pop("warnings", None) or [] if text not in warnings]
            progress = answer.pop("progress", "")
            starts += bool(answer.pop("started", False))
            if starts > MAX_STARTS:
                text = f"{self._task.action}: its work was started {starts} times and ended each time without a result. See the journal of the target"
                answer = {"failed": True, "msg": f"{text}. Last: {last}."}
            if progress and progress != last:
                display.display(f"  {self._host(task_vars)}: {progress}", color="cyan")
                last = progress
            if answer.get("failed") or answer.get("unreachable") or answer.pop("finished", True):
                break
        result.update(answer)
        result["changed"] = changed
        if diff:
            result["diff"] = diff
        if plan:
            result["plan"] = plan
        if warnings:
            result["warnings"] = warnings
        return result

    def _host(self, task_vars: dict[str, t.Any] | None) -> str:
        return self._task.delegate_to or (task_vars or {}).get("inventory_hostname", "")
