# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks everybody who asks with what the engine is started, for random deployments: launch_callers.py FOLDER COUNT [CALLER-WITHOUT-NAMES].

The arguments are those of the task files, templated by Ansible itself with the facts that each phase has; the answer is the module's own. Prints a JSON
line for each deployment, with the numbers by caller. A caller that is named gets GPUs whose names were dropped, to show that it would be noticed.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import sys
import typing as t
from pathlib import Path

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar

ROOT = Path(__file__).resolve().parents[2]
init_plugin_loader([str(ROOT / "collections")])

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # noqa: E402

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._launch.answer_edge import SPEC, answer  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import PROFILES  # noqa: E402

Values = dict[str, t.Any]
LAUNCH = "kpro.llm.sglang_launch"
SHOWN = ("verdict", "max_total_num_tokens", "max_running_requests", "low_point_gib", "refused")
SECRET = "not-for-a-journal"
_LOADER = DataLoader()
CONFIGS: dict[str, Values] = json.loads((ROOT / "tests/unit/plugins/module_utils/fixtures/plan/model_configs.json").read_text(encoding="utf-8"))


@functools.cache
def loaded(path: str) -> t.Any:
    return _LOADER.load_from_file(str(ROOT / path), trusted_as_template=True)


def tasks_in(node: t.Any) -> t.Iterator[Values]:
    """Yield each task and block, at any depth."""
    for each in node if isinstance(node, list) else []:
        yield each
        for key in ("tasks", "block", "rescue", "always"):
            yield from tasks_in(each.get(key))


def task_with(path: str, key: str, name: str = "") -> Values:
    """Return the one task of a file with this module or keyword."""
    (found,) = (task for task in tasks_in(loaded(path)) if key in task and name in str(task[key]))
    return found


def templated(value: t.Any, variables: Values) -> t.Any:
    return Templar(loader=_LOADER, variables=variables).template(value)


