# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that sorts what is wrong with a node's GPUs by whether it matters."""

from __future__ import annotations

import dataclasses
import typing as t

from ..plugin_utils._gpu_problems import judge

DOCUMENTATION = r"""
name: gpu_problems
short_description: Which problems of a node's GPUs stand in the way
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Problems of the driver as a whole, and of GPUs that are needed, stand in the way. Those of other GPUs do not.
positional: wanted
options:
  _input:
    description: Answer of M(kpro.llm.gpu_info) on the node.
    type: dict
    required: true
  wanted:
    description: The GPUs that are needed, V(all), a number, or a list of UUIDs and bus addresses.
    type: raw
    default: all
"""

EXAMPLES = r"""
- name: Stop if one GPU can't be had
  ansible.builtin.assert:
    that: (node_seen | kpro.llm.gpu_problems(1))['in_the_way'] | length == 0
"""

RETURN = r"""
_value:
  description: Dictionary with C(in_the_way) and C(others), lists of sentences, and C(usable), the GPUs that can be handed on.
  type: dict
"""


def gpu_problems(seen: t.Mapping[str, t.Any], wanted: t.Any = "all") -> dict[str, t.Any]:
    """Return the judgement as a dictionary of lists."""
    judgement = judge(seen, wanted)
    return {field.name: list(getattr(judgement, field.name)) for field in dataclasses.fields(judgement)}


class FilterModule:
    """Names of the filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        return {"gpu_problems": gpu_problems}
