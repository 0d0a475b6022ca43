#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: lxc_migrate
short_description: Move a GPU container to another node of its cluster
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Shuts an LXC container of Proxmox VE down, moves it with its volumes to another node of the same cluster, and leaves it stopped there.
    M(kpro.llm.lxc_container) then gives it the GPUs of its new node and starts it.
  - Proxmox refuses to migrate a container with folders of its node mounted, and ignores device nodes, so that the container does
    not start on the other side. Here such mounts are marked as shared for the time of the move. Their content does not travel.
  - Only a container with the tag V(kpro-llm) is moved, unless O(adopt=true). One that the HA manager has, or that is locked, is left alone.
  - Runs as root on any node of the cluster, and speaks to Proxmox through C(pvesh). A move that outlasts its run is waited for by the next one.
    Of a move that was killed, the next run takes off what it left (lock, marks, half copies), if a record on this node shows that it was ours;
    else it names the commands.
extends_documentation_fragment:
  - kpro.llm.attributes
options:
  vmid:
    description: Id of the container in the cluster.
    type: int
    required: true
  target:
    description: Name of the node to which it goes, as Proxmox knows it. Without it the node on which the module runs.
    type: str
  target_storage:
    description: Storage of its volumes there. Without it the one of the same name.
    type: str
  adopt:
    description: Whether a container that is not ours may be moved.
    type: bool
    default: false
  task_timeout_s:
    description: Longest wait for one task of Proxmox, in seconds. Nothing is ended then. The move goes on, and the next run waits for it.
    type: int
    default: 3600
  shutdown_timeout_s:
    description: Time for the guest to shut down, in seconds. It is never killed.
    type: int
    default: 180
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: kpro.llm.lxc_container
"""

EXAMPLES = r"""
- name: Bring the container to this node
  kpro.llm.lxc_migrate:
    vmid: 129
"""

RETURN = r"""
plan:
  description: What was done, or would be done in check mode, one sentence for each step.
  returned: success
  type: list
  elements: str
  sample:
    - Shut down container 129 on kpro6
    - Move container 129 with its volumes to kpro5
node:
  description: Node to which it was to go.
  returned: success
  type: str
  sample: kpro5
moved_from:
  description: Node on which it was. Empty if it was there already.
  returned: success
  type: str
  sample: kpro6
vmid:
  description: Id of the container.
  returned: success
  type: int
  sample: 129
"""

import typing as t

from ..module_utils._container.migrate import Migration, MoveOptions
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._linux.command_edge import Command
from ..module_utils._pve.api_edge import Pvesh
from ..module_utils._pve.calls_edge import FOLDER, Calls
from ..module_utils._pve.host_edge import Host


def main_lxc_migrate(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Bring the container to the target node."""
    host = Host()
    if not host.is_root:
        raise KproError("pvesh", "the module does not run as root", "Use a root login on the node, or become")
    options = MoveOptions(params["vmid"], params["target"] or host.node, params["target_storage"] or "", params["adopt"])
    command = Command()
    calls = Calls(command, host.path_of(FOLDER))
    api = Pvesh(command, deadline_s=float(params["task_timeout_s"]), calls=calls)
    return Migration(options, api, calls, command, host.node, float(params["task_timeout_s"]), params["shutdown_timeout_s"]).run(check_mode)


def main() -> None:
    """Run the module."""
    spec: dict[str, t.Any] = {
        "vmid": {"type": "int", "required": True},
        "target": {"type": "str"},
        "target_storage": {"type": "str"},
        "adopt": {"type": "bool", "default": False},
        "task_timeout_s": {"type": "int", "default": 3600},
        "shutdown_timeout_s": {"type": "int", "default": 180},
    }
    run_module(main_lxc_migrate, spec)


if __name__ == "__main__":
    main()
