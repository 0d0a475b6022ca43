#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: migration
short_description: Choose how a deployment moves to another node
version_added: 1.0.0
description:
  - Judges from where the container is whether Proxmox moves it within its cluster, or a new one is made beside it, or there is nothing to move.
  - It only judges what M(kpro.llm.lxc_container_info) saw on both nodes; it runs on the controller and needs no connection.
author: kpro (@kpro)
options:
  source:
    description: Inventory name of the old node.
    type: str
    required: true
  target:
    description: Inventory name of the new node.
    type: str
    required: true
  there:
    description: Answer of M(kpro.llm.lxc_container_info) on the old node, which may be unreachable.
    type: dict
    required: true
  here:
    description: Answer of M(kpro.llm.lxc_container_info) on the new node.
    type: dict
    required: true
  declared_address:
    description: The container's declared address, with or without prefix length; anything without a dot means that it is not fixed.
    type: str
    default: ""
  adopt:
    description: Whether a container that is not ours may be taken.
    type: bool
    default: false
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Choose the way
  kpro.llm.migration:
    source: kpro6
    target: kpro5
    there: "{{ seen_there }}"
    here: "{{ seen_here }}"
"""

RETURN = r"""
way:
  description:
    - V(cluster), V(separate), V(fresh) (the old node has no such container), V(gone) (the old node does not answer) or V(done).
  returned: success
  type: str
  sample: separate
sentence:
  description: What that means.
  returned: success
  type: str
  sample: A new container 129 is made on kpro5; the one on kpro6 answers until the new one does
peer:
  description: Whether the old node can be asked for the model.
  returned: success
  type: bool
  sample: true
"""
