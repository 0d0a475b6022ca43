# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the service as it stands: its unit, the present run, and who holds its port."""

from __future__ import annotations

import dataclasses
import typing as t

from .._linux.processes import process_words, within_cgroup
from .._linux.processes_edge import ProcessTable
from .._linux.systemd_edge import Systemd


@dataclasses.dataclass(frozen=True)
class UnitNow:
    """A service as it stands, as ``sglang_info`` documents it."""

    state: dict[str, t.Any]
    identity: dict[str, t.Any]
    running: bool
    port_taken: bool
    port_owner: str
    port_is_ours: bool


def observe_unit(unit: str, port: int) -> dict[str, t.Any]:
    """Return the fields of :class:`UnitNow`."""
    systemd = Systemd(unit)
    state = systemd.state()
    taken, holder = ProcessTable().listener(port, prefer=state.control_group)
    ours = bool(holder and state.control_group and within_cgroup(holder.cgroup, state.control_group))
    owner = process_words(holder) if holder else "a process that can't be seen from the container" if taken else ""
    return dataclasses.asdict(UnitNow(state.as_dict(), systemd.identity(state).as_dict(), state.running, taken, owner, ours))
