#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: table
short_description: Print rows as a table on the controller
version_added: 1.0.0
description:
  - Prints aligned rows, for playbooks that report.
  - Runs on the controller only and needs no connection.
author: kpro (@kpro)
options:
  rows:
    description: The rows.
    type: list
    elements: dict
    required: true
    suboptions:
      subject:
        description: What the row is about.
        type: str
        required: true
      state:
        description: How it stands, in a word or two.
        type: str
        required: true
      text:
        description: The rest of the row.
        type: str
        default: ""
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Print how things stand
  kpro.llm.table:
    rows:
      - subject: container
        state: running
        text: 129 at 10.77.0.129
"""

RETURN = r"""
lines:
  description: What was printed.
  returned: always
  type: list
  elements: str
  sample: ["container  running  129 at 10.77.0.129"]
"""
