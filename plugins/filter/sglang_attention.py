# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that fits the engine's attention to the GPUs."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.gpu_settings import attention_for
from ..module_utils._engine.lanes import choose_lane

DOCUMENTATION = r"""
name: sglang_attention
short_description: The engine's attention backend for the GPUs at hand
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Returns the engine options for attention by the GPUs' architecture, and those to fall back to where their kernels can't be compiled or don't run.
positional: capabilities
options:
  _input:
    description: Name of a lane.
    type: str
    required: true
  capabilities:
    description: Compute capabilities of the GPUs, like V(8.6). Without any, nothing is said.
    type: list
    elements: str
    required: true
  toolkit:
    description: Whether a CUDA toolkit of the lane's major is installed.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Show the attention of an RTX A6000
  ansible.builtin.debug:
    msg: "{{ 'cu13' | kpro.llm.sglang_attention(['8.6']) }}"
"""

RETURN = r"""
_value:
  description: Dictionary with C(options) and C(fallback), each of them engine options by long name.
  type: dict
"""


def sglang_attention(lane_name: str, capabilities: t.Sequence[str], toolkit: bool = True) -> dict[str, dict[str, str]]:
    """Return options and fallback."""
    try:
        lane = choose_lane(str(lane_name), "")
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error
    found = attention_for(lane, [str(one) for one in capabilities], toolkit)
    return {"options": dict(found.options), "fallback": dict(found.fallback)}


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"sglang_attention": sglang_attention}
