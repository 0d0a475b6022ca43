# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that quotes a value for systemd's environment files."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._service.text import quoted_for_systemd

DOCUMENTATION = r"""
name: systemd_quote
short_description: Quote a value for an EnvironmentFile of systemd
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Puts the value into double quotes as systemd reads them. A line break cannot be written and is refused.
options:
  _input:
    description: The value.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write a variable
  ansible.builtin.debug:
    msg: "NAME={{ 'a value' | kpro.llm.systemd_quote }}"
"""

RETURN = r"""
_value:
  description: The quoted value.
  type: str
"""


def systemd_quote(value: str) -> str:
    """Return the value in double quotes."""
    try:
        return quoted_for_systemd(value)
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"systemd_quote": systemd_quote}
