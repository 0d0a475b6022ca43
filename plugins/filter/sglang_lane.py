# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that chooses an engine lane."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.lanes import choose_lane, with_pins
from ..module_utils._environment.lock import parse_lock

DOCUMENTATION = r"""
name: sglang_lane
short_description: The engine lane for a node's driver
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Chooses the lane that is named, or for V(auto) the newest one that the node's driver can run.
  - A lane is one release of SGLang with the versions, packages and lock files that fit it.
positional: driver_version
notes:
  - With O(lock) the lane has the versions of SGLang and torch that the lock file pins; driver, CUDA and Pythons stay the lane's.
options:
  _input:
    description: Name of a lane, or V(auto).
    type: str
    required: true
  driver_version:
    description: Version of the node's NVIDIA driver. Empty if it has none.
    type: str
    default: ""
  lock:
    description: Content of a lock file of one's own (V(sglang_runtime__lock)). Empty for the lane's.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the lane for a driver
  ansible.builtin.debug:
    msg: "{{ 'auto' | kpro.llm.sglang_lane('580.173.02') }}"
"""

RETURN = r"""
_value:
  description: >-
    The lane with C(name), C(engine_version), C(torch_version), C(cuda), C(pythons), C(lock_files) by Python version,
    C(toolkit_packages), C(cuda_home) and C(footprint).
  type: dict
"""


def sglang_lane(wanted: str, driver_version: str = "", lock: str = "") -> dict[str, t.Any]:
    """Return the lane as a dictionary."""
    try:
        lane = choose_lane(str(wanted), str(driver_version))
        if lock:
            lane = with_pins(lane, parse_lock(str(lock), "sglang_runtime__lock"), "sglang_runtime__lock")
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error
    values = {**dataclasses.asdict(lane), "lock_files": {python: lane.lock_file(python) for python in lane.pythons}}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"sglang_lane": sglang_lane}
