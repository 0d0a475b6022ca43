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
  - What is not modelled ends with an error that says so. There is no number from a guess.
extends_documentation_fragment:
  - kpro.llm.attributes.info
  - kpro.llm.plan_inputs
options:
  sglang_version:
    description: Version of the engine.
    type: str
    required: true
  args:
    description: Engine options by their long names with underscores. An unknown name is an error that gives the nearest known one.
    type: dict
    default: {}
  profiles:
    description:
      - Rungs of a fallback ladder in order, whose options are laid over O(args). The plan is that of the first rung with the verdict V(OK), else of the first
        that starts at all, else of the first; RV(rungs) has them all.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the rung.
        type: str
        required: true
      options:
        description: Engine options; null takes one away.
        type: dict
        required: true
      goal:
        description: What the rung has to reach, with the keys of O(goal). The rest of its options is searched.
        type: dict
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
    args: {tp_size: 2, mem_fraction_static: 0.85, context_length: 65536, max_running_requests: 8}
  register: __plan

- name: Find settings for eight long chats with speculation on two idle A6000
  kpro.llm.sglang_plan:
    model_profile: Qwen/Qwen3.6-27B
    gpu_type: a6000
    gpu_count: 2
    sglang_version: 0.5.23
    goal: {context_tokens: 65536, concurrent_requests: 8, speculation: preferred, prefix_cache: true}
"""

RETURN = r"""
verdict:
  description: V(OK), V(SHORT) (starts with fewer tokens than the context), V(RISK) (starts with little slack) or V(FAIL).
  returned: always
  type: str
  sample: FAIL
sglang_version:
  description: The version that is planned.
  returned: always
  type: str
  sample: 0.5.23
weights_source:
  description: Where RV(weights_gib) comes from, V(config), V(safetensors headers) or V(given).
  returned: always
  type: str
state_mib_per_slot:
  description: One slot of state on one GPU.
  returned: always
  type: float
  sample: 73.41
kv_bytes_per_token:
  description: What a token takes in the cache of one GPU.
  returned: always
  type: int
  sample: 32768
draft:
  description: Head for speculation on one GPU, as loaded and as it stays, and its cache. Empty without speculation.
  returned: always
  type: dict
  sample: {loaded_gib: 2.82, stays_gib: 0.445, kv_gib: 0.34, counted: true}
free_before_load_gib:
  description: Free memory before loading, of the GPU with the least.
  returned: always
  type: float
  sample: 46.9
verified:
  description: Whether the rules of this version were read in its own code.
  returned: always
  type: bool
max_total_num_tokens:
  description: Tokens in the cache. Negative if the demand is larger than the memory, as the engine computes it.
  returned: always
  type: int
  sample: -97766
max_running_requests:
  description: Requests that run at once.
  returned: always
  type: int
whole_contexts:
  description: How many requests of the whole context the cache holds at once.
  returned: always
  type: float
  sample: 2.72
window_tokens:
  description: Tokens in the pool of the layers with a sliding window; 0 without such layers.
  returned: always
  type: int
  sample: 0
needed_gib:
  description: What graphs, workspaces and activations take after the pools. With less at RV(low_point_gib) a start is a V(RISK).
  returned: always
  type: float
  sample: 2.06
serves_context:
  description: Whether one request can use the whole context.
  returned: always
  type: bool
weights_gib:
  description: Weights on one GPU.
  returned: always
  type: float
state_slots:
  description: Slots of state of linear-attention layers, V(0) for models without.
  returned: always
  type: int
state_gib:
  description: What these slots take.
  returned: always
  type: float
copies_gib:
  description: What copies of the state for speculation take.
  returned: always
  type: float
kv_gib:
  description: What is left for the cache.
  returned: always
  type: float
pool_end_gib:
  description: Free memory when the engine prints C(Memory pool end).
  returned: always
  type: float
low_point_gib:
  description: Free memory at the lowest point afterwards, before graphs and activations.
  returned: always
  type: float
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
cause:
  description: Why the verdict is not V(OK), and which options make no difference. Empty if it is.
  returned: always
  type: dict
  sample: {kind: state_copies, stage: sizing, direction: raise_fraction_or_reduce_demand, irrelevant: [context_length, kv_cache_dtype]}
advice:
  description: Changes that make it work, each with the result that was computed for it.
  returned: always
  type: list
  elements: dict
  sample: [{option: max_running_requests, from: 48 (implicit), to: 8, predicted: {verdict: OK, max_total_num_tokens: 372034}}]
alternatives:
  description: The plan beside its alternatives, for reports.
  returned: always
  type: list
  elements: dict
resolved_args:
  description: Engine options with nothing left implicit that decides. Starting with them gives this plan.
  returned: always
  type: dict
  sample: {tp_size: 2, mem_fraction_static: 0.85, max_running_requests: 8}
