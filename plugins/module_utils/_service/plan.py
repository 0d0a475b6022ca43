# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changes from the present service to the wanted one."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import Change
from .._linux.unit_state import UnitState
from .text import settings_text


@dataclasses.dataclass(frozen=True)
class ServiceFile:
    """One file of the service.

    :param role: unit, config, environment, gate, launcher or api_key.
    :param text: content; None for an absent file.
    :param secret: content is never shown.
    """

    role: str
    path: str
    text: str | None
    mode: int
    owner: str
    group: str
    secret: bool = False


@dataclasses.dataclass(frozen=True)
class ServicePresent:
    """The present service: files by role (text None if absent), the unit, and the digest that the running process was started with."""

    files: t.Mapping[str, ServiceFile]
    unit: UnitState
    started_digest: str = ""
    started_invocation_id: str = ""


@dataclasses.dataclass(frozen=True)
class ServiceWanted:
    """The wanted service.

    :param digest: of all texts, as written into the environment file.
    :param running: the unit runs and starts at boot; otherwise neither.
    :param force_restart: restart although nothing changed.
    """

    files: tuple[ServiceFile, ...]
    digest: str
    running: bool = True
    force_restart: bool = False


def plan_service(present: ServicePresent, wanted: ServiceWanted) -> list[Change]:
    """Return the steps, in order, from ``present`` to ``wanted``; none if they are the same."""
    changes = [change for file in wanted.files for change in _file_changes(present.files.get(file.role), file)]
    written = {change.action[1] for change in changes if change.action[0] == "write"}
    if "unit" in written or present.unit.need_daemon_reload:
        changes.append(Change("Let systemd read the unit again", action=("daemon_reload",)))
    boot_start = present.unit.unit_file_state in ("enabled", "enabled-runtime")
    if wanted.running and not boot_start:
        changes.append(Change("Start the service at boot", "disabled", "enabled", action=("enable",)))
    if not wanted.running and boot_start:
        changes.append(Change("Do not start the service at boot", "enabled", "disabled", action=("disable",)))
    changes.extend(_run_changes(present, wanted, changes))
    return changes


def new_settings(present: ServicePresent, wanted: ServiceWanted) -> bool:
    """Whether the engine would be started with other options or another environment than the files on disk hold."""
    for file in wanted.files:
        have = present.files.get(file.role)
        if file.role in ("config", "environment") and (have is None or settings_text(have.text or "") != settings_text(file.text or "")):
            return True
    return False


def _file_changes(present: ServiceFile | None, wanted: ServiceFile) -> list[Change]:
    if wanted.text is None:
        return []
    if present is None or present.text is None:
        return [Change(f"Write {wanted.path}", None, wanted.text, action=("write", wanted.role))]
    if present.text != wanted.text:
        return [Change(f"Write {wanted.path}", present.text, wanted.text, action=("write", wanted.role))]
    have, want = (f"{file.owner}:{file.group} {file.mode:04o}" for file in (present, wanted))
    if have != want:
        return [Change(f"Set owner and mode of {wanted.path}", have, want, action=("permit", wanted.role))]
    return []


def _run_changes(present: ServicePresent, wanted: ServiceWanted, earlier: t.Sequence[Change]) -> list[Change]:
    unit = present.unit
    if not wanted.running:
        there = unit.running or unit.waiting_for_restart
        return [Change("Stop the service", unit.active_state, "inactive", action=("stop",))] if there else []
    if not unit.running:
        word = "crashed, waiting for its restart" if unit.waiting_for_restart else unit.active_state or "absent"
        return [Change("Start the service", word, "active", action=("restart",))]
    reason = "as asked" if wanted.force_restart else restart_reason(present, wanted, earlier)
    return [Change(f"Restart the service ({reason})", "active", "active", action=("restart",))] if reason else []


def restart_reason(present: ServicePresent, wanted: ServiceWanted, earlier: t.Sequence[Change]) -> str:
    """Return why the running process does not fit what is wanted; empty if it does.

    The gate notes the digest it was started with. Without such a note (a gate of the user's own) only what this run writes counts.
    """
    if present.started_digest and present.started_invocation_id == present.unit.invocation_id:
        if present.started_digest == wanted.digest:
            return ""
        return _changed_names(present, wanted) or "it was started with an older configuration"
    return _changed_names(present, wanted) if any(change.action[0] == "write" for change in earlier) else ""


def _changed_names(present: ServicePresent, wanted: ServiceWanted) -> str:
    names = []
    for file in wanted.files:
        have = present.files.get(file.role)
        if file.text is None or file.role == "api_key":
            continue
        if have is None or have.text is None or settings_text(have.text) != settings_text(file.text):
            names.append(file.role)
    return f"changed: {', '.join(names)}" if names else ""
