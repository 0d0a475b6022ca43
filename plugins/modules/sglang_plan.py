#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_plan
short_description: Predict what SGLang will do with GPU memory, before it starts
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Computes weights, state, copies of the state for speculation, cache tokens and requests as the engine itself would, and
    says whether a start succeeds, with the sum and the changes that make it work.
  - With O(goal) it searches the settings that reach a goal with the most slack.
  - Never changes anything, and starts nothing.
  - What is not modelled ends with an error that says so. There is no number from a guess.
extends_documentation_fragment:
  - kpro.llm.attributes.info
options:
  model_config:
    description: The parsed C(config.json) of the model.
    type: dict
  model_path:
    description:
      - Folder with C(config.json) and, for quantised checkpoints, the safetensors files. Only their headers are read.
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
  sglang_version:
    description: Version of the engine.
    type: str
    required: true
  args:
    description:
      - Engine options by their long names with underscores, such as C(tp_size), C(mem_fraction_static), C(context_length),
        C(max_running_requests), C(speculative_algorithm) or C(mamba_ssm_dtype).
      - An unknown name is an error that gives the nearest known one.
    type: dict
    default: {}
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
  report:
    description: Also return the plan as an HTML page in RV(html) and as lines of text in RV(table).
    type: bool
    default: false
  title:
    description: Title of the page and of the table.
    type: str
    default: Memory plan
"""

EXAMPLES = r"""
- name: Plan the start that is configured, on the GPUs of the target
  kpro.llm.sglang_plan:
    model_path: /srv/models/Qwen--Qwen3.6-27B
    sglang_version: 0.5.23
    args:
      tp_size: 2
      mem_fraction_static: 0.85
      context_length: 65536
      max_running_requests: 8
  register: __plan

- name: Find settings for eight long chats with speculation on two idle A6000
  kpro.llm.sglang_plan:
    model_profile: Qwen/Qwen3.6-27B
    gpu_type: a6000
    gpu_count: 2
    sglang_version: 0.5.23
    goal:
      context_tokens: 65536
      concurrent_requests: 8
      speculation: preferred
      prefix_cache: true

- name: Replay a start from its log
  kpro.llm.sglang_plan:
    model_profile: Qwen/Qwen3.6-27B
    gpus:
      - total_mib: 49140
        free_mib: 48691
    sglang_version: 0.5.23
    weights_gib: 51.05
    free_before_load_gib: 46.9
"""

RETURN = r"""
verdict:
  description:
    - V(OK), V(SHORT) (starts with fewer tokens than the context), V(RISK) (starts with little slack) or V(FAIL).
  returned: always
  type: str
  sample: FAIL
verified:
  description: Whether the rules of this version were read in its own code.
  returned: always
  type: bool
  sample: true
max_total_num_tokens:
  description: Tokens in the cache. Negative if the demand is larger than the memory, as the engine computes it.
  returned: always
  type: int
  sample: -97766
max_running_requests:
  description: Requests that run at once.
  returned: always
  type: int
  sample: 48
serves_context:
  description: Whether one request can use the whole context.
  returned: always
  type: bool
  sample: false
weights_gib:
  description: Weights on one GPU.
  returned: always
  type: float
  sample: 25.614
state_slots:
  description: Slots of state of linear-attention layers, V(0) for models without.
  returned: always
  type: int
  sample: 48
state_gib:
  description: What these slots take.
  returned: always
  type: float
  sample: 3.441
copies_gib:
  description: What copies of the state for speculation take.
  returned: always
  type: float
  sample: 13.764
kv_gib:
  description: What is left for the cache.
  returned: always
  type: float
  sample: -2.984
pool_end_gib:
  description: Free memory when the engine prints C(Memory pool end).
  returned: always
  type: float
  sample: 3.681
low_point_gib:
  description: Free memory at the lowest point afterwards, before graphs and activations.
  returned: always
  type: float
  sample: 0.865
breakdown:
  description: Where the memory of one GPU goes, in the order in which it is taken.
  returned: always
  type: list
  elements: dict
  sample: [{name: speculative copies, gib: 13.764, why: "4 copies of 73.41 MiB for each of 48 requests (implicit)"}]
gpus:
  description: The GPUs in use, each with the parts of its bar.
  returned: always
  type: list
  elements: dict
  sample: [{index: 0, name: RTX A6000, total_gib: 47.988, free_gib: 47.55, parts: [{name: weights, gib: 25.614}], over_gib: 3.399}]
cause:
  description: Why the verdict is not V(OK). Empty if it is.
  returned: always
  type: dict
  sample:
    kind: state_copies
    stage: sizing
    message: speculation reserves 4 copies of the 73.4 MiB state for each request, and the implicit limit of 48 requests decides how many
    direction: raise_fraction_or_reduce_demand
    irrelevant: [context_length, kv_cache_dtype]
advice:
  description: Changes that make it work, each with the result that was computed for it.
  returned: always
  type: list
  elements: dict
  sample:
    - option: max_running_requests
      from: 48 (implicit)
      to: 8
      also: {}
      predicted: {verdict: OK, max_total_num_tokens: 372034, max_running_requests: 8, low_point_gib: 3.15}
      note: "recommended: each running request has room for half a context"
alternatives:
  description: The plan beside its alternatives, for reports.
  returned: always
  type: list
  elements: dict
  sample: []
