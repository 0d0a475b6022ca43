#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_launch
short_description: Decide with what the engine is started
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Takes the container's GPUs, the lane, the model and the user's options, and returns over how many GPUs the model is divided, the rungs of the
    fallback ladder with complete options and environment, the memory plan of each, and what is given up.
  - Preflight, memory plan, the check before the download, the service and the comparison after a start ask this module, so that they get the same numbers.
  - It starts nothing and changes nothing.
extends_documentation_fragment:
  - kpro.llm.attributes.info
options:
  lane:
    description: Name of the engine lane, or V(auto) for the newest that the driver can run.
    type: str
    default: auto
  driver_version:
    description: Version of the node's NVIDIA driver. Empty if it has none.
    type: str
    default: ""
  engine_version:
    description: Version of the engine that is installed. Empty for that of the lane.
    type: str
    default: ""
  gpus:
    description:
      - GPUs of the container in its order. The engine takes the first ones.
      - Without O(gpus[].memory_mib) of each GPU no memory is planned.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name, as nvidia-smi prints it. It tells the generation, and what the driver keeps for itself.
        type: str
        default: ""
      uuid:
        description: UUID.
        type: str
        default: ""
      memory_mib:
        description: The MiB that nvidia-smi prints as memory.total.
        type: int
      free_mib:
        description: The MiB that a start would find free. By default those of an idle card.
        type: int
      compute_capability:
        description: Like V(8.6). By default that of the type.
        type: str
        default: ""
  gpu_type:
    description: A GPU type (V(a6000), V(rtx4090), ...) in place of O(gpus). An unknown one is an error that lists all.
    type: str
  gpu_count:
    description: Number of GPUs of O(gpu_type).
    type: int
    default: 1
  capabilities:
    description: Compute capabilities in place of those of the GPUs.
    type: list
    elements: str
    default: []
  toolkit:
    description: Whether a CUDA toolkit of the lane's major is installed.
    type: bool
    default: true
  peers_off:
    description: Why copies between the GPUs are switched off. Empty if they work.
    type: str
    default: ""
  model_config:
    description: The model's C(config.json).
    type: dict
  model_path:
    description: Folder of the model on the target. Its config and the headers of its safetensors files are read.
    type: path
  model_profile:
    description: Repository of a model whose config the collection ships.
    type: str
  tp_size:
    description: Over how many GPUs the model is divided, V(auto) for as many as divide it.
    type: str
    default: auto
  options:
    description: Engine options by long name with underscores. They win over what follows from lane and GPUs.
    type: dict
    default: {}
  profiles:
    description: Rungs of the fallback ladder in order. Without any there is one with O(options).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the rung.
        type: str
        required: true
      options:
        description: Engine options, laid over O(options). Null takes one away.
        type: dict
        required: true
      goal:
        description: What the rung has to reach, with the keys of O(goal). The rest of its options is searched.
        type: dict
  environment:
    description: Environment of the engine.
    type: dict
    default: {}
  plan:
    description: V(required) plans the memory of each rung. V(off) takes the rungs as they are given.
    type: str
    choices: [required, "off"]
    default: required
  goal:
    description: What to search settings for, in place of O(profiles).
    type: dict
    suboptions:
      context_tokens:
        description: Longest request in tokens.
        type: int
      concurrent_requests:
        description: Requests that run at once.
        type: int
      speculation:
        description: Whether tokens are drafted by the model's own head.
        type: str
        choices: [required, preferred, "off"]
      prefix_cache:
        description: Whether the cache of prefixes is on.
        type: bool
  log:
    description: Log of the start of rung O(rung), to be set beside its plan.
    type: str
  rung:
    description: Number of the rung that O(log) belongs to.
    type: int
    default: 0
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
- name: Decide with what the engine is started
  kpro.llm.sglang_launch:
    lane: cu13
    driver_version: 580.173.02
    gpus: "{{ gpu_container__result['gpus'] }}"
    model_path: /srv/models/Qwen--Qwen3.6-27B
    options: {context_length: 65536, max_running_requests: 8}
"""

RETURN = r"""
lane:
  description: Name of the lane.
  returned: always
  type: str
  sample: cu13
engine_version:
  description: Version of the engine.
  returned: always
  type: str
  sample: 0.5.23
tp_size:
  description: Over how many GPUs the model is divided.
  returned: always
  type: int
  sample: 2
gpus:
  description: UUIDs of the GPUs that the engine uses.
  returned: always
  type: list
  elements: str
rungs:
  description:
    - A row for each rung with its C(name), its complete C(options) and C(environment), and C(refused), why the plan refuses it (empty if it does not).
    - With a plan also C(verdict), C(max_total_num_tokens), C(max_running_requests), C(low_point_gib), C(state_mib_per_slot), C(cause) and C(advice).
  returned: always
  type: list
  elements: dict
rung:
  description: Number of the rung to begin with.
  returned: always
  type: int
  sample: 0
environment:
  description: Environment of the engine, for all rungs.
  returned: always
  type: dict
