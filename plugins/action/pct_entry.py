# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells whether the way into a container is open, without an error if it is not."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ..plugin_utils import _pct_command as pct


class ActionModule(ActionBase):
    """Enters the container of the host and leaves it again."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        self.validate_argument_spec({})
        try:
            answer = self._low_level_execute_command("true", sudoable=False)
        except AnsibleConnectionFailure as error:
            words = str(error)
            away = pct.is_not_there(words)
            return {"changed": False, "entered": False, "not_there": away, "reason": "" if away else words}
        return {"changed": False, "entered": answer["rc"] == 0, "not_there": False, "reason": ""}
