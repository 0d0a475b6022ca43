# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options and result of the module sglang_launch, which is answered where the model's files are, or on the controller if none are needed."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._vram.report import report
from .._vram.table import table
from .decide import decide, deviations_of, is_planned
from .model import Launch, LaunchRequest
from .replaced import with_new_names
from .request_edge import launch_request, model_in

Values = dict[str, t.Any]

_GOAL: Values = {
    "context_tokens": {"type": "int", "no_log": False},
    "concurrent_requests": {"type": "int"},
    "speculation": {"type": "str", "choices": ["required", "preferred", "off"]},
    "prefix_cache": {"type": "bool"},
    "tokens_per_request": {"type": "int", "no_log": False},
    "images": {"type": "bool"},
}
_RUNG: Values = {"name": {"type": "str", "required": True}, "options": {"type": "dict", "required": True}, "goal": {"type": "dict"}}
SPEC: Values = {
    "lane": {"type": "str", "default": "auto"},
    "driver_version": {"type": "str", "default": ""},
    "engine_version": {"type": "str", "default": ""},
    "gpus": {"type": "list", "elements": "raw", "default": []},
    "gpu_type": {"type": "str"},
    "gpu_count": {"type": "raw", "default": 1},
    "capabilities": {"type": "list", "elements": "str", "default": []},
    "toolkit": {"type": "bool", "default": True},
    "peers_off": {"type": "str", "default": ""},
    "model_config": {"type": "dict"},
    "model_path": {"type": "path"},
    "model_profile": {"type": "str"},
    "tp_size": {"type": "str", "default": "auto"},
    "options": {"type": "dict", "default": {}},
    "profiles": {"type": "list", "elements": "dict", "options": _RUNG, "default": []},
    "environment": {"type": "dict", "default": {}},
    "plan": {"type": "str", "choices": ["required", "off"], "default": "required"},
    "goal": {"type": "dict", "options": _GOAL},
    "refuse": {"type": "str", "default": ""},
    "log": {"type": "str"},
    "rung": {"type": "int", "default": 0},
    "report": {"type": "bool", "default": False},
    "title": {"type": "str", "default": "Memory plan"},
    "replaced": {"type": "dict", "default": {}},
}


def needs_files(params: t.Mapping[str, t.Any]) -> bool:
    """Tell whether the answer needs the model's folder; where nothing is planned, its config as an option is enough.

    :raises KproError: for an option that can't be.
    """
    return bool(params["model_path"]) and is_planned(launch_request(with_new_names(params)[0]), params["lane"])


def answer(params: t.Mapping[str, t.Any]) -> Values:
    """Return the module's result.

    :raises KproError: as :func:`decide`, and if nothing could start and that is to be refused.
    """
    given, sentences = with_new_names(params)
    request = launch_request(given)
    if needs_files(params):
        request = dataclasses.replace(request, model=model_in(given["model_path"]))
    decided = decide(request)
    _refuse(decided, given["refuse"])
    result = {"changed": False, "warnings": [*sentences, *decided.plan.get("notes", [])], **_values(decided)}
    result["given_up"] += (given["replaced"] or {}).get("hardware", {}).get("given_up", [])
    if given["log"] is not None:
        result |= _compared(request, decided, given["rung"], given["log"])
    return result | _reported(decided, given["title"]) if given["report"] else result


def _refuse(decided: Launch, consequence: str) -> None:
    if consequence and decided.cause:
        raise KproError(f"The engine would not start, so {consequence}", decided.cause, f"What helps, as computed: {decided.help}")


def _values(decided: Launch) -> Values:
    return {
        "lane": decided.lane,
        "engine_version": decided.engine_version,
        "tp_size": decided.tp_size,
        "gpus": [dataclasses.asdict(gpu) for gpu in decided.gpus],
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


def _compared(request: LaunchRequest, decided: Launch, rung: int, log: str) -> Values:
    found = deviations_of(request, decided, rung, log)
    return {
        "deviations": [{**dataclasses.asdict(each), "warning": each.notable} for each in found],
        # The plan's own notes were shown before the start.
        "warnings": [f"plan and engine differ in {each.sentence}" for each in found if each.notable],
    }


def _reported(decided: Launch, title: str) -> Values:
    if not decided.plan:
        unknown = [gpu.uuid or gpu.name for gpu in (*decided.gpus, *decided.idle) if not gpu.memory_mib]
        reason = f"the memory of {', '.join(unknown)} is not known" if unknown else "it needs GPUs, a lane that uses them, and a model's config"
        raise KproError("memory plan", reason, "Give gpu_type, or GPUs with memory_mib")
    return {"table": table(decided.plan, title), "html": report(decided.plan, title)}