resolved_args:
  description: Engine options with nothing left implicit that decides. Starting with them gives this plan.
  returned: always
  type: dict
  sample: {tp_size: 2, mem_fraction_static: 0.85, max_running_requests: 8}
resolved_environment:
  description: Variables that the engine's process needs for this plan.
  returned: always
  type: dict
  sample: {}
goal:
  description: Whether the goal is reached, and what was given up.
  returned: if O(goal) is given
  type: dict
  sample: {satisfied: true, given_up: [], tried: 16, margin_gib: 4.365}
warnings:
  description: What else has to be known.
  returned: always
  type: list
  elements: str
  sample: []
table:
  description: The plan as lines of text.
  returned: if O(report) is true
  type: list
  elements: str
  sample: []
html:
  description: The plan as a page that needs nothing from the network.
  returned: if O(report) is true
  type: str
  sample: <!DOCTYPE html>
"""

import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._command import Command
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._module import run_module
from ansible_collections.kpro.llm.plugins.module_utils._nvidia_smi import ask_nvidia_smi
from ansible_collections.kpro.llm.plugins.module_utils._nvml import ask_nvml
from ansible_collections.kpro.llm.plugins.module_utils._plan_core import Card
from ansible_collections.kpro.llm.plugins.module_utils._plan_folder import ModelFolder
from ansible_collections.kpro.llm.plugins.module_utils._plan_gpus import card_of, idle_card
from ansible_collections.kpro.llm.plugins.module_utils._plan_headers import Entry
from ansible_collections.kpro.llm.plugins.module_utils._plan_models import config_of
from ansible_collections.kpro.llm.plugins.module_utils._plan_report import report
from ansible_collections.kpro.llm.plugins.module_utils._plan_request import Request, planned
from ansible_collections.kpro.llm.plugins.module_utils._plan_table import table


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    gpu = {"total_mib": {"type": "int", "required": True}, "free_mib": {"type": "int"}, "name": {"type": "str", "default": ""}}
    goal = {
        "context_tokens": {"type": "int"},
        "concurrent_requests": {"type": "int"},
        "speculation": {"type": "str", "choices": ["required", "preferred", "off"]},
        "prefix_cache": {"type": "bool"},
    }
    return {
        "model_config": {"type": "dict"},
        "model_path": {"type": "path"},
        "model_profile": {"type": "str"},
        "gpus": {"type": "list", "elements": "dict", "options": gpu},
        "gpu_type": {"type": "str"},
        "gpu_count": {"type": "int", "default": 1},
        "sglang_version": {"type": "str", "required": True},
        "args": {"type": "dict", "default": {}},
        "environment": {"type": "dict", "default": {}},
        "weights_gib": {"type": "float"},
        "free_before_load_gib": {"type": "float"},
        "goal": {"type": "dict", "options": goal},
        "report": {"type": "bool", "default": False},
        "title": {"type": "str", "default": "Memory plan"},
    }


def cards(params: t.Mapping[str, t.Any]) -> tuple[Card, ...]:
    """Return the cards that are given, of a type, or in the target."""
    if params["gpus"] is not None:
        return tuple(_given_card(gpu) for gpu in params["gpus"])
    if params["gpu_type"]:
        return tuple(idle_card(params["gpu_type"]) for _number in range(params["gpu_count"]))
    seen = ask_nvml()
    if seen.error:
        other = ask_nvidia_smi(Command())
        seen = seen if other.error else other
    if seen.error or not seen.gpus:
        reason = seen.error or "the driver shows no GPU"
        raise KproError("GPUs of the target", reason, "Pass the GPUs to the container, or give gpus or gpu_type", field="gpus")
    return tuple(card_of(gpu.memory_mib or 0, gpu.memory_free_mib or 0, (gpu.name or "").removeprefix("NVIDIA ")) for gpu in seen.gpus)


def _given_card(gpu: t.Mapping[str, t.Any]) -> Card:
    card = card_of(gpu["total_mib"], 0, gpu["name"])
    free = gpu["free_mib"] if gpu["free_mib"] is not None else card.total_mib - card.reserve_mib
    return card_of(gpu["total_mib"], free, gpu["name"])


def model(params: t.Mapping[str, t.Any]) -> tuple[t.Mapping[str, t.Any], str, list[Entry]]:
    """Return the model's config, what to call it, and the tensors of its files if there are any."""
    if params["model_path"]:
        folder = ModelFolder(params["model_path"])
        return folder.config(), f"{params['model_path']}/config.json", folder.entries()
    if params["model_profile"]:
        return config_of(params["model_profile"]), f"profile {params['model_profile']}", []
    return params["model_config"], "option model_config", []


def main_plan(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Return the plan; the module changes nothing, so check mode makes no difference."""
    config, where, entries = model(params)
    request = Request(
        config,
        where,
        entries,
        cards(params),
        params["sglang_version"],
        params["args"],
        params["environment"],
        params["weights_gib"],
        params["free_before_load_gib"],
    )
    goal = {name: value for name, value in (params["goal"] or {}).items() if value is not None}
    result = planned(request, goal if params["goal"] is not None else None)
    if params["report"]:
        result["table"] = table(result, params["title"])
        result["html"] = report(result, params["title"])
    return {"changed": False, **result}


def main() -> None:
    """Run the module."""
    sources = ["model_config", "model_path", "model_profile"]
    run_module(
        main_plan,
        argument_spec(),
        mutually_exclusive=[sources, ["gpus", "gpu_type"]],
        required_one_of=[sources],
    )


if __name__ == "__main__":
    main()
