# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LXC's post-stop hook: what waited for a stop is applied, also when the guest ended itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import config_api, locks, node
from .errors import ApiError

# A stop by a task holds the lock for longer than this and applies the changes itself.
LOCK_WAIT_S = 0.2


def main(_argv: Sequence[str]) -> int:
    """Apply pending changes of the container named by LXC; never fail the hook."""
    here = node.this_node(lambda text: None)
    here.lock_wait_s = LOCK_WAIT_S
    vmid = os.environ.get("LXC_NAME", "")
    if os.environ.get("LXC_TARGET") == "reboot" or not vmid:
        return 0
    try:
        with locks.config_lock(here, vmid):
            config_api.apply_pending(here, vmid)
    except ApiError:
        return 0
    return 0
