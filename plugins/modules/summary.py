#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: summary
short_description: Print the summary of a deployment
version_added: 1.0.0
description:
  - Prints on the controller, one line for each phase, what a deployment found or did and how long it took.
  - Runs on the controller only and needs no connection.
author: kpro (@kpro)
options:
  node:
    description: Inventory name of the node.
    type: str
    required: true
  results:
    description: The result facts of the roles, by phase C(node), C(container), C(runtime), C(model), C(service), C(answer); empty where a phase did not run.
    type: dict
    required: true
  phases:
    description: The phases as M(kpro.llm.phase) noted them.
    type: list
    elements: dict
    default: []
seealso:
  - module: kpro.llm.phase
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Print the summary
  kpro.llm.summary:
    node: kpro5
    results:
      container: "{{ gpu_container__result }}"
    phases: "{{ kpro_llm__run['phases'] }}"
"""

RETURN = r"""
lines:
  description: What was printed.
  returned: always
  type: list
  elements: str
  sample:
    - "container    6.1 s  129 at 10.77.0.129, GPUs: GPU-1c5e0000-0000-0000-0000-000000000001"
"""
