# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the summary of a deployment on the controller."""

from __future__ import annotations

import time
import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.kpro.llm.plugins.plugin_utils._summary import summary_lines

display = Display()

_SPEC = {
    "node": {"type": "str", "required": True},
    "results": {"type": "dict", "required": True},
    "phases": {"type": "list", "elements": "dict", "default": []},
}


class ActionModule(ActionBase):
    """Renders the summary; needs no connection."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_SPEC)
        lines = summary_lines(arguments["node"], arguments["results"], arguments["phases"], time.time())
        display.display("\n" + "\n".join(f"  {line}" for line in lines) + "\n", color="bright green")
        return {"changed": False, "lines": lines}
