# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints rows as an aligned table on the controller."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

_ROW = {"subject": {"type": "str", "required": True}, "state": {"type": "str", "required": True}, "text": {"type": "str", "default": ""}}
_SPEC = {"rows": {"type": "list", "elements": "dict", "required": True, "options": _ROW}}


class ActionModule(ActionBase):
    """Needs no connection."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(_SPEC)
        rows = given["rows"]
        widths = [max(len(row[column]) for row in rows) for column in ("subject", "state")] if rows else [0, 0]
        lines = [f"{row['subject']:{widths[0]}}  {row['state']:{widths[1]}}  {row['text']}".rstrip() for row in rows]
        display.display("\n" + "\n".join(f"  {line}" for line in lines) + "\n", color="bright green")
        return {"changed": False, "lines": lines}
