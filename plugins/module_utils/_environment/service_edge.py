# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the service that runs from an environment: whether its last start was lost."""

from __future__ import annotations

import os
import time

from .._core.errors import KproError
from .._linux.command_edge import Command

UNIT_FOLDER = "/etc/systemd/system"
_PROPERTIES = "ActiveState,SubState,ExecMainExitTimestampMonotonic,InactiveEnterTimestampMonotonic,StateChangeTimestampMonotonic"


def start_was_lost(unit: str, checked_at: float) -> bool:
    """Say whether the service does not run although it should, and has ended since all files were read last.

    :param checked_at: when all files were read, in seconds since the epoch.
    """
    if not os.path.exists(f"{UNIT_FOLDER}/{unit}"):
        return False
    try:
        answer = Command().run(["systemctl", "show", unit, f"--property={_PROPERTIES}"], timeout_s=10.0)
    except KproError:
        return False
    return ended_since(answer.stdout, time.clock_gettime(time.CLOCK_MONOTONIC), time.time() - checked_at)


def ended_since(shown: str, uptime_s: float, age_s: float) -> bool:
    """Judge the answer of ``systemctl show``.

    :param uptime_s: systemd's monotonic clock now; ``age_s``: how long ago all files were read.
    """
    rows = dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)
    serving = rows.get("ActiveState") in ("active", "reloading", "deactivating") or (
        rows.get("ActiveState") == "activating" and not rows.get("SubState", "").startswith("auto-restart")
    )
    if serving:
        return False
    ended_us = max((int(text) for name, text in rows.items() if name.endswith("Monotonic") and text.isdecimal()), default=0)
    # A unit that systemd has forgotten says 0: then it ended at some time since the boot.
    return age_s > uptime_s - ended_us / 1e6
