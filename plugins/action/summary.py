# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the summary of a deployment on the controller."""

from __future__ import annotations

import time
import typing as t

from ansible.utils.display import Display

from ..plugin_utils._on_controller import OnController, block
from ..plugin_utils._summary import summary_lines

display = Display()


class ActionModule(OnController):
    """Renders the summary."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {
        "node": {"type": "str", "required": True},
        "results": {"type": "dict", "required": True},
        "phases": {"type": "list", "elements": "dict", "default": []},
    }

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        lines = summary_lines(given["node"], given["results"], given["phases"], time.time())
        display.display(block(lines), color="bright green")
        return {"lines": lines}
