# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the module of the same name where the model's files are needed; else the controller answers, without a round trip."""

from __future__ import annotations

import json
import typing as t

from ansible.plugins.action import ActionBase

from ..module_utils._core.errors import KproError
from ..module_utils._core.shown_text import printable, printable_values
from ..module_utils._launch.answer_edge import SPEC, answer, needs_files
from ..plugin_utils._plan_table import show_table

_EXCLUSIVE = [["model_path", "model_profile"], ["model_config", "model_profile"], ["gpus", "gpu_type"], ["goal", "profiles"]]


class ActionModule(ActionBase):
    """The answer is the same wherever it is computed. A report is printed at the terminal."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(SPEC, mutually_exclusive=_EXCLUSIVE)
        # As they reach a module: here a number is one with ansible-core's tags, whose type is another.
        given = json.loads(json.dumps(given))
        try:
            there = needs_files(given)
            answered = {} if there else _printable(answer(given))
        except KproError as error:
            return {**result, "failed": True, "msg": printable(error.sentence), "reason": printable(error.reason), "remedy": printable(error.remedy)}
        if there:
            answered = printable_values(self._execute_module(module_name="kpro.llm.sglang_launch", module_args=self._task.args, task_vars=task_vars))
        result.update(answered)
        show_table(result)
        return result


def _printable(answered: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the answer fit for a terminal; the options are the inventory's own, and the engine gets them as they are."""
    shown: dict[str, t.Any] = printable_values(answered)
    for row, own in zip(shown["rungs"], answered["rungs"], strict=True):
        row["options"] = own["options"]
    return shown
