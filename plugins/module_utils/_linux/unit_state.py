# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A unit's state, from ``systemctl show``."""

from __future__ import annotations

import dataclasses
import re
import typing as t

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "InvocationID",
    "MainPID",
    "ExecMainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "NRestarts",
    "ControlGroup",
    "TimeoutStartUSec",
)

# siginfo's si_code as systemd prints it for the main process.
_KILLED_CODES = {"2": "killed", "3": "dumped", "killed": "killed", "dumped": "dumped"}


@dataclasses.dataclass(frozen=True)
class UnitState:
    """A unit as systemd sees it; texts are empty where systemd has nothing to say."""

    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    unit_file_state: str = ""
    need_daemon_reload: bool = False
    fragment_path: str = ""
    invocation_id: str = ""
    main_pid: int = 0
    exec_main_pid: int = 0
    exec_code: str = ""
    exec_status: int = 0
    exec_main_start_us: int = 0
    n_restarts: int = 0
    control_group: str = ""
    timeout_start: str = ""

    @property
    def running(self) -> bool:
        """A main process is there and systemd does not want it gone."""
        return self.active_state in ("active", "activating", "reloading") and self.main_pid > 0

    @property
    def waiting_for_restart(self) -> bool:
        """Between a crash and the automatic restart."""
        return self.active_state == "activating" and self.sub_state.startswith("auto-restart")

    @property
    def exit_words(self) -> str:
        """How the main process ended, in words; empty if it has not."""
        if self.exec_code in ("", "0"):
            return ""
        if self.exec_code in _KILLED_CODES:
            return f"ended by signal {self.exec_status}"
        return f"exit code {self.exec_status}"

    def as_dict(self) -> dict[str, t.Any]:
        """Return the state as plain values."""
        return dataclasses.asdict(self)


def unit_state_from_show(text: str) -> UnitState:
    """Read the answer of ``systemctl show --property=...`` (one ``Name=value`` a line)."""
    found = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    return UnitState(
        load_state=found.get("LoadState", ""),
        active_state=found.get("ActiveState", ""),
        sub_state=found.get("SubState", ""),
        result=found.get("Result", ""),
        unit_file_state=found.get("UnitFileState", ""),
        need_daemon_reload=found.get("NeedDaemonReload", "") == "yes",
        fragment_path=found.get("FragmentPath", ""),
        invocation_id=found.get("InvocationID", ""),
        main_pid=_number(found.get("MainPID", "")),
        exec_main_pid=_number(found.get("ExecMainPID", "")),
        exec_code=found.get("ExecMainCode", ""),
        exec_status=_number(found.get("ExecMainStatus", "")),
        exec_main_start_us=_number(found.get("ExecMainStartTimestampMonotonic", "")),
        n_restarts=_number(found.get("NRestarts", "")),
        control_group=found.get("ControlGroup", ""),
        timeout_start=found.get("TimeoutStartUSec", ""),
    )


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d+", text) else 0
