#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: phase
short_description: Begin a phase of the deployment, if it may begin
version_added: 1.0.0
description:
  - Returns the state of the host in this run, which the playbook registers as C(kpro_llm__run). A register lives as long as the run.
  - A phase that changes something begins only after the finished preflight of every deployment of the run, which M(kpro.llm.findings) leaves
    in the register C(kpro_llm__preflight). Else the task fails, so that a preflight that was ended by anything ends the run.
  - A deployment that a failure has stopped, its own or that of its node, is not taken further. The others are.
  - Runs on the controller only and needs no connection.
author: kpro (@kpro)
options:
  name:
    description: Name of the phase that begins.
    type: str
    default: ""
  looks_only:
    description: The phase changes nothing, so that it needs no preflight.
    type: bool
    default: false
  needs:
    description: Names of the results that the phase reads. The result of the node is looked for at the host C(pct_node).
    type: list
    elements: str
    default: []
  ended:
    description: What failed, as C(ansible_failed_result) has it. The phase that began last is noted as the one that stopped this host; none begins.
    type: dict
seealso:
  - module: kpro.llm.findings
  - module: kpro.llm.outcome
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Begin the phase
  kpro.llm.phase:
    name: runtime
    needs: [gpu_node__result, gpu_container__result]
  register: kpro_llm__run

- name: Do it, unless something stopped this deployment
  when: kpro_llm__run['go']
  block:
    - name: Install the runtime
      ansible.builtin.include_role:
        name: kpro.llm.sglang_runtime
  rescue:
    - name: Note what stopped it
      kpro.llm.phase:
        ended: "{{ ansible_failed_result | default({}) }}"
      register: kpro_llm__run
"""

RETURN = r"""
phases:
  description: The phases that began, each with C(name) and C(started_s) (seconds since 1970).
  returned: always
  type: list
  elements: dict
  sample:
    - name: runtime
      started_s: 1796000000.5
stopped:
  description: C(phase) and C(why) of what stopped this host; empty if nothing did.
  returned: always
  type: dict
  sample: {}
go:
  description: Whether the phase is to be done for this host.
  returned: always
  type: bool
  sample: true
missing:
  description: Those of O(needs) that this run has not found yet.
  returned: always
  type: list
  elements: str
  sample: [gpu_node__result]
"""
