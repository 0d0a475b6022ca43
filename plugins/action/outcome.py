# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells at the end of a run which deployments were stopped, and by what, and lets the run end non-zero for them."""

from __future__ import annotations

import typing as t

from ansible.utils.display import Display

from ..plugin_utils import _run_state as run_state
from ..plugin_utils._on_controller import OnController

display = Display()


class ActionModule(OnController):
    """Fails for a host that was stopped. The first host that is left prints the list of all, if there are several."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {}

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        here, everybody = variables["ansible_play_hosts"], variables["ansible_play_hosts_all"]
        stories = {host: run_state.story(host, variables["hostvars"][host].get(run_state.STATE) or {}, host in here) for host in everybody}
        me = variables["inventory_hostname"]
        if here and me == here[0] and len(everybody) > 1 and any(stories.values()):
            lines = [f"  {words or host + ': nothing stopped it'}" for host, words in stories.items()]
            display.display("\n" + "\n".join(lines) + "\n", color="bright red")
        return {"failed": True, "msg": stories[me]} if stories.get(me) else {}
