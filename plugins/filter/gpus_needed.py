# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that tells which GPUs of a node its containers need."""

from __future__ import annotations

import typing as t

from ..plugin_utils._gpu_requests import HostVars, needed_on, requests_on

DOCUMENTATION = r"""
name: gpus_needed
short_description: The GPUs of a node that the containers of the inventory need together
version_added: 1.0.0
author: kpro (@kpro)
description:
  - A problem of a GPU that nobody needs is not in the way.
positional: hostvars, node
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
  node:
    description: Inventory name of the node.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Keep the driver for what the containers need
  ansible.builtin.include_role:
    name: kpro.llm.gpu_node
  vars:
    gpu_node__gpus: "{{ groups['llm_container'] | kpro.llm.gpus_needed(hostvars, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: V(all), a number, or a list of UUIDs and bus addresses. V(all) if no container of the inventory is on the node.
  type: raw
"""


def gpus_needed(hosts: t.Iterable[str], hostvars: HostVars, node: str) -> t.Any:
    """Return what they need together."""
    return needed_on(requests_on(hosts, hostvars, node))


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"gpus_needed": gpus_needed}
