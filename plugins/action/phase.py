# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes on the controller when a phase of the deployment begins."""

from __future__ import annotations

import time
import typing as t

from ansible.plugins.action import ActionBase

FACT = "kpro_llm__phases"


class ActionModule(ActionBase):
    """Appends the phase to the host's list of phases."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec({"name": {"type": "str", "required": True}})
        phases = list((task_vars or {}).get("ansible_facts", {}).get(FACT, []))
        phases.append({"name": arguments["name"], "started_s": time.time()})
        return {"changed": False, "ansible_facts": {FACT: phases}}
