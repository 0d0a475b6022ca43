#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: driver_cleanup
short_description: Take away from a node what keeps its NVIDIA driver
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Stops and removes the boot unit and the persistence daemon that the collection put on a node, and its other files there. A file of the same
    name that somebody else wrote stays.
  - All of it stays while another guest of the node has a GPU, running or not, or a process uses one.
  - Does not remove the driver itself.
extends_documentation_fragment:
  - kpro.llm.attributes
options:
  leaving:
    description: Containers that leave the node in this run. They do not count, if they carry the tag V(kpro-llm).
    type: list
    elements: int
    default: []
  driver:
    description: Whether the driver will be removed afterwards. Fails in that case, with nothing removed, if anybody else needs it.
    type: bool
    default: false
  other_users:
    description: Other deployments that use this node, in words.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: kpro.llm.nvidia_driver
"""

EXAMPLES = r"""
- name: Take away what keeps the driver of a node that is left
  kpro.llm.driver_cleanup:
    leaving: [129]
  delegate_to: kpro6
"""

RETURN = r"""
plan:
  description: What was removed, or would be in check mode, one sentence each.
  returned: success
  type: list
  elements: str
  sample: [Stop nvidia-persistenced.service and remove /etc/systemd/system/nvidia-persistenced.service]
notes:
  description: What stays, and why.
  returned: success
  type: list
  elements: str
  sample: ["what keeps the driver stays (/etc/modules-load.d/kpro-nvidia.conf): container 140 (whisper) has a GPU"]
"""

import typing as t

from ..module_utils._core.changes import plan_result
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._pve.host_edge import Host
from ..module_utils._removal.driver_converge import apply, look, plan

ARGUMENT_SPEC: dict[str, t.Any] = {
    "leaving": {"type": "list", "elements": "int", "default": []},
    "driver": {"type": "bool", "default": False},
    "other_users": {"type": "list", "elements": "str", "default": []},
}

HOST_ROOT = "/"


def main_driver_cleanup(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    if not Host().is_root:
        raise KproError("the node's guests and processes", "the module does not run as root", "Use a root login on the node, or become")
    changes, notes = plan(look(params["leaving"], HOST_ROOT), params["other_users"], driver=params["driver"])
    if changes and not check_mode:
        apply(changes, HOST_ROOT)
        left, _notes = plan(look(params["leaving"], HOST_ROOT), params["other_users"], driver=params["driver"])
        if left:
            raise KproError(left[0].sentence, "it is still to be done after it was done", "Look who puts the file back, then run again")
    return {**plan_result(changes), "notes": notes}


def main() -> None:
    """Run the module."""
    run_module(main_driver_cleanup, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
