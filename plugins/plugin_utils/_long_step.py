# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of modules whose work takes minutes.

The work runs in a transient systemd unit on the target; the module starts or attaches to it, waits for an event or a few
seconds, and returns ``finished: false`` with a ``progress`` line. This plugin prints the line and asks again. An
interrupted playbook leaves the unit running, and the next run attaches to it. A lost connection is no answer: once there was
contact, it is sought again for a while. Each such module has an action plugin of its name that is nothing but this one.
"""

from __future__ import annotations

import time
import typing as t
import uuid

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils._core.shown_text import one_line, printable_values

# A unit that is ended from outside each time must not be started for ever.
MAX_STARTS = 3

display = Display()

# A dropped session is back at once, a small node boots in less; a server that takes minutes is worth another run.
_RECONNECT_S = 90.0
_PAUSE_S = 2.0
# Of a module whose process was ended, by SIGKILL or SIGTERM, or whose session was.
_ENDED_RCS = (137, 143, 255, -9, -15)


class LongStep(ActionBase):
    """Calls the module of the same name until it has finished.

    ``NAMES_RUN``: the module gets ``run_id`` (the same in all calls of this task) and ``call`` (number of the call; one that is made again keeps its).
    """

    NAMES_RUN = False
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        changed, diff, plan, last, starts = False, None, None, "", 0
        warnings: list[t.Any] = []
        run_id, calls = uuid.uuid4().hex, 0
        while True:
            calls += 1
            answer = self._ask(task_vars, contact=calls > 1, arguments={"run_id": run_id, "call": calls} if self.NAMES_RUN else {})
            changed = changed or bool(answer.get("changed"))
            diff = _joined(diff, answer.get("diff"))
            plan = _joined(plan, answer.get("plan"))
            warnings += [text for text in answer.pop("warnings", None) or [] if text not in warnings]
            progress = one_line(str(answer.pop("progress", "") or ""))
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

    def _ask(self, task_vars: dict[str, t.Any] | None, contact: bool, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        """Call the module. A call that was cut off is made again, and what it says then is the answer.

        :param arguments: options beside those of the task.
        :param contact: the module has answered before, so that a lost connection is news and no wrong address.
        :raises AnsibleConnectionFailure: if there is no contact, with what became of it.
        """
        began, cut = time.monotonic(), ""
        given = {**self._task.args, **arguments}
        while True:
            try:
                # The target may answer anything, whatever the module would say.
                said = self._execute_module(module_name=self._task.action, module_args=given, task_vars=task_vars)
                answer = t.cast("dict[str, t.Any]", printable_values(said))
                lost = str(answer.get("msg", "")) if answer.get("unreachable") else ""
            except AnsibleConnectionFailure as error:
                answer, lost = {}, one_line(str(error))
            if not lost:
                if answer.get("rc") not in _ENDED_RCS or answer.get("module_stdout") or cut:
                    return answer
                cut = "the module was ended from outside"
                continue
            if not contact and not cut:
                raise AnsibleConnectionFailure(lost)
            stopped = "is not running" in lost
            if stopped and cut in ("", "the module was ended from outside"):
                raise AnsibleConnectionFailure(f"It was stopped while this step waited for it. {lost}")
            if time.monotonic() - began >= _RECONNECT_S:
                hint = "The work of this step goes on there: run the deployment again once it can be reached"
                raise AnsibleConnectionFailure(f"The connection was lost and did not come back within {_RECONNECT_S:.0f} s. {hint}. {lost}")
            cut = lost
            time.sleep(_PAUSE_S)

    def _host(self, task_vars: dict[str, t.Any] | None) -> str:
        return self._task.delegate_to or (task_vars or {}).get("inventory_hostname", "")


def _joined(before: t.Any, now: t.Any) -> t.Any:
    """Return what several calls did, in order; of what is no list, the first call's."""
    if isinstance(before, list) and isinstance(now, list):
        return [*before, *(entry for entry in now if entry not in before)]
    return before or now
