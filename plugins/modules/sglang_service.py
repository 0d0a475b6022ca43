#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service
short_description: Keep the SGLang service of a container as described, and wait until it answers
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Writes the files of one systemd service that runs SGLang (unit, engine configuration, environment, gate, launcher) from texts that
    were rendered on the controller, and starts, restarts or stops the service.
  - The service is restarted only if the process that runs was started with something else than what is wanted. Comments do not count.
  - Options are checked by the installed engine's own parser before anything is written.
  - Waits until this very start answers (O(level)). A start that is lost is followed by the next of O(rungs), then by the last good configuration,
    which is judged by its own port, address, name, question and level. A run that ends with the last good configuration fails and tells both.
  - Only a start that this run made, or the unfinished run that it continues, is stopped for a failed check or a silent phase. Everything else is
    reported and left as it is. A start is lost if its process ends or a phase is silent beyond its budget; O(timeout_s) only ends the run's wait.
  - Each call returns after O(poll_s) at the latest; the action plugin of the same name prints the progress and calls again. What a run has begun is
    noted in O(state_path), so that the next run goes on where a killed one stopped.
  - Each deliberate start is preceded by C(systemctl reset-failed), so that the unit's start limit counts only automatic restarts.
  - The API key never appears in an argument vector, a diff or the result. Where a text of O(rungs) holds V(@KPRO_API_KEY@), the
    key is filled in on the target.
extends_documentation_fragment:
  - kpro.llm.attributes
  - kpro.llm.question
  - kpro.llm.service_files
  - kpro.llm.service_wait
