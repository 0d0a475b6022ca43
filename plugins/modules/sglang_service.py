#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service
short_description: Keep the SGLang service of a container as described
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Writes the files of one systemd service that runs SGLang (unit, engine configuration, environment, gate, launcher) from texts that
    were rendered on the controller, and starts, restarts or stops the service.
  - The service is restarted only if the process that runs was started with something else than what is wanted. Comments do not count.
  - Options are checked by the installed engine's own parser before anything is written.
  - Each deliberate start is preceded by C(systemctl reset-failed), so that the unit's start limit counts only automatic restarts.
  - The API key never appears in an argument vector, a diff or the result. Where the text of O(config_text) holds V(@KPRO_API_KEY@), the
    key is filled in on the target.
extends_documentation_fragment:
  - kpro.llm.attributes
  - kpro.llm.service_files
  - kpro.llm.service_ladder
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
  config_text:
    description: Text of the engine's YAML configuration. Needed for O(state=started).
    type: str
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
  port:
    description: Port of the service, for the same purpose; V(0) does not look at ports.
    type: int
    default: 30000
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
- name: Run the service
  kpro.llm.sglang_service:
    unit_text: "{{ lookup('ansible.builtin.template', 'kpro-sglang.service.j2') }}"
    config_text: "{{ lookup('ansible.builtin.template', 'sglang.yaml.j2') }}"
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
  description: Who runs now; pass it to M(kpro.llm.sglang_ready).
  returned: success
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
  description: Whether the service was started or restarted (in check mode, would be).
  returned: success
  type: bool
rung:
  description: Number of the configuration that runs, V(0) for O(config_text), V(-1) for the last good one of an earlier run.
  returned: success
  type: int
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
keep:
  description: To be passed to M(kpro.llm.sglang_ready), which keeps the configuration as the last good one once it has answered.
  returned: success
  type: dict
ended:
  description: Leftovers of earlier runs that were ended before the start, as M(kpro.llm.gpu_cleanup) returns them.
  returned: success
  type: list
  elements: dict
plan:
  description: What was (in check mode, would be) done, one sentence for each step.
  returned: success
  type: list
  elements: str
api_key_path:
  description: File in the container that holds the API key; empty without a key.
  returned: success
  type: str
