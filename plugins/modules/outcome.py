#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: outcome
short_description: Tell at the end of a run which deployments were stopped
version_added: 1.0.0
description:
  - Fails for a host that M(kpro.llm.phase) noted as stopped, with the phase and the reason, so that the run ends non-zero.
  - With several deployments, one of which was stopped, it prints how each of them ended.
  - Runs on the controller only and needs no connection.
author: kpro (@kpro)
seealso:
  - module: kpro.llm.phase
extends_documentation_fragment:
  - kpro.llm.attributes.info
"""

EXAMPLES = r"""
- name: Tell what was stopped
  kpro.llm.outcome:
"""

RETURN = r"""#"""
