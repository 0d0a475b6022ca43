# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that writes the engine's options into its config file, once for each rung of the ladder."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.options import rung_texts

DOCUMENTATION = r"""
name: sglang_rungs
short_description: The engine's config file for each rung of the fallback ladder
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Puts engine options in place of the line V(@KPRO_OPTIONS@) of a rendered config file, sorted, one a line, and returns one text for each profile.
  - Options that were renamed between releases get the name that the given release knows. An unknown option is an error that names the nearest
    known one. Null values are left out.
positional: profiles, options, version
options:
  _input:
    description: The rendered config file.
    type: str
    required: true
  profiles:
    description: Rungs in order, dictionaries with C(name) and C(options); without any, there is one rung with O(options) only.
    type: list
    elements: dict
    required: true
  options:
    description: Engine options of all rungs, by long name, with dashes or underscores.
    type: dict
    required: true
  version:
    description: Version of the engine.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the files
  ansible.builtin.debug:
    msg: "{{ '@KPRO_OPTIONS@' | kpro.llm.sglang_rungs([{'name': 'short', 'options': {'context_length': 32768}}], {}, '0.5.23') }}"
"""

RETURN = r"""
_value:
  description: One text for each rung.
  type: list
  elements: str
"""


def sglang_rungs(text: str, profiles: t.Sequence[t.Mapping[str, t.Any]], options: t.Mapping[str, t.Any], version: str) -> list[str]:
    """Return the config file of each rung."""
    try:
        return rung_texts(str(text), profiles, options, str(version))
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., list[str]]]:
        return {"sglang_rungs": sglang_rungs}
