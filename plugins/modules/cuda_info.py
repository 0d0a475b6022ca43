#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_info
short_description: Report whether a user can use CUDA, and whether its GPUs may talk to each other
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Initialises CUDA through the system's C(libcuda.so.1) as the user that will run the engine, which C(nvidia-smi) as root says nothing about.
  - If CUDA does not start, RV(error) names the cause, such as a device node that is missing, has another major number or is closed to the user.
  - Copies random bytes between each two GPUs over peer access and compares what arrives. Drivers report success for copies that a translating IOMMU
    dropped.
extends_documentation_fragment:
  - kpro.llm.attributes
options:
  user:
    description: User that asks. Empty is the user that runs the module.
    type: str
    default: ""
  copy_sizes_mib:
    description: Sizes of the copies between GPUs, in MiB. An empty list checks no copies.
    type: list
    elements: int
    default: [1, 64]
  timeout_s:
    description: Seconds after which a call that does not come back counts as hanging.
    type: float
    default: 60.0
  remember:
    description:
      - File that keeps the last verdict on copies between these GPUs, with this driver and kernel, for times when an engine leaves too little
        memory for a copy. It is written where a verdict differs, except in check mode. Empty keeps none.
    type: path
    default: ""
"""

EXAMPLES = r"""
- name: Ask CUDA as the service user
  kpro.llm.cuda_info:
    user: sglang
    remember: /var/lib/kpro-llm/peer_copies.json
  register: __cuda

- name: Stop if it does not start
  ansible.builtin.assert:
    that: __cuda.usable
    fail_msg: "{{ __cuda.error }}"
"""

RETURN = r"""
usable:
  description: CUDA initialises and has at least one device.
  returned: always
  type: bool
error:
  description: Why it is not usable, one sentence with the remedy. Empty if it is.
  returned: always
  type: str
  sample: >-
    CUDA does not initialise, cuInit says CUDA_ERROR_UNKNOWN (999): unknown error: /dev/nvidia-uvm: the device node is missing.
    Pass it to the container again (dev[n]) and restart it.
error_code:
  description: CUDA's own code, 0 if it is usable, -1 without a library.
  returned: always
  type: int
version:
  description: Newest CUDA version that the driver serves.
  returned: if CUDA initialises
  type: str
  sample: "13.0"
devices:
  description: The devices in the order of their bus ids.
  returned: always
  type: list
  elements: dict
  sample:
    - index: 0
      uuid: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641
      name: NVIDIA RTX A6000
      bus_id: "0000:41:00.0"
      compute_capability: "8.6"
      memory_mib: 48604
      memory_free_mib: 48604
p2p:
  description:
    - V(ok), copies arrive; V(none), no peer access; V(corrupt), other bytes arrive; V(hangs); V(error); V(single), one GPU;
      V(unknown), too little memory was free, or nothing was checked.
  returned: always
  type: str
  sample: ok
p2p_reason:
  description: What led to RV(p2p).
  returned: always
  type: str
  sample: all 4 copies arrived unchanged
p2p_disable:
  description: Whether peer access has to be switched off, as C(NCCL_P2P_DISABLE=1) and as the engine's C(disable_custom_all_reduce), both.
  returned: always
  type: bool
checks:
  description: The copies one by one.
  returned: always
  type: list
  elements: dict
  sample: [{source: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641, target: GPU-e3b7f2d9-0c58-4a1b-8e94-b5d702c9f661, result: ok, detail: ""}]
problems:
  description: What is wrong with driver and device nodes as the user sees them, one sentence each.
  returned: always
  type: list
  elements: str
  sample: []
"""

import typing as t

from ..module_utils._core.module import run_module
from ..module_utils._cuda.result_edge import cuda_result


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    return {
        "user": {"type": "str", "default": ""},
        "copy_sizes_mib": {"type": "list", "elements": "int", "default": [1, 64]},
        "timeout_s": {"type": "float", "default": 60.0},
        "remember": {"type": "path", "default": ""},
    }


def observe(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Run the module."""
    return cuda_result(params["user"], params["copy_sizes_mib"], params["timeout_s"], params["remember"], not check_mode)


def main() -> None:
    """Entry point."""
    run_module(observe, argument_spec())


if __name__ == "__main__":
    main()
