# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that tells what the other containers on a container's node ask for."""

from __future__ import annotations

import typing as t

from ..plugin_utils._gpu_requests import HostVars, requests_on

DOCUMENTATION = r"""
name: gpu_neighbours
short_description: What the other containers of the inventory ask of a container's node
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Reads C(gpu_container__gpus), C(gpu_container__share_gpus), the id and the node of each host, also of those that the run leaves out.
positional: hostvars, host, in_run
options:
  _input:
    description: Inventory names of the containers.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variables of all hosts.
    type: dict
    required: true
  host:
    description: The container whose neighbours are asked for.
    type: str
    required: true
  in_run:
    description: The hosts that this run treats.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Give the GPUs of the node out among all its containers
  ansible.builtin.include_role:
    name: kpro.llm.gpu_container
  vars:
    gpu_container__neighbours: "{{ groups['llm_container'] | kpro.llm.gpu_neighbours(hostvars, inventory_hostname, ansible_play_hosts) }}"
"""

RETURN = r"""
_value:
  description: List of dictionaries, as O(kpro.llm.lxc_container#module:neighbours) takes it.
  type: list
  elements: dict
"""


def gpu_neighbours(hosts: t.Iterable[str], hostvars: HostVars, host: str, in_run: t.Container[str]) -> list[dict[str, t.Any]]:
    """Return the others' requests."""
    return requests_on((other for other in hosts if other != host), hostvars, str(hostvars[host].get("pct_node", "")), in_run)


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., list[dict[str, t.Any]]]]:
        return {"gpu_neighbours": gpu_neighbours}
