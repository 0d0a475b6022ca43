# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that fits an engine lane to a system."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._core.errors import KproError
from ..module_utils._engine.gpu_settings import flash_attn_package
from ..module_utils._engine.lanes import Facts, choose_lane, choose_python, contract_problems

DOCUMENTATION = r"""
name: sglang_environment
short_description: The Python environment of an engine lane on a given system
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Chooses the Python version and the lock file of a lane for a system, and checks the lane's contract with node and system.
  - Fails with all clauses that do not hold.
positional: system
options:
  _input:
    description: Name of a lane.
    type: str
    required: true
  system:
    description: Facts of the system, RV(kpro.llm.runtime_base#module:system).
    type: dict
    required: true
  python:
    description: A Python version, or V(auto).
    type: str
    default: auto
  driver_version:
    description: Version of the node's NVIDIA driver. Empty if it has none.
    type: str
    default: ""
  toolkit:
    description: Check that a CUDA toolkit of the lane's major is installed.
    type: bool
    default: false
  flash_attn:
    description:
      - Add the classic flash-attn as C(source_package) for M(kpro.llm.uv_environment), taken from the wheelhouse only (V(wheelhouse)) or built if needed
        (V(build)).
    type: str
    choices: [none, wheelhouse, build]
    default: none
  wheelhouse:
    description: Folder of kept wheels on the target.
    type: str
    default: ""
  capabilities:
    description: Compute capabilities of the GPUs, like V(8.6).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Show the lock file for a system
  ansible.builtin.debug:
    msg: "{{ 'cu13' | kpro.llm.sglang_environment(__base['system'], driver_version='580.173.02') }}"
"""

RETURN = r"""
_value:
  description:
    - Dictionary with C(python), C(lock_file) and C(source_package), which is empty without flash-attn and else lacks the text of its C(lock_file) only.
  type: dict
"""


def sglang_environment(
    lane_name: str,
    system: t.Mapping[str, t.Any],
    python: str = "auto",
    driver_version: str = "",
    toolkit: bool = False,
    flash_attn: str = "none",
    wheelhouse: str = "",
    capabilities: t.Sequence[str] = (),
) -> dict[str, t.Any]:
    """Return Python version, lock file and what is built from source."""
    source: dict[str, t.Any] = {}
    try:
        lane = choose_lane(str(lane_name), str(driver_version))
        version = choose_python(lane, str(python), str(system.get("python", "")))
        if flash_attn != "none":
            source = flash_attn_package(lane, version, [str(one) for one in capabilities], str(wheelhouse), build=flash_attn == "build")
    except KproError as error:
        raise AnsibleFilterError(error.sentence) from error
    facts = Facts(
        driver_version=str(driver_version),
        python=version,
        glibc=str(system.get("glibc", "")),
        architecture=str(system.get("architecture", "")),
        toolkits=[str(one) for one in system.get("toolkits", [])] if toolkit else None,
    )
    problems = contract_problems(lane, facts)
    if problems:
        raise AnsibleFilterError(" ".join(problems))
    return {"python": version, "lock_file": lane.lock_file(version), "source_package": source}


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"sglang_environment": sglang_environment}