"""

import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._changes import Change, plan_result
from ansible_collections.kpro.llm.plugins.module_utils._cleanup import end_leftovers, owner_of, survey
from ansible_collections.kpro.llm.plugins.module_utils._engine_parser import check_options
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._module import run_module
from ansible_collections.kpro.llm.plugins.module_utils._process_edge import ProcessTable
from ansible_collections.kpro.llm.plugins.module_utils._service_choice import choose, wanted_now
from ansible_collections.kpro.llm.plugins.module_utils._service_edge import observe_service, put_service_file
from ansible_collections.kpro.llm.plugins.module_utils._service_files import PATH_SPEC, TEXTS, plan_diff, service_paths
from ansible_collections.kpro.llm.plugins.module_utils._service_plan import ServiceWanted, new_settings, plan_service
from ansible_collections.kpro.llm.plugins.module_utils._service_state import ServiceState
from ansible_collections.kpro.llm.plugins.module_utils._systemd import Systemd

_TEXT = {"type": "str"}
ARGUMENT_SPEC: dict[str, t.Any] = {
    "unit": {"type": "str", "default": "kpro-sglang.service"},
    "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
    "unit_text": _TEXT,
    "config_text": _TEXT,
    "environment_text": {"type": "str", "default": "", "no_log": True},
    "gate_text": _TEXT,
    "launcher_text": _TEXT,
    **PATH_SPEC,
    "fallback_config_texts": {"type": "list", "elements": "str", "default": []},
    "rung_names": {"type": "list", "elements": "str", "default": []},
    "unfit": {"type": "dict", "default": {}},
    "lost": {"type": "dict", "default": {}},
    "retry": {"type": "bool", "default": False},
    "api_key_source": {"type": "str", "choices": ["generated", "given", "none"], "default": "generated", "no_log": False},
    "api_key": {"type": "str", "no_log": True},
    "admin_api_key": {"type": "str", "no_log": True},
    "user": {"type": "str", "default": "sglang"},
    "group": {"type": "str", "default": "sglang"},
    "roots": {"type": "list", "elements": "path", "default": ["/opt/kpro-llm"]},
    "port": {"type": "int", "default": 30000},
    "engine_python": {"type": "path"},
    "engine_version": {"type": "str", "default": ""},
    "model_path": {"type": "str", "default": ""},
    "served_name": {"type": "str", "default": ""},
    "force_restart": {"type": "bool", "default": False},
    "start_timeout_s": {"type": "int", "default": 120},
    "stop_timeout_s": {"type": "int", "default": 240},
}


def apply(change: Change, params: dict[str, t.Any], wanted: ServiceWanted, systemd: Systemd) -> list[dict[str, t.Any]]:
    """Do one step; returns the leftovers that were ended."""
    step, *arguments = change.action
    files = {file.role: file for file in wanted.files}
    if step in ("write", "permit"):
        put_service_file(files[arguments[0]], whole=step == "write")
    elif step in ("daemon_reload", "enable", "disable"):
        {"daemon_reload": systemd.daemon_reload, "enable": systemd.enable, "disable": systemd.disable}[step]()
    else:
        systemd.stop(params["stop_timeout_s"])
        if step == "restart":
            table = ProcessTable()
            found = survey(table, owner_of(params["unit"], params["user"], params["roots"]), params["port"])[0]
            ended = end_leftovers(table, found, 10.0)
            systemd.start(params["start_timeout_s"])
            return ended
    return []


def main_result(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    systemd, state, paths = Systemd(params["unit"]), ServiceState(params["state_path"]), service_paths(params)
    present = observe_service(paths, params["started_path"], systemd)
    choice = choose(params, state, present)
    wanted = wanted_now(params, paths, present, choice)
    if params["engine_python"] and new_settings(present, wanted) and not params["lost"]:
        rungs = [params["config_text"], *params["fallback_config_texts"]]
        check_options(params["engine_python"], rungs, params["environment_text"], must_be_there=not check_mode)
    changes = plan_service(present, wanted)
    ended: list[dict[str, t.Any]] = []
    if not check_mode:
        if params["fallback_config_texts"] and wanted.running:
            state.keep_rungs(choice.memory.as_dict())
        for change in changes:
            ended += apply(change, params, wanted, systemd)
        _assert_written(params, paths, wanted, systemd)
    has_key = any(file.role == "api_key" for file in wanted.files)
    return {
        **plan_result(changes),
        "diff": plan_diff(changes, wanted),
        "identity": systemd.identity(systemd.state(), **choice.names).as_dict(),
        "restarted": any(change.action[0] == "restart" for change in changes),
        "api_key_path": params["api_key_path"] if has_key else "",
        "ended": ended,
        "rung": choice.rung,
        "failed_rungs": choice.causes,
        "given_up": choice.given_up(params["rung_names"]),
        "warnings": choice.notes(params["rung_names"]),
        "keep": {"digest": wanted.digest, "rung": choice.rung, "names": choice.names, **_places(params, paths)},
    }


def _places(params: dict[str, t.Any], paths: dict[str, str]) -> dict[str, t.Any]:
    return {"state_path": params["state_path"], "files": {role: paths[role] for role in TEXTS}}


def _assert_written(params: dict[str, t.Any], paths: dict[str, str], wanted: ServiceWanted, systemd: Systemd) -> None:
    again = plan_service(observe_service(paths, params["started_path"], systemd), wanted)
    left = [change.sentence for change in again if change.action[0] in ("write", "permit", "enable")]
    if left:
        raise KproError(params["unit"], f"after writing, this is still to be done: {'; '.join(left)}", "Look for another tool that writes these files")


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
