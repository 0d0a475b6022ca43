#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Judge what one deployment would meet, before it changes anything
version_added: 1.0.0
description:
  - Returns the findings, each V(OK), V(note), V(will fix) or V(needs you). M(kpro.llm.findings) prints those of all deployments and stops.
  - A look that is missing without a reason is a finding, too.
  - It only judges what other modules observed; it runs on the controller and needs no connection.
author: kpro (@kpro)
options:
  wanted:
    description:
      - What the deployment asks for, with the keys C(lane), C(driver_version), C(driver_source), C(gpus), C(tp_size) (a number or V(auto)), C(port),
        C(replace_driver), C(moves_from) and C(plan).
    type: dict
    required: true
  node:
    description: Answer of M(kpro.llm.gpu_info) on the node.
    type: dict
    required: true
  container:
    description: Answer of M(kpro.llm.lxc_container) in check mode, or its failure.
    type: dict
    default: {}
  model:
    description: Answer of M(kpro.llm.hf_model) with C(only=config), or its failure.
    type: dict
    default: {}
  service:
    description: Answer of M(kpro.llm.sglang_info), if the container runs.
    type: dict
    default: {}
  plan:
    description: Answer of M(kpro.llm.sglang_launch), or its failure.
    type: dict
    default: {}
  entry:
    description: Answer of M(kpro.llm.pct_entry), where the container does not run yet.
    type: dict
    default: {}
  previous:
    description: Answers of M(kpro.llm.lxc_container_info) by previous node, where a second container might serve.
    type: dict
    default: {}
  errors:
    description: What ended a look, as C(ansible_failed_result) has it, by the name of the option that has the look's answer.
    type: dict
    default: {}
seealso:
  - module: kpro.llm.findings
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Judge what was seen
  kpro.llm.preflight:
    wanted:
      lane: auto
      driver_version: 580.173.02
      driver_source: runfile
      gpus: 2
      tp_size: 2
      port: 30000
    node: "{{ node_seen }}"
    container: "{{ container_seen }}"
  register: judged
"""

RETURN = r"""
findings:
  description: All findings in the order of the phases.
  returned: always
  type: list
  elements: dict
  sample:
    - subject: driver
      state: will fix
      sentence: None is loaded, 580.173.02 will be installed
"""