options:
  unit:
    description: Name of the systemd unit.
    type: str
    default: kpro-sglang.service
  state:
    description: Whether the service runs (and starts at boot) or not (and does not).
    type: str
    choices: [started, stopped]
    default: started
  unit_text:
    description: Text of the unit file. Needed for O(state=started).
    type: str
  rungs:
    description:
      - The configurations, in order. The first one that is neither known to fail nor refused is started; the next follows if a start is lost for a
        reason that it cures. Needed for O(state=started).
      - A rung that failed is remembered and not tried again while nothing of what it is started with changes. If all are known to fail and the last
        good configuration runs, it stays.
      - C(name) is for the report, and C(refused) is why the memory plan refuses the rung, which is then passed over (empty if it does not).
      - Each has C(options), which are put into O(config_text), as RV(kpro.llm.sglang_launch#module:rungs) has them; or C(config_text), the whole text of
        the engine's YAML configuration, with C(args), the options in it for the diagnosis and the result.
    type: list
    elements: dict
    default: []
  config_text:
    description:
      - Text of the engine's YAML configuration for O(rungs) with C(options). Each rung's options stand in place of the line V(@KPRO_OPTIONS@), sorted,
        one a line. Null values are left out.
      - Options that were renamed between releases get the name that O(engine_version) knows. An unknown one is an error that names the nearest known one.
    type: str
    default: ""
  tp_size:
    description: Number of GPUs, which O(config_text) names itself, for the diagnosis. V(0) if it is not known.
    type: int
    default: 0
  retry:
    description: Forget which rungs failed, and begin with the first one.
    type: bool
    default: false
  level:
    description:
      - How far the service must come. V(none), not waited for; V(port), somebody listens; V(health), it generated a token; V(model), it serves the
        wanted model; V(answer), it answered O(question) as expected; V(tools), a tool call and thinking were understood by the parsers.
      - A configuration that came as far as V(health) is kept as the last good one, with what it was asked.
    type: str
    choices: [none, port, health, model, answer, tools]
    default: answer
  on_failure:
    description: Whether the last lost start, after which no other configuration is left, is stopped, so that nothing half-running holds memory, or left.
    type: str
    choices: [stop, leave]
    default: stop
  record_links:
    description: Links to environment and model, whose present targets belong to the last good configuration.
    type: list
    elements: path
    default: []
  run_id:
    description: Set by the action plugin. All calls of one run carry the same.
    type: str
    default: ""
  call:
    description: Set by the action plugin. Number of the call within the run.
    type: int
    default: 1
  environment_text:
    description:
      - Text of the environment file. The module adds the digest of all texts, by which it knows later what the process was started with.
    type: str
    default: ""
  gate_text:
    description: Text of the program that decides before each start whether the engine may start. Needed for O(state=started).
    type: str
  launcher_text:
    description: Text of the program that starts the engine in its own Python. Needed for O(state=started).
    type: str
  api_key_source:
    description:
      - V(generated) makes a key once and keeps it.
      - V(given) takes O(api_key).
      - V(none) is for a service without a key; everybody who reaches the port may use it.
    type: str
    choices: [generated, given, none]
    default: generated
  api_key:
    description: The key for O(api_key_source=given).
    type: str
  admin_api_key:
    description: The key of the engine's administration, put in where the text of O(config_text) holds V(@KPRO_ADMIN_API_KEY@).
    type: str
  user:
    description: User that the service runs as; it must exist.
    type: str
    default: sglang
  group:
    description: Group that may read the engine's configuration.
    type: str
    default: sglang
  roots:
    description: Folders of our Python environments. Before a start, leftovers of the service that run from there are ended, see M(kpro.llm.gpu_cleanup).
    type: list
    elements: path
    default: [/opt/kpro-llm]
  engine_python:
    description: Python of the engine's environment, for the check of the options. Empty skips the check.
    type: path
  engine_version:
    description: Version of the engine, for the run identity.
    type: str
    default: ""
  model_path:
    description: Folder of the model, for the run identity.
    type: str
    default: ""
  served_name:
    description: Name under which the model is served, for the run identity.
    type: str
    default: ""
  force_restart:
    description: Restart a running service although nothing changed.
    type: bool
    default: false
  start_timeout_s:
    description: Seconds that systemd may take to start the first program of the unit.
    type: int
    default: 120
  stop_timeout_s:
    description: Seconds that a stop may take, requests in flight included; then the service's processes are killed.
    type: int
    default: 240
"""

EXAMPLES = r"""
- name: Run the service, with a smaller configuration to fall back to
  kpro.llm.sglang_service:
    unit_text: "{{ lookup('ansible.builtin.template', 'kpro-sglang.service.j2') }}"
    rungs:
      - name: long
        options: {context_length: 65536}
      - name: short
        options: {context_length: 16384}
    config_text: "{{ lookup('ansible.builtin.template', 'sglang.yaml.j2') }}"
    engine_version: 0.5.23
    environment_text: "{{ lookup('ansible.builtin.template', 'sglang.env.j2') }}"
    gate_text: "{{ lookup('ansible.builtin.template', 'gate.py.j2') }}"
    launcher_text: "{{ lookup('ansible.builtin.file', 'launch.py') }}"
    engine_python: /opt/kpro-llm/sglang/venv/bin/python
  register: __service

- name: Stop the service and keep its files
  kpro.llm.sglang_service:
    state: stopped
"""

RETURN = r"""
identity:
  description: Who runs now; M(kpro.llm.sglang_ready) takes it.
  returned: always
  type: dict
  sample:
    unit: kpro-sglang.service
    invocation_id: 3f1c2f6f0d5b4b1f9e3d1f7b0f6f2a55
    boot_id: 7b0c2f1a-6d0f-4a3c-9a52-0f5b7c1a1c11
    main_pid: 412
    main_start_ticks: 91823
    n_restarts: 0
    engine_version: 0.5.23
    model_path: /srv/models/Qwen/Qwen3.6-27B
    served_name: qwen
restarted:
  description: Whether the service was started or restarted by this run or the unfinished one that it continues (in check mode, would be).
  returned: success
  type: bool
rung:
  description: Number of the rung that runs; V(-1) for the last good configuration of an earlier run.
  returned: success
  type: int
rung_name:
  description: Its name.
  returned: success
  type: str
args:
  description: The engine's options of this rung.
  returned: success
  type: dict
failed_rungs:
  description: Causes by number of the rungs that are known to fail with the present inputs, or that the memory plan refuses.
  returned: success
  type: dict
given_up:
  description: Rungs above the one that runs, each with the reason, in a sentence. The same is shown as a warning.
  returned: success
  type: list
  elements: str
  sample: ["speculation: out of memory in graph capture: the pools left too little"]
lost:
  description: Starts that this run lost, in order, each with C(rung), C(name), C(reason), C(remedy), C(diagnosis), C(loss), C(identity), C(log_tail). On
    failure inside C(details).
  returned: always
  type: list
  elements: dict
ended:
  description: Leftovers of earlier runs that were ended before a start, as M(kpro.llm.gpu_cleanup) returns them.
  returned: success
  type: list
  elements: dict
plan:
  description: What was (in check mode, would be) done, one sentence for each step.
  returned: success
  type: list
  elements: str
present:
  description: In check mode, the unit and the holder of its port as they are, as M(kpro.llm.sglang_info) returns them.
  returned: in check mode with O(state=started)
  type: dict
api_key_path:
  description: File in the container that holds the API key; empty without a key.
  returned: success
  type: str
ready:
  description: Whether the wanted level was reached. V(false) in check mode if the service would be started.
  returned: success
  type: bool
level:
  description: Last level reached.
  returned: always
  type: str
  sample: answer
answer:
  description: What the model said.
  returned: when the level answer was reached
  type: str
  sample: Paris
context_length:
  description: Longest prompt and answer together that the server takes, in tokens.
  returned: when the level model was reached
  type: int
elapsed_s:
  description: Seconds from the start of the process to now.
  returned: always
  type: float
phases_s:
  description: Seconds by phase of the start, as far as its log was read.
  returned: always
  type: dict
  sample: {launch: 7.1, options: 1.9, weights: 0.4, warmup: 1.2}
pools:
  description: Sizes of the engine's pools, from its metrics; empty if it serves none.
  returned: when ready
  type: dict
  sample: {kv_tokens: 178594, max_running_requests: 8}
last_good_pools:
  description: The same of the last good run with this configuration; empty without one. What is smaller now is a warning.
  returned: when ready
  type: dict
warnings_found:
  description: Signs in log and pools that the service is worse than it seems, such as parameters that were not loaded.
  returned: when ready
  type: list
  elements: str
diagnosis:
  description: On failure, what M(kpro.llm.sglang_diagnose) returns about the new configuration's loss (inside C(details)).
  returned: failure
  type: dict
stopped:
  description: On failure, whether the lost start was stopped (inside C(details)).
  returned: failure
  type: bool
finished:
  description: V(false) while the run goes on; used by the action plugin.
  returned: always
  type: bool
"""

import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._engine.options import service_rungs
from ..module_utils._ready.chat import QUESTION_SPEC
from ..module_utils._ready.walk import LEVELS
from ..module_utils._service.files import PATH_SPEC
from ..module_utils._service.unit_edge import observe_unit
from ..module_utils._start.converge import LadderRun, with_what_runs
from ..module_utils._start.watch_edge import WAIT_SPEC

_TEXT = {"type": "str"}
ARGUMENT_SPEC: dict[str, t.Any] = {
    "unit": {"type": "str", "default": "kpro-sglang.service"},
    "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
    "unit_text": _TEXT,
    "rungs": {"type": "list", "elements": "dict", "default": []},
    "config_text": {"type": "str", "default": ""},
    "tp_size": {"type": "int", "default": 0},
    "retry": {"type": "bool", "default": False},
    "environment_text": {"type": "str", "default": "", "no_log": True},
    "gate_text": _TEXT,
    "launcher_text": _TEXT,
    **PATH_SPEC,
    "api_key_source": {"type": "str", "choices": ["generated", "given", "none"], "default": "generated", "no_log": False},
    "api_key": {"type": "str", "no_log": True},
    "admin_api_key": {"type": "str", "no_log": True},
    "user": {"type": "str", "default": "sglang"},
    "group": {"type": "str", "default": "sglang"},
    "roots": {"type": "list", "elements": "path", "default": ["/opt/kpro-llm"]},
    "engine_python": {"type": "path"},
    "engine_version": {"type": "str", "default": ""},
    "model_path": {"type": "str", "default": ""},
    "served_name": {"type": "str", "default": ""},
    "force_restart": {"type": "bool", "default": False},
    "start_timeout_s": {"type": "int", "default": 120},
    "stop_timeout_s": {"type": "int", "default": 240},
    "level": {"type": "str", "choices": ["none", *LEVELS], "default": "answer"},
    **QUESTION_SPEC,
    **WAIT_SPEC,
    "on_failure": {"type": "str", "choices": ["stop", "leave"], "default": "stop"},
    "record_links": {"type": "list", "elements": "path", "default": []},
    "run_id": {"type": "str", "default": ""},
    "call": {"type": "int", "default": 1},
}


def main_result(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Do one call of the run."""
    if params["state"] == "started" and not params["rungs"]:
        raise KproError("kpro.llm.sglang_service", "state=started needs rungs", "Give at least one configuration")
    try:
        rungs = [] if params["state"] == "stopped" else service_rungs(params["rungs"], params["config_text"], params["engine_version"], params["tp_size"])
        run = LadderRun({**params, "rungs": rungs})
        if params["state"] == "stopped":
            return run.stop(check_mode)
        return {"present": observe_unit(params["unit"], params["port"]), **run.foretell()} if check_mode else run.call()
    except KproError as error:
        raise with_what_runs(error, params["unit"]) from error


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
