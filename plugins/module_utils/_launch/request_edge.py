# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What decides with what the engine is started, read from the module's options and the machine that it runs on."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._vram.cards import idle_card
from .._vram.folder_edge import ModelFolder
from .._vram.models import config_of
from .model import GpuRecord, LaunchRequest, ModelFacts

Params = t.Mapping[str, t.Any]


def launch_request(params: Params) -> LaunchRequest:
    """Return the request that the module's options describe.

    :raises KproError: if the model can't be read.
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
        profiles=[{**rung, "goal": without_gaps(rung["goal"])} for rung in params["profiles"]],
        environment=params["environment"],
        plan=params["plan"] == "required",
        goal=without_gaps(params["goal"]),
    )


def without_gaps(goal: Params | None) -> dict[str, t.Any] | None:
    """Return a goal without the keys that were not given."""
    return None if goal is None else {name: value for name, value in goal.items() if value is not None}


def _gpus(params: Params) -> tuple[GpuRecord, ...]:
    if not params["gpu_type"]:
        return tuple(_gpu(gpu) for gpu in params["gpus"])
    if params["gpu_count"] < 1:
        raise KproError("option gpu_count", f"the value {params['gpu_count']} is below 1", "Give the number of GPUs", field="gpu_count")
    card = idle_card(params["gpu_type"])
    return (GpuRecord(card.name, card.total_mib),) * params["gpu_count"]


def _gpu(values: Params) -> GpuRecord:
    memory = values["memory_mib"]
    if memory is not None and memory < 1:
        raise KproError(f"GPU {values['name'] or values['uuid']}", f"its memory_mib is {memory}", "Give the MiB that nvidia-smi prints as memory.total")
    return GpuRecord(values["name"], memory, values["uuid"], values["free_mib"], values["compute_capability"])


def _model(params: Params) -> ModelFacts:
    if params["model_path"]:
        folder = ModelFolder(params["model_path"])
        return ModelFacts(folder.config(), f"{params['model_path']}/config.json", folder.entries())
    if params["model_profile"]:
        return ModelFacts(config_of(params["model_profile"]), f"profile {params['model_profile']}")
    return ModelFacts(params["model_config"] or {}, "option model_config")
