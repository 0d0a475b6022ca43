# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What decides with what the engine is started, read from the module's options and the model's folder."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._engine.tensor_parallel import AUTO, wanted_count
from .._vram.cards import idle_card
from .._vram.folder_edge import ModelFolder
from .._vram.models import config_of
from .model import GpuRecord, LaunchRequest, ModelFacts

Params = t.Mapping[str, t.Any]


def launch_request(params: Params) -> LaunchRequest:
    """Return the request that the module's options describe, with the model as they name it.

    :raises KproError: for an option that can't be.
    """
    return LaunchRequest(
        lane=params["lane"],
        model=_model(params),
        gpus=_gpus(params),
        driver_version=params["driver_version"],
        engine_version=params["engine_version"],
        capabilities=tuple(params["capabilities"]),
        toolkit=params["toolkit"],
        peers_off=params["peers_off"],
        tp_size=params["tp_size"],
        options=params["options"],
        profiles=[{**rung, "goal": without_gaps(rung.get("goal"))} for rung in params["profiles"]],
        environment=params["environment"],
        plan=params["plan"] == "required",
        goal=without_gaps(params["goal"]),
    )


def model_in(path: str) -> ModelFacts:
    """Return the model of a folder of this machine.

    :raises KproError: if it can't be read.
    """
    folder = ModelFolder(path)
    config, entries = folder.config(), folder.entries()
    return ModelFacts(config, f"{path}/config.json", entries, folder.notes)


def without_gaps(goal: Params | None) -> dict[str, t.Any] | None:
    """Return a goal without the keys that were not given."""
    return None if goal is None else {name: value for name, value in goal.items() if value is not None}


def _gpus(params: Params) -> tuple[GpuRecord, ...]:
    if not params["gpu_type"]:
        return tuple(_gpu(gpu) for gpu in params["gpus"])
    card = idle_card(params["gpu_type"])
    # Of a type there are as many as are asked for.
    asked = 1 if params["tp_size"] == AUTO or not str(params["tp_size"]).isdecimal() else int(params["tp_size"])
    count = wanted_count(params["gpu_count"], asked)
    if count < 1:
        reason = f"the value {params['gpu_count']!r} is no number of GPUs above 0"
        raise KproError("option gpu_count", reason, "Give a number, a list, or all", field="gpu_count", value=params["gpu_count"])
    return (GpuRecord(card.name, card.total_mib),) * count


def _gpu(values: t.Any) -> GpuRecord:
    """Return the record; what else gpu_info tells of a GPU has no say here."""
    if isinstance(values, str):
        return GpuRecord(uuid=values)
    if not isinstance(values, dict):
        raise KproError("option gpus", f"{values!r} is no record of a GPU", "Give them as kpro.llm.gpu_info does", field="gpus")
    name, uuid = str(values.get("name") or ""), str(values.get("uuid") or "")
    memory, free = (_mib(values.get(key), f"GPU {name or uuid}", key) for key in ("memory_mib", "free_mib"))
    if memory is not None and memory < 1:
        raise KproError(f"GPU {name or uuid}", f"its memory_mib is {memory}", "Give the MiB that nvidia-smi prints as memory.total", field="memory_mib")
    return GpuRecord(name, memory, uuid, free, str(values.get("compute_capability") or ""))


def _mib(value: t.Any, gpu: str, key: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    raise KproError(gpu, f"its {key} is {value!r}", "Give a whole number of MiB", field=key)


def _model(params: Params) -> ModelFacts:
    if params["model_profile"]:
        return ModelFacts(config_of(params["model_profile"]), f"profile {params['model_profile']}")
    return ModelFacts(params["model_config"] or {}, "option model_config")
