# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name, and prints its table at the terminal if a report is asked for."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ..module_utils._core.shown_text import printable_values
from ..plugin_utils._plan_table import show_table


class ActionModule(ActionBase):
    """The plan itself is computed where the GPUs and the model's files are."""

    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        result.update(printable_values(self._execute_module(module_name="kpro.llm.sglang_plan", module_args=self._task.args, task_vars=task_vars)))
        show_table(result)
        return result
