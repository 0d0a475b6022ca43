# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes on the controller when a phase of the deployment begins."""

from __future__ import annotations

import time
import typing as t

from ..plugin_utils._on_controller import OnController

FACT = "kpro_llm__phases"


class ActionModule(OnController):
    """Appends the phase to the host's list of phases."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {"name": {"type": "str", "required": True}}

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        phases = list(variables.get("ansible_facts", {}).get(FACT, []))
        phases.append({"name": given["name"], "started_s": time.time()})
        return {"ansible_facts": {FACT: phases}}
