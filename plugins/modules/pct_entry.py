#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pct_entry
short_description: Tell whether the way into a container is open
version_added: 1.0.0
description:
  - Enters the container by the connection of the host and leaves it again. That it can't is an answer, not an error.
  - A container that is stopped, absent or elsewhere says nothing against the way to it.
author: kpro (@kpro)
seealso:
  - plugin: kpro.llm.pct
    plugin_type: connection
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: See whether the node's user gets to be root there
  kpro.llm.pct_entry:
  register: entry
"""

RETURN = r"""
entered:
  description: Whether the container was entered.
  returned: always
  type: bool
  sample: true
not_there:
  description: Whether the container is stopped, absent or elsewhere.
  returned: always
  type: bool
  sample: false
reason:
  description: Why the way is closed; empty if it is open, or if the container is not there.
  returned: always
  type: str
  sample: ""
"""
