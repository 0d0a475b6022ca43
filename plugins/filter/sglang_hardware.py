# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that fits the engine to the GPUs at hand."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.gpu_settings import hardware_for
from ..module_utils._engine.lanes import choose_lane

DOCUMENTATION = r"""
name: sglang_hardware
short_description: Settings of the engine that follow from GPUs and driver
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Returns what the engine has to be told about the GPUs at hand, so that nothing of another machine stays in force after a move.
  - Where copies between the GPUs don't arrive, they are switched off in NCCL and in the engine's own all-reduce.
positional: capabilities
options:
  _input:
    description: Name of a lane.
    type: str
    required: true
  capabilities:
    description: Compute capabilities of the GPUs, like V(8.6).
    type: list
    elements: str
    required: true
  driver_version:
    description: Version of the node's NVIDIA driver. Empty if it has none.
    type: str
    default: ""
  toolkit:
    description: Whether a CUDA toolkit of the lane's major is installed.
    type: bool
    default: true
  peers_off:
    description: Why copies between the GPUs have to be switched off. Empty if they work.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show where kernels for an RTX A6000 are kept
  ansible.builtin.debug:
    msg: "{{ 'cu13' | kpro.llm.sglang_hardware(['8.6'], '580.173.02') }}"
"""

RETURN = r"""
_value:
  description: >-
    Dictionary with C(options) of the engine by long name, its C(environment), C(kernels), the name of a folder for kernels compiled at run time (one for
    each engine, torch, driver and architecture), and C(given_up), what these GPUs can't do.
  type: dict
"""


def sglang_hardware(lane_name: str, capabilities: t.Sequence[str], driver_version: str = "", toolkit: bool = True, peers_off: str = "") -> dict[str, t.Any]:
    """Return the settings."""
    try:
        lane = choose_lane(str(lane_name), "")
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error
    found = hardware_for(lane, [str(one) for one in capabilities], str(driver_version), toolkit=bool(toolkit), peers_off=str(peers_off))
    return {**dataclasses.asdict(found), "given_up": list(found.given_up)}


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"sglang_hardware": sglang_hardware}