resolved_environment:
  description: Variables that the engine's process needs for this plan.
  returned: always
  type: dict
rung:
  description: Number of the rung that is planned, V(0) for the first.
  returned: if O(profiles) or O(goal) is given
  type: int
rungs:
  description: A row for each rung (one for O(goal)), with options and environment resolved, and in C(passed_over) why it is not to be started.
  returned: if O(profiles) or O(goal) is given
  type: list
  elements: dict
  sample: [{name: speculation, verdict: OK, max_total_num_tokens: 178472, max_running_requests: 8, environment: {}, passed_over: ""}]
goal:
  description:
    - Whether all that was asked for is given, what was given up of it, and in C(nearest) other weights or more cards that start, those that give all of
      the goal first.
  returned: if O(goal) is given
  type: dict
  sample: {satisfied: true, given_up: [], tried: 16, margin_gib: 4.365, tokens_per_request: 16384, nearest: []}
notes:
  description: What else has to be known. These sentences, and what was given up for a goal, are shown as warnings of the task.
  returned: always
  type: list
  elements: str
deviations:
  description: Numbers of the plan beside those of the log. A difference of more than 3 % is a warning.
  returned: if O(log) is given
  type: list
  elements: dict
  sample: [{name: cache tokens, planned: 200168, logged: 199870, percent: -0.1, warning: false}]
table:
  description: The plan as lines of text.
  returned: if O(report) is true
  type: list
  elements: str
html:
  description: The plan as a page that needs nothing from the network.
  returned: if O(report) is true
  type: str
"""

import dataclasses
import typing as t

from ..module_utils._core.module import run_module
from ..module_utils._vram.compare import deviations, read
from ..module_utils._vram.ladder import goal_as_rung, planned_ladder
from ..module_utils._vram.report import report
from ..module_utils._vram.request import planned
from ..module_utils._vram.table import table
from ..module_utils._vram.target_edge import request_of


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    gpu: dict[str, t.Any] = {"total_mib": {"type": "int", "required": True}, "free_mib": {"type": "int"}, "name": {"type": "str", "default": ""}}
    gpu["compute_capability"] = {"type": "str", "default": ""}
    goal: dict[str, t.Any] = {
        "context_tokens": {"type": "int", "no_log": False},
        "concurrent_requests": {"type": "int"},
        "speculation": {"type": "str", "choices": ["required", "preferred", "off"]},
        "prefix_cache": {"type": "bool"},
        "tokens_per_request": {"type": "int", "no_log": False},
        "images": {"type": "bool"},
    }
    rung = {"name": {"type": "str", "required": True}, "options": {"type": "dict", "required": True}, "goal": {"type": "dict"}}
    return {
        "model_config": {"type": "dict"},
        "model_path": {"type": "path"},
        "model_profile": {"type": "str"},
        "gpus": {"type": "list", "elements": "dict", "options": gpu},
        "gpu_type": {"type": "str"},
        "gpu_count": {"type": "int", "default": 1},
        "sglang_version": {"type": "str", "required": True},
        "args": {"type": "dict", "default": {}},
        "profiles": {"type": "list", "elements": "dict", "options": rung},
        "environment": {"type": "dict", "default": {}},
        "weights_gib": {"type": "float"},
        "free_before_load_gib": {"type": "float"},
        "log": {"type": "str"},
        "goal": {"type": "dict", "options": goal},
        "report": {"type": "bool", "default": False},
        "title": {"type": "str", "default": "Memory plan"},
    }


def plan(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Return the plan. Nothing is ever changed, so check mode makes no difference."""
    request, goal = request_of(params), _without_gaps(params["goal"])
    if params["profiles"]:
        result = planned_ladder(request, [{**rung, "goal": _without_gaps(rung["goal"])} for rung in params["profiles"]])
    else:
        result = planned(request, goal)
        result.update(goal_as_rung(result) if goal is not None else {})
    if params["log"] is not None:
        found = deviations(result, read(params["log"].splitlines()))
        result["deviations"] = [{**dataclasses.asdict(each), "warning": each.notable} for each in found]
        result["notes"] += [f"plan and engine differ in {each.sentence}" for each in found if each.notable]
    if params["report"]:
        result["table"] = table(result, params["title"])
        result["html"] = report(result, params["title"])
    given_up = [f"given up for the goal: {text}" for text in result.get("goal", {}).get("given_up", [])]
    return {"changed": False, "warnings": result["notes"] + given_up, **result}


def _without_gaps(goal: dict[str, t.Any] | None) -> dict[str, t.Any] | None:
    return None if goal is None else {name: value for name, value in goal.items() if value is not None}


def main() -> None:
    """Run the module."""
    sources = ["model_config", "model_path", "model_profile"]
    run_module(plan, argument_spec(), mutually_exclusive=[sources, ["gpus", "gpu_type"], ["goal", "profiles"]], required_one_of=[sources])


if __name__ == "__main__":
    main()
