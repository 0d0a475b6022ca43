# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model and GPUs of a memory plan."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  model_config:
    description: The parsed C(config.json) of the model.
    type: dict
  model_path:
    description: Folder with C(config.json) and the safetensors files, of which only the headers are read.
    type: path
  model_profile:
    description: Repository name of a model whose shape the collection knows, such as V(Qwen/Qwen3.6-27B).
    type: str
  gpus:
    description:
      - The GPUs in the order in which the engine takes them.
      - By default they are read on the target, through the driver's library or C(nvidia-smi).
    type: list
    elements: dict
    suboptions:
      total_mib:
        description: Memory as C(nvidia-smi) prints it under C(memory.total).
        type: int
        required: true
      free_mib:
        description: What is free of it now. By default what an idle card has.
        type: int
      name:
        description: Name of the GPU type.
        type: str
        default: ""
  gpu_type:
    description: Plan for idle cards of this type instead, such as V(a6000).
    type: str
  gpu_count:
    description: How many cards of O(gpu_type).
    type: int
    default: 1
"""
