#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: findings
short_description: Print what the preflight found for all deployments of a run, and stop if something needs a person
version_added: 1.0.0
description:
  - Prints one table, each row V(OK), V(note), V(will fix) or V(needs you), and fails if one needs a person. Use it with C(run_once), so that it ends
    the run for all hosts.
  - A deployment that left no judgement, or a failed one, is a row that needs a person, too.
  - Registered as C(kpro_llm__preflight), it is what M(kpro.llm.phase) demands before anything is changed.
  - Runs on the controller only and needs no connection.
author: kpro (@kpro)
options:
  hosts:
    description: All deployments of the run, also those that can't go on.
    type: list
    elements: str
    required: true
  judged:
    description: Name of the variable of each host that holds the answer of M(kpro.llm.preflight), or what ended it.
    type: str
    required: true
seealso:
  - module: kpro.llm.preflight
  - module: kpro.llm.phase
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Print all findings, and stop if one needs you
  kpro.llm.findings:
    hosts: "{{ ansible_play_hosts_all }}"
    judged: judged
  run_once: true
  register: kpro_llm__preflight
"""

RETURN = r"""
hosts:
  description: The deployments.
  returned: always
  type: list
  elements: str
  sample: [qwen]
finished:
  description: Whether every deployment was looked at, and nothing needs a person.
  returned: always
  type: bool
  sample: true
run:
  description: What tells this run of Ansible from any other, so that nothing of an earlier one opens a phase.
  returned: always
  type: str
  sample: 4711 9187213
findings:
  description: The findings by deployment, in the order of the phases.
  returned: always
  type: dict
  sample:
    qwen:
      - subject: driver
        state: will fix
        sentence: None is loaded, 580.173.02 will be installed
"""
