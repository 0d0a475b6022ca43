# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints rows as an aligned table on the controller."""

from __future__ import annotations

import typing as t

from ansible.utils.display import Display

from ..plugin_utils._on_controller import OnController, block

display = Display()

_ROW = {"subject": {"type": "str", "required": True}, "state": {"type": "str", "required": True}, "text": {"type": "str", "default": ""}}


class ActionModule(OnController):
    """Prints the rows and returns them as lines."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {"rows": {"type": "list", "elements": "dict", "required": True, "options": _ROW}}

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        rows = given["rows"]
        widths = [max(len(row[column]) for row in rows) for column in ("subject", "state")] if rows else [0, 0]
        lines = [f"{row['subject']:{widths[0]}}  {row['state']:{widths[1]}}  {row['text']}".rstrip() for row in rows]
        display.display(block(lines), color="bright green")
        return {"lines": lines}
