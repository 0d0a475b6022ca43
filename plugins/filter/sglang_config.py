# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that writes the engine's config file."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._sglang_options import config_text, named_for

DOCUMENTATION = r"""
name: sglang_config
short_description: Engine options as lines of SGLang's config file
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Turns a dictionary of engine options into the lines of the YAML file for C(--config), sorted by name.
  - Options that were renamed between releases get the name that the given release knows; null values are left out.
positional: version
options:
  _input:
    description: Engine options by long name, with dashes or underscores.
    type: dict
    required: true
  version:
    description: Version of the engine.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the lines
  ansible.builtin.debug:
    msg: "{{ {'context_length': 65536} | kpro.llm.sglang_config('0.5.23') }}"
"""

RETURN = r"""
_value:
  description: Lines of YAML.
  type: str
"""


def sglang_config(options: t.Mapping[str, t.Any], version: str) -> str:
    """Return the lines of the engine's config file."""
    try:
        return config_text(named_for(options, version))
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"sglang_config": sglang_config}