class Deployment:
    """A random inventory, and what the phases see of its node."""

    def __init__(self, number: int, folder: Path) -> None:
        dice = random.Random(number)
        self.model = dice.choice(sorted(CONFIGS))
        self.config = CONFIGS[self.model]
        self.folder = folder / self.model.replace("/", "--")
        self.folder.mkdir(exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        self.lane = dice.choice(["cu13", "cu13", "cu12", "auto"])
        self.on_node = [self._gpu(index, kind) for index, kind in enumerate(self._kinds(dice))]
        self.chosen = sorted(dice.sample(range(len(self.on_node)), dice.randint(1, len(self.on_node))))
        self.peers_off = dice.choice(["", "", "GPU-0 to GPU-1: other bytes arrived"])
        self.inventory: Values = {
            "gpu_container__gpus": len(self.chosen),
            "gpu_container__vmid": 129,
            "hf_model__repository": self.model,
            "sglang_runtime__lane": self.lane,
            "sglang_server__options": self._options(dice),
            "sglang_server__environment": {"HF_TOKEN": SECRET, "NCCL_DEBUG": "WARN"},
            **self._sometimes(dice),
        }

    @staticmethod
    def _kinds(dice: random.Random) -> list[str]:
        if dice.random() < 0.05:
            return ["GB10"]
        kinds = sorted(PROFILES)
        one = dice.choice(kinds)
        return [dice.choice(kinds) if dice.random() < 0.1 else one for _number in range(dice.choice([1, 2, 2, 3, 4]))]

    def _gpu(self, index: int, kind: str) -> Values:
        """Return a row of gpu_info; our own engine runs on the GPU."""
        row = {"uuid": f"GPU-{index}", "bus_id": f"0000:{index:02x}:00.0", "minor": index, "index": index, "ecc": None}
        if kind == "GB10":
            # Its memory is the system's, which nvidia-smi does not tell.
            return {**row, "name": "NVIDIA GB10", "memory_mib": None, "memory_free_mib": None, "compute_capability": "12.1"}
        gpu = PROFILES[kind]
        # nvidia-smi names an A100 by its memory.
        name = {"a100-40": "A100-SXM4-40GB", "a100-80": "A100-SXM4-80GB"}.get(kind, gpu.name)
        capability = f"{gpu.sm // 10}.{gpu.sm % 10}"
        return {**row, "name": f"NVIDIA {name}", "memory_mib": gpu.total_mib, "memory_free_mib": 3000, "compute_capability": capability}

    @staticmethod
    def _options(dice: random.Random) -> Values:
        options = {"context_length": dice.choice([8192, 32768, 65536]), "max_running_requests": dice.choice([2, 8, 16])}
        return {**options, **({"mem_fraction_static": dice.choice([0.8, 0.85, 0.9])} if dice.random() < 0.5 else {})}

    def _sometimes(self, dice: random.Random) -> Values:
        small: Values = {"name": "small", "options": {"context_length": 4096, "max_running_requests": 1}}
        found: Values = {"sglang_server__profiles": [{"name": "as it is", "options": {}}, small]} if dice.random() < 0.5 else {}
        if dice.random() < 0.2:
            found["sglang_server__tp_size"] = 1
        if dice.random() < 0.2:
            found["sglang_runtime__toolkit"] = False
        if dice.random() < 0.1:
            found["sglang_runtime__capabilities"] = ["8.0"]
        return found

    @property
    def gpus(self) -> list[Values]:
        return [self.on_node[place] for place in self.chosen]

    def facts(self) -> Values:
        """Return what is known in every phase."""
        node = {"gpu_node__result": {"driver_version": "580.173.02"}}
        return {
            "inventory_hostname": "qwen",
            "pct_node": "kpro5",
            "hostvars": {"kpro5": node, "qwen": {}},
            "__node_defaults": loaded("roles/gpu_node/defaults/main.yml"),
            "hf_model__shapes": {"config": self.config, "missing_bytes": 7 * 10**9},
            **self.inventory,
        }

    def seen(self) -> Values:
        """Return the answer of gpu_info on the node; an idle GPU has all but its reserve."""
        processes = []
        for row in self.on_node:
            if row["memory_mib"]:
                idle = next(gpu for gpu in PROFILES.values() if gpu.total_mib == row["memory_mib"] and gpu.sm == round(float(row["compute_capability"]) * 10))
                processes.append({"gpu_uuid": row["uuid"], "container": 129, "used_mib": idle.total_mib - idle.reserve_mib - row["memory_free_mib"]})
        return {"gpus": self.on_node, "processes": processes, "driver": {"loaded": "580.173.02"}}


def preflight(one: Deployment) -> Values:
    task = task_with("playbooks/tasks/preflight_model.yml", LAUNCH)
    return of_task(task, {**one.facts(), "__preflight_node": one.seen(), "__gpu_container_run": {"gpus": one.gpus}})


def plan(one: Deployment) -> Values:
    task = task_with("playbooks/tasks/plan_ask.yml", LAUNCH)
    return of_task(task, {**one.facts(), "__node_seen": one.seen(), "__gpu_container_run": {"gpus": one.gpus}})


def before_download(one: Deployment) -> Values:
    return of_task(task_with("playbooks/tasks/plan_before_download.yml", LAUNCH), {**one.facts(), **results(one)})


def service(one: Deployment) -> Values:
    return of_task(task_with("roles/sglang_server/tasks/plan.yml", LAUNCH), role_variables(one))


def comparison(one: Deployment) -> Values:
    """The role's comparison puts its own question by the same file, with the log of the start."""
    asked = task_with("roles/sglang_server/tasks/compare.yml", "ansible.builtin.include_tasks")
    known = {"__sglang_server_start_log": {"stdout": "Load weight begin. avail mem=46.90 GB\n"}, "__sglang_server_service": {"rung": 0}}
    task = task_with(f"roles/sglang_server/tasks/{asked['ansible.builtin.include_tasks']}", LAUNCH)
    return of_task(task, {**role_variables(one), **known, **asked["vars"]})


CALLERS: dict[str, t.Callable[[Deployment], Values]] = {
    "preflight": preflight,
    "plan": plan,
    "before the download": before_download,
    "service": service,
    "comparison": comparison,
}


def of_task(task: Values, variables: Values) -> Values:
    return templated(task[LAUNCH], {**variables, **task.get("vars", {})})


def results(one: Deployment) -> Values:
    """Return what the phases leave, the runtime's result as its role makes it."""
    lane = {"cu12": "cu12"}.get(one.lane, "cu13")
    version = {"cu12": "0.5.10.post1", "cu13": "0.5.23"}[lane]
    known = {
        **loaded("roles/sglang_runtime/defaults/main.yml"),
        **one.inventory,
        "__sglang_runtime_environment": {"venv": "/opt/venv", "python": "3.12", "package_version": version},
        "__sglang_runtime_lane": {"name": lane, "engine_version": version, "cuda_home": "/usr/local/cuda"},
        "__sglang_runtime_cuda": {"devices": one.gpus, "p2p": "ok", "p2p_disable": bool(one.peers_off), "p2p_reason": one.peers_off},
    }
    left = task_with("roles/sglang_runtime/tasks/main.yml", "ansible.builtin.set_fact", "sglang_runtime__result")
    return {
        **templated(left["ansible.builtin.set_fact"], known),
        "gpu_container__result": {"gpus": one.gpus, "devices": [], "address": "10.0.0.9", "running": True},
        "hf_model__result": {"path": str(one.folder), "commit": "0" * 40},
    }


def role_variables(one: Deployment) -> Values:
    """Return the role's variables as its play passes them, over the role's defaults and the inventory."""
    (play,) = (each for each in loaded("playbooks/deploy_qwen.yml") if each["name"] == "Service")
    (passed,) = (task for task in tasks_in(play["tasks"]) if "ansible.builtin.include_role" in task)
    return {**loaded("roles/sglang_server/defaults/main.yml"), **one.facts(), **results(one), **passed["vars"]}


def numbers(asked: Values) -> Values:
    """Return the module's answer, cut to what all have to agree on."""
    if SECRET in json.dumps(asked):
        return {"a secret": "was passed on"}
    checked = ArgumentSpecValidator(SPEC).validate(json.loads(json.dumps(asked)))
    if checked.error_messages:
        return {"refused options": checked.error_messages}
    try:
        result = answer(checked.validated_parameters)
    except KproError as error:
        # Two of them stop by themselves where no rung can start, the others leave that to who asked.
        return {"would not start": error.reason} if error.what.startswith("The engine would not start") else {"refused": error.reason}
    if result["verdict"] == "FAIL":
        return {"would not start": result["plan"]["cause"]["message"]}
    rungs = [{key: row.get(key) for key in ("name", *SHOWN)} for row in result["rungs"]]
    return {key: result[key] for key in ("tp_size", "lane", "engine_version", "verdict", "rung")} | {"rungs": rungs}


def without_names(asked: Values) -> Values:
    asked = copy.deepcopy(json.loads(json.dumps(asked)))
    for gpu in asked.get("gpus", []):
        gpu.pop("name", None)
    return asked


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    nameless = sys.argv[3] if len(sys.argv) > 3 else ""
    for number in range(count):
        one = Deployment(number, folder)
        asked = {name: caller(one) for name, caller in CALLERS.items()}
        row = {name: numbers(without_names(given) if name == nameless else given) for name, given in asked.items()}
        print(json.dumps({"gpus": [gpu["name"] for gpu in one.gpus], "answers": row}), flush=True)


if __name__ == "__main__":
    main()
