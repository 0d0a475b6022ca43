# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that divides a model among the GPUs at hand."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.tensor_parallel import tp_size, wanted_count

DOCUMENTATION = r"""
name: sglang_tp_size
short_description: Over how many GPUs the engine divides a model
version_added: 1.0.0
author: kpro (@kpro)
description:
  - A number stays what it is. V(auto) becomes as many of the GPUs as divide the model's heads, by powers of two.
positional: gpus, config
options:
  _input:
    description: A number, or V(auto).
    type: raw
    required: true
  gpus:
    description: The container's GPUs, as C(gpu_container__gpus) chooses them (V(all), a number, a list), or how many it has.
    type: raw
    required: true
  config:
    description: The model's C(config.json). Empty if it is not known; then all GPUs count.
    type: dict
    default: {}
  there:
    description: How many GPUs the node has, for V(all).
    type: int
    default: 0
  lane:
    description: Name of the engine's lane. On V(cpu) it uses no GPU, and the answer to V(auto) is 1.
    type: str
    default: auto
"""

EXAMPLES = r"""
- name: Show that three GPUs leave one idle
  ansible.builtin.debug:
    msg: "{{ 'auto' | kpro.llm.sglang_tp_size(3, {'num_attention_heads': 24, 'num_key_value_heads': 4}) }}"
"""

RETURN = r"""
_value:
  description: How many GPUs.
  type: int
"""


def sglang_tp_size(wanted: t.Any, gpus: t.Any, config: t.Mapping[str, t.Any] | None = None, there: int = 0, lane: str = "auto") -> int:
    """Return how many GPUs."""
    try:
        return tp_size(wanted, wanted_count(gpus, int(there)), config or {}, on_cpu=lane == "cpu")
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"sglang_tp_size": sglang_tp_size}
