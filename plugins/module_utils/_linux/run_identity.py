# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a start of the service is, so that nothing ever speaks about another one."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError


@dataclasses.dataclass(frozen=True)
class RunIdentity:
    """One start of one unit.

    :param invocation_id: systemd's id of this start (32 hex digits; empty: never started).
    :param boot_id: boot of the container in which it was started.
    :param main_pid: main process (0: none any more).
    :param main_start_ticks: its start time in clock ticks since boot (field 22 of ``/proc/PID/stat``); tells a reused PID apart.
    :param n_restarts: systemd's count of automatic restarts.
    """

    unit: str
    invocation_id: str = ""
    boot_id: str = ""
    main_pid: int = 0
    main_start_ticks: int = 0
    n_restarts: int = 0
    engine_version: str = ""
    model_path: str = ""
    served_name: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        """Return the identity as plain values for a module's result."""
        return dataclasses.asdict(self)


def identity_from_dict(values: t.Mapping[str, t.Any]) -> RunIdentity:
    """Read an identity that a module returned earlier; unknown keys are ignored.

    :raises KproError: if there is no unit in it or a number is none.
    """
    if not values.get("unit"):
        raise KproError("run identity", "it names no unit", "Pass the identity that kpro.llm.sglang_service returned")
    return RunIdentity(
        unit=str(values["unit"]),
        invocation_id=str(values.get("invocation_id") or ""),
        boot_id=str(values.get("boot_id") or ""),
        main_pid=_number(values, "main_pid"),
        main_start_ticks=_number(values, "main_start_ticks"),
        n_restarts=_number(values, "n_restarts"),
        engine_version=str(values.get("engine_version") or ""),
        model_path=str(values.get("model_path") or ""),
        served_name=str(values.get("served_name") or ""),
    )


def _number(values: t.Mapping[str, t.Any], name: str) -> int:
    try:
        return int(values.get(name) or 0)
    except (TypeError, ValueError) as error:
        raise KproError("run identity", f"{name} is no number ({error})") from error


def start_ticks_of(stat_text: str) -> int:
    """Return field 22 (start time in clock ticks since boot) of the text of ``/proc/PID/stat``.

    The command name (field 2) may hold spaces and brackets, so fields are counted from the last bracket.
    """
    return int(stat_text.rpartition(")")[2].split()[19])


def identity_change(expected: RunIdentity, present: RunIdentity) -> str:
    """Return in words how ``present`` is another start than ``expected``; empty if it is the same one."""
    if expected.boot_id and present.boot_id and expected.boot_id != present.boot_id:
        return f"the container was booted again (boot {expected.boot_id} -> {present.boot_id})"
    if expected.invocation_id != present.invocation_id:
        restarts = present.n_restarts - expected.n_restarts
        how = f"restarted {restarts} times by systemd (NRestarts {expected.n_restarts} -> {present.n_restarts})" if restarts > 0 else "started anew"
        return f"{expected.unit} was {how}: invocation {expected.invocation_id or 'none'} -> {present.invocation_id or 'none'}"
    # A process that has just gone has no start time; systemd names it a moment longer.
    same_process = expected.main_pid == present.main_pid and present.main_start_ticks in (0, expected.main_start_ticks)
    if expected.main_pid and present.main_pid and not same_process:
        return f"the main process of {expected.unit} changed: {expected.main_pid} -> {present.main_pid}"
    return ""
