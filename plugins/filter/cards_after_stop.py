# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that tells what a container's GPUs have free once its own engine has ended."""

from __future__ import annotations

import typing as t

from ..plugin_utils._own_memory import cards_after_stop

DOCUMENTATION = r"""
name: cards_after_stop
short_description: The GPUs of a container as a new start of its engine would find them
version_added: 1.0.0
author: kpro (@kpro)
description:
  - What processes of the container hold now counts as free, what anybody else holds does not.
positional: vmid, uuids
options:
  _input:
    description: Answer of M(kpro.llm.gpu_info) on the node.
    type: dict
    required: true
  vmid:
    description: Id of the container.
    type: int
    required: true
  uuids:
    description: UUIDs of its GPUs. Empty for all of the node.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan another start of the engine
  kpro.llm.sglang_launch:
    gpus: "{{ node_seen | kpro.llm.cards_after_stop(129) }}"
    model_profile: Qwen/Qwen3.6-27B
    engine_version: 0.5.23
"""

RETURN = r"""
_value:
  description: The records of RV(kpro.llm.gpu_info#module:gpus), each with C(free_mib), as O(kpro.llm.sglang_launch#module:gpus) takes them.
  type: list
  elements: dict
"""


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"cards_after_stop": lambda seen, vmid, uuids=(): cards_after_stop(seen, int(vmid), uuids)}
