#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: lxc_container_info
short_description: Tell where an LXC container of Proxmox VE is and how it stands
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Looks for one container on the node on which it runs, and in the cluster if it is not there. Never changes anything.
  - A container that does not exist, or is on another node, is an answer and not an error.
extends_documentation_fragment:
  - kpro.llm.attributes.info
options:
  vmid:
    description: Id of the container in the cluster.
    type: int
    required: true
seealso:
  - module: kpro.llm.lxc_container
"""

EXAMPLES = r"""
- name: Look where container 129 is
  kpro.llm.lxc_container_info:
    vmid: 129
  register: found
"""

RETURN = r"""
exists:
  description: Whether the cluster has a guest with this id.
  returned: success
  type: bool
  sample: true
here:
  description: Whether it is a container on the node on which the module ran.
  returned: success
  type: bool
  sample: true
kind:
  description: V(lxc), or V(qemu) for a virtual machine. Empty if there is no such guest.
  returned: success
  type: str
  sample: lxc
node:
  description: Node on which the guest is. Empty if there is none.
  returned: success
  type: str
  sample: kpro5
queried_node:
  description: Node on which the module ran, as Proxmox knows it.
  returned: success
  type: str
  sample: kpro5
cluster_nodes:
  description: All nodes of the cluster, only the node itself if it is in none.
  returned: success
  type: list
  elements: str
  sample: [kpro5, kpro6]
running:
  description: Whether it runs.
  returned: success
  type: bool
  sample: true
ours:
  description: Whether it carries the tag V(kpro-llm). Only known for a container that is here.
  returned: success
  type: bool
  sample: true
onboot:
  description: Whether it starts with its node. Only known for a container that is here.
  returned: success
  type: bool
  sample: true
lock:
  description: Proxmox's lock on it. Empty if there is none.
  returned: success
  type: str
  sample: ""
sentence:
  description: Where it is and how it stands, in words.
  returned: success
  type: str
  sample: Container 129 runs on kpro5 and starts with it
hostname:
  description: Its name.
  returned: success
  type: str
  sample: qwen
address:
  description: IPv4 address of its first interface, configured or as found. Empty if it has none or is not here.
  returned: success
  type: str
  sample: 10.77.0.129
"""

import typing as t

from ..module_utils._container.look import look
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._linux.command_edge import Command
from ..module_utils._pve.api_edge import Pvesh
from ..module_utils._pve.host_edge import Host


def main_lxc_container_info(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Return where the container is."""
    host = Host()
    if not host.is_root:
        raise KproError("pvesh", "the module does not run as root", "Use a root login on the node, or become")
    return {"changed": False, **look(params["vmid"], host.node, Pvesh(Command()))}


def main() -> None:
    """Run the module."""
    run_module(main_lxc_container_info, {"vmid": {"type": "int", "required": True}})


if __name__ == "__main__":
    main()
