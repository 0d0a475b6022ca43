# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the service as it stands: its unit, the present run, and who holds its port."""

from __future__ import annotations

import typing as t

from .._linux.processes import process_words, within_cgroup
from .._linux.processes_edge import ProcessTable
from .._linux.systemd_edge import Systemd


def observe_unit(unit: str, port: int) -> dict[str, t.Any]:
    """Return state, identity and port of a service, as ``sglang_info`` documents them."""
    systemd = Systemd(unit)
    state = systemd.state()
    taken, holder = ProcessTable().listener(port, prefer=state.control_group)
    ours = bool(holder and state.control_group and within_cgroup(holder.cgroup, state.control_group))
    unseen = "a process that can't be seen from the container" if taken else ""
    return {
        "state": state.as_dict(),
        "identity": systemd.identity(state).as_dict(),
        "running": state.running,
        "port_taken": taken,
        "port_owner": process_words(holder) if holder else unseen,
        "port_is_ours": ours,
    }
