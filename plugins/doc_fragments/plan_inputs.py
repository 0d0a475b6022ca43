# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model, GPUs and goal of a memory plan."""

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
      compute_capability:
        description: Like V(8.6); quantised weights depend on it. By default that of the type, if O(gpus[].name) names a known one.
        type: str
        default: ""
  gpu_type:
    description: Plan for idle cards of this type instead, such as V(a6000).
    type: str
  gpu_count:
    description: How many cards of O(gpu_type).
    type: int
    default: 1
  environment:
    description: Variables of the engine's process. Those that decide about memory are read.
    type: dict
    default: {}
  weights_gib:
    description: Weights of one GPU as a log gave them, in place of the computed ones.
    type: float
  free_before_load_gib:
    description: Free memory before loading as a log gave it (C(Load weight begin. avail mem)), in place of the computed one.
    type: float
  log:
    description: Text of a start's log. Its numbers are set beside those of the plan in RV(deviations).
    type: str
  goal:
    description: What must hold. The result is then the settings that reach it with the most slack.
    type: dict
    suboptions:
      context_tokens:
        description: Tokens that one request can use. By default C(context_length) of O(args), else the model's limit.
        type: int
      concurrent_requests:
        description: Requests that run at once. By default C(max_running_requests) of O(args), else 1.
        type: int
      speculation:
        description: Whether speculation with the model's own head has to be on, should be if it fits, or is off.
        type: str
        choices: [required, preferred, "off"]
      prefix_cache:
        description: Whether the beginnings of chats are kept for reuse.
        type: bool
      tokens_per_request:
        description: Tokens that each of the requests at once has for itself. By default a quarter of the context.
        type: int
      images:
        description: Whether images are to be understood. Without them the vision tower is not loaded, where the release can do that.
        type: bool
"""
