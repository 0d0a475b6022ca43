#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Print the state of each link of a deployment
version_added: 1.0.0
description:
  - Judges the answers of other modules about node, container, environment, model and service, and prints one page with the state of each, the first
    broken one, its cause and its remedy.
  - Runs on the controller only and needs no connection. A broken link is an answer and no failure.
author: kpro (@kpro)
options:
  deployment:
    description: Name of the deployment.
    type: str
    required: true
  node_name:
    description: Inventory name of the node.
    type: str
    required: true
  vmid:
    description: Id of the container.
    type: int
    required: true
  port:
    description: Port of the service.
    type: int
    default: 30000
  node:
    description: Answer of M(kpro.llm.gpu_info) on the node. As for all answers, one that says that the host was unreachable or the task failed is fine.
    type: dict
    default: {}
  container:
    description: Answer of M(kpro.llm.lxc_container) in check mode.
    type: dict
    default: {}
  environment:
    description: What the role C(sglang_runtime) found in check mode, with the answers C(base), C(userland), C(cuda) and C(environment).
    type: dict
    default: {}
  model:
    description: Answer of M(kpro.llm.hf_model) in check mode.
    type: dict
    default: {}
  service:
    description: Answer of M(kpro.llm.sglang_info).
    type: dict
    default: {}
  diagnosis:
    description: Answer of M(kpro.llm.sglang_diagnose).
    type: dict
    default: {}
  answer:
    description: Answer of M(kpro.llm.sglang_probe).
    type: dict
    default: {}
extends_documentation_fragment:
  - kpro.llm.attributes.info
seealso:
  - module: kpro.llm.sglang_diagnose
"""

EXAMPLES = r"""
- name: Print the page
  kpro.llm.doctor:
    deployment: qwen
    node_name: kpro5
    vmid: 129
    node: "{{ __node }}"
    container: "{{ __container }}"
"""

RETURN = r"""
lines:
  description: What was printed.
  returned: always
  type: list
  elements: str
sentence:
  description: The first broken link with cause and remedy; empty if none is.
  returned: always
  type: str
  sample: "First broken link: container: container 129 is stopped. Run the deployment again, or start it by hand on kpro5: pct start 129."
report:
  description: The same as values.
  returned: always
  type: dict
  sample: {deployment: qwen, healthy: false, first_broken: container, links: [{name: node, state: ok}]}
"""