kernels:
  description: Name of the folder for kernels that the engine compiles. Empty without a GPU.
  returned: always
  type: str
given_up:
  description: What these GPUs can't do, and which of them stay idle, one sentence each.
  returned: always
  type: list
  elements: str
verdict:
  description: Verdict of the plan of the rung to begin with, V(OK), V(SHORT), V(RISK) or V(FAIL). Empty if none was made.
  returned: always
  type: str
  sample: OK
plan:
  description: Plan of the rung to begin with, as M(kpro.llm.sglang_plan) returns it. Empty if none was made.
  returned: always
  type: dict
deviations:
  description: What the engine logged beside the plan, with C(name), C(planned), C(logged), C(percent) and C(warning).
  returned: if O(log) is given
  type: list
  elements: dict
table:
  description: The plan as lines of text.
  returned: if O(report) is true
  type: list
  elements: str
html:
  description: The plan as a page.
  returned: if O(report) is true
  type: str
"""

import dataclasses
import typing as t

from ..module_utils._core.module import run_module
from ..module_utils._launch.decide import decide, deviations_of
from ..module_utils._launch.model import Launch, LaunchRequest
from ..module_utils._launch.request_edge import launch_request
from ..module_utils._vram.report import report
from ..module_utils._vram.table import table


def argument_spec() -> dict[str, t.Any]:
    """Return the module's options."""
    gpu = {
        "name": {"type": "str", "default": ""},
        "uuid": {"type": "str", "default": ""},
        "memory_mib": {"type": "int"},
        "free_mib": {"type": "int"},
        "compute_capability": {"type": "str", "default": ""},
    }
    goal: dict[str, t.Any] = {
        "context_tokens": {"type": "int", "no_log": False},
        "concurrent_requests": {"type": "int"},
        "speculation": {"type": "str", "choices": ["required", "preferred", "off"]},
        "prefix_cache": {"type": "bool"},
    }
    rung = {"name": {"type": "str", "required": True}, "options": {"type": "dict", "required": True}, "goal": {"type": "dict"}}
    return {
        "lane": {"type": "str", "default": "auto"},
        "driver_version": {"type": "str", "default": ""},
        "engine_version": {"type": "str", "default": ""},
        "gpus": {"type": "list", "elements": "dict", "options": gpu, "default": []},
        "gpu_type": {"type": "str"},
        "gpu_count": {"type": "int", "default": 1},
        "capabilities": {"type": "list", "elements": "str", "default": []},
        "toolkit": {"type": "bool", "default": True},
        "peers_off": {"type": "str", "default": ""},
        "model_config": {"type": "dict"},
        "model_path": {"type": "path"},
        "model_profile": {"type": "str"},
        "tp_size": {"type": "str", "default": "auto"},
        "options": {"type": "dict", "default": {}},
        "profiles": {"type": "list", "elements": "dict", "options": rung, "default": []},
        "environment": {"type": "dict", "default": {}},
        "plan": {"type": "str", "choices": ["required", "off"], "default": "required"},
        "goal": {"type": "dict", "options": goal},
        "log": {"type": "str"},
        "rung": {"type": "int", "default": 0},
        "report": {"type": "bool", "default": False},
        "title": {"type": "str", "default": "Memory plan"},
    }


def launch(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Return the decision. Nothing is ever changed, so check mode makes no difference."""
    request = launch_request(params)
    decided = decide(request)
    result = {"changed": False, "warnings": list(decided.plan.get("notes", [])), **_values(decided)}
    if params["log"] is not None:
        result.update(_compared(request, decided, params["rung"], params["log"]))
    if params["report"] and decided.plan:
        result |= {"table": table(decided.plan, params["title"]), "html": report(decided.plan, params["title"])}
    return result


def _values(decided: Launch) -> dict[str, t.Any]:
    return {
        "lane": decided.lane,
        "engine_version": decided.engine_version,
        "tp_size": decided.tp_size,
        "gpus": [gpu.uuid for gpu in decided.gpus],
        "rungs": [
            {**rung.foretold, "name": rung.name, "options": rung.options, "environment": rung.environment, "refused": rung.refused} for rung in decided.rungs
        ],
        "rung": decided.rung,
        "environment": decided.environment,
        "kernels": decided.kernels,
        "given_up": list(decided.given_up),
        "verdict": decided.verdict,
        "plan": decided.plan,
    }


def _compared(request: LaunchRequest, decided: Launch, rung: int, log: str) -> dict[str, t.Any]:
    found = deviations_of(request, decided, rung, log)
    return {
        "deviations": [{**dataclasses.asdict(each), "warning": each.notable} for each in found],
        # The plan's own notes were shown before the start.
        "warnings": [f"plan and engine differ in {each.sentence}" for each in found if each.notable],
    }


def main() -> None:
    """Run the module."""
    sources = ["model_config", "model_path", "model_profile"]
    run_module(launch, argument_spec(), mutually_exclusive=[sources, ["gpus", "gpu_type"], ["goal", "profiles"]])


if __name__ == "__main__":
    main()
