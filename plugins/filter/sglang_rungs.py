# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that makes the rungs of the ladder, each with the engine's config file and its options."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.options import service_rungs

DOCUMENTATION = r"""
name: sglang_rungs
short_description: The rungs of the fallback ladder, as the module sglang_service takes them
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Puts engine options in place of the line V(@KPRO_OPTIONS@) of a rendered config file, sorted, one a line, once for each
    profile.
  - Options that were renamed between releases get the name that the given release knows. An unknown option is an error that names the nearest
    known one. Null values are left out.
positional: profiles, options, version, fixed
options:
  _input:
    description: The rendered config file.
    type: str
    required: true
  profiles:
    description: Rungs in order, dictionaries with C(name), C(options) and, from the memory plan, C(passed_over); without any, there is one rung with
      O(options) only.
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
  fixed:
    description: Options that the config file names by itself, such as C(tp_size); they are only told.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show the files
  ansible.builtin.debug:
    msg: "{{ '@KPRO_OPTIONS@' | kpro.llm.sglang_rungs([{'name': 'short', 'options': {'context_length': 32768}}], {}, '0.5.23') }}"
"""

RETURN = r"""
_value:
  description: For each rung C(name), C(config_text), C(args) and C(refused).
  type: list
  elements: dict
"""


def sglang_rungs(
    text: str,
    profiles: t.Sequence[t.Mapping[str, t.Any]],
    options: t.Mapping[str, t.Any],
    version: str,
    fixed: t.Mapping[str, t.Any] | None = None,
) -> list[dict[str, t.Any]]:
    """Return the rungs."""
    try:
        return service_rungs(str(text), profiles, options, str(version), fixed)
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., list[dict[str, t.Any]]]]:
        return {"sglang_rungs": sglang_rungs}
