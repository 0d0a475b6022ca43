#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_info
short_description: Say whether a container's whole runtime is as wanted, in one round trip
version_added: 1.0.0
description:
  - Looks at what M(kpro.llm.runtime_base), M(kpro.llm.nvidia_driver), M(kpro.llm.cuda_info) and M(kpro.llm.uv_environment) would look at, and stops at the
    first thing that differs.
  - The role P(kpro.llm.sglang_runtime#role) runs those steps only if this module finds a difference.
author: kpro (@kpro)
extends_documentation_fragment: kpro.llm.attributes
options:
  base:
    description: The options of M(kpro.llm.runtime_base).
    type: dict
    required: true
  environment:
    description: The options of M(kpro.llm.uv_environment), except for those that follow from the lane.
    type: dict
    required: true
  lane:
    description: Name of the engine lane.
    type: str
    required: true
  locks:
    description: Text of the lane's lock file by Python version.
    type: dict
    required: true
  python:
    description: A Python version, or V(auto).
    type: str
    default: auto
  driver_version:
    description: Version of the node's driver. Empty asks neither for a driver nor for CUDA.
    type: str
    default: ""
  gpus:
    description: How many GPUs CUDA has to show. V(0) takes any number.
    type: int
    default: 0
  user:
    description: The service user.
    type: str
    required: true
  toolkit:
    description: Ask for a CUDA toolkit of the lane's major.
    type: bool
    default: false
  flash_attn:
    description: The classic flash-attn, as in the role.
    type: str
    choices: [none, wheelhouse, build]
    default: none
  flash_attn_lock:
    description: Text of its lock file.
    type: str
    default: ""
  wheelhouse:
    description: Folder of kept wheels.
    type: path
    default: /var/lib/kpro-llm/wheelhouse
  capabilities:
    description: Compute capabilities of the GPUs in place of what CUDA says.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Look at a runtime
  kpro.llm.runtime_info:
    lane: cu13
    user: sglang
    base: {packages: [python3-venv], user: sglang}
    locks:
      "3.11": "{{ lookup('ansible.builtin.file', 'locks/cu13-cp311.txt') }}"
    environment:
      root: /opt/kpro-llm/sglang
      package: sglang
      uv_lock: "{{ lookup('ansible.builtin.file', 'locks/uv-0.13.9.txt') }}"
      user: sglang
"""

RETURN = r"""
same:
  description: Whether nothing differs.
  returned: success
  type: bool
  sample: true
differs:
  description: The first thing that differs, as a sentence. Empty if nothing does.
  returned: success
  type: str
  sample: ""
base:
  description: What M(kpro.llm.runtime_base) returns if nothing differs there.
  returned: success
  type: dict
userland:
  description: The driver's version if the container has it.
  returned: success
  type: dict
cuda:
  description: What M(kpro.llm.cuda_info) returns, if it was asked.
  returned: success
  type: dict
environment:
  description: What M(kpro.llm.uv_environment) returns if nothing differs there.
  returned: success
  type: dict
"""

import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._environment.ensure import ARGUMENTS as ENVIRONMENT
from ..module_utils._runtime.look import look
from ..module_utils._runtime.options import ARGUMENTS as BASE

DECIDED = ("lock", "python", "package_version", "source_package")

ARGUMENTS: dict[str, t.Any] = {
    "base": {"type": "dict", "required": True},
    "environment": {"type": "dict", "required": True},
    "lane": {"type": "str", "required": True},
    "locks": {"type": "dict", "required": True},
    "python": {"type": "str", "default": "auto"},
    "driver_version": {"type": "str", "default": ""},
    "gpus": {"type": "int", "default": 0},
    "user": {"type": "str", "required": True},
    "toolkit": {"type": "bool", "default": False},
    "flash_attn": {"type": "str", "choices": ["none", "wheelhouse", "build"], "default": "none"},
    "flash_attn_lock": {"type": "str", "default": ""},
    "wheelhouse": {"type": "path", "default": "/var/lib/kpro-llm/wheelhouse"},
    "capabilities": {"type": "list", "elements": "str", "default": []},
}


def filled(values: t.Mapping[str, t.Any], specification: t.Mapping[str, t.Any], what: str) -> dict[str, t.Any]:
    """Return options with the defaults of the module that they belong to.

    :raises KproError: one is unknown.
    """
    unknown = sorted(set(values) - set(specification))
    if unknown:
        raise KproError(what, f"{', '.join(unknown)} is none of its options", "See the documentation of the module of that name")
    given = {name: value for name, value in values.items() if value is not None}
    lists = {"repositories": [{"distribution": "", **row} for row in given["repositories"]]} if "repositories" in given else {}
    return {**{name: spec.get("default") for name, spec in specification.items()}, **given, **lists}


def main(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Look, and change nothing but what was learnt by looking."""
    base = filled(params["base"], BASE, "base")
    allowed = {name: spec for name, spec in ENVIRONMENT.items() if name not in DECIDED}
    return look({**params, "base": base, "environment": filled(params["environment"], allowed, "environment")}, note=not check_mode)


if __name__ == "__main__":
    run_module(main, ARGUMENTS)
