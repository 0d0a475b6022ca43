# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of actions that only judge and print on the controller. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase


def this_run() -> str:
    """Return what tells this run of Ansible from any other: its main process, whose child each task's process is."""
    main = os.getppid()
    try:
        began = Path(f"/proc/{main}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:  # a controller without /proc
        began = ""
    return f"{main} {began}"


class OnController(ActionBase):
    """An action without a connection, the same in check mode.

    A subclass gives ``SPEC`` (an argument spec) and :meth:`answer`.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False
    SPEC: t.ClassVar[dict[str, t.Any]] = {}

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Validate the options and return the subclass's answer, which never changes anything."""
        super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(self.SPEC)
        return {"changed": False, **self.answer(given, task_vars or {})}

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Return the result for validated options."""
        raise NotImplementedError
