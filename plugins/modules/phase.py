#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: phase
short_description: Note on the controller that a phase of the deployment begins
version_added: 1.0.0
description:
  - Appends name and time to the fact C(kpro_llm__phases) of the host, from which the summary of a deployment tells the
    time that each phase took.
  - Runs on the controller only and needs no connection.
author: kpro (@kpro)
options:
  name:
    description: Name of the phase.
    type: str
    required: true
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Note the phase
  kpro.llm.phase:
    name: runtime
"""

RETURN = r"""
ansible_facts:
  description: The list C(kpro_llm__phases), each with C(name) and C(started_s) (seconds since 1970).
  returned: always
  type: dict
  sample:
    kpro_llm__phases:
      - name: runtime
        started_s: 1796000000.5
"""
