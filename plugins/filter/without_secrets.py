# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that leaves secrets out of what a module is told only so that it can reckon with it."""

from __future__ import annotations

import typing as t

from ..module_utils._service.text import without_secret_names

DOCUMENTATION = r"""
name: without_secrets
short_description: An environment without the variables that hold secrets
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Modules write their options to the target's journal, and Ansible shows them when it is asked to. Variables whose names sound like a
    secret (token, password, API key and the like) are left out. Numbers and switches stay.
options:
  _input:
    description: Variables by name.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan with what decides about memory
  kpro.llm.sglang_launch:
    environment: "{{ sglang_server__environment | kpro.llm.without_secrets }}"
"""

RETURN = r"""
_value:
  description: The other variables.
  type: dict
"""


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        return {"without_secrets": without_secret_names}
