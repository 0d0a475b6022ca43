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
    description:
      - Name of the engine lane, or V(auto) for the newest that the driver can run.
      - Empty for an engine of no lane, with O(engine_version). Then no options follow from the GPUs.
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
      - GPUs of the container in its order, as RV(kpro.llm.gpu_info#module:gpus) has them. The engine takes the first ones.
      - Used are C(uuid), C(name) (it tells what the driver keeps for itself, and GPUs that are not modelled), C(memory_mib) (memory.total of
        nvidia-smi), C(compute_capability) (by default that of the type) and C(free_mib), what a start would find free (by default that of an idle GPU).
      - A UUID alone is a GPU of which nothing else is known. Without the memory of each GPU none is planned.
    type: list
    elements: raw
    default: []
  gpu_type:
    description: A GPU type (V(a6000), V(rtx4090), ...) in place of O(gpus). An unknown one is an error that lists all.
    type: str
  gpu_count:
    description: Number of GPUs of O(gpu_type), or a list of them, or V(all) for O(tp_size).
    type: raw
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
    description:
      - Folder of the model on the target. Its config and the headers of its safetensors files are read if the memory is planned.
      - Where nothing is planned, O(model_config) is enough, and the target is not asked.
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
      tokens_per_request:
        description: Tokens that each of the requests at once has for itself. By default a quarter of the context.
        type: int
      images:
        description: Whether images are to be understood.
        type: bool
  refuse:
    description: Fail if the engine could not start with any rung. The text says what did not happen because of it, like V(nothing was changed).
    type: str
    default: ""
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
  replaced:
    description: >-
      Options of the first release, which work in this one only, with a warning that names the new ones. C(gpu_memory_mib) has the memory of O(gpus),
      C(attention) has C(options) and C(fallback), C(hardware) has C(options), C(environment) and C(given_up).
    type: dict
    default: {}
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
  description: The GPUs that the engine uses, with C(uuid), C(name), C(memory_mib), C(free_mib) and C(compute_capability).
  returned: always
  type: list
  elements: dict
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

from ..module_utils._core.module import run_module
from ..module_utils._launch.answer_edge import SPEC, answer


def main() -> None:
    """Run the module. Nothing is ever changed, so check mode makes no difference."""
    sources = [["model_path", "model_profile"], ["model_config", "model_profile"]]
    run_module(lambda params, _check_mode: answer(params), SPEC, mutually_exclusive=[*sources, ["gpus", "gpu_type"], ["goal", "profiles"]])


if __name__ == "__main__":
    main()
