# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""With what the engine is started: the one answer for preflight, plan, the check before the download, the service and the comparison after a start."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._engine.gpu_settings import attention_for, hardware_for
from .._engine.lanes import CPU, Footprint, Lane, choose_lane
from .._engine.options import merged_options
from .._engine.tensor_parallel import tp_size
from .._service.ladder import ATTENTION_RUNG
from .._vram.cards import Card, card_of, check_kind, generation_of
from .._vram.compare import Deviation, deviations, read
from .._vram.ladder import goal_as_rung, planned_ladder
from .._vram.request import Request, planned
from .model import GpuRecord, Launch, LaunchRequest, Rung, Values

ONLY_RUNG = "default"

# What a lane needs whatever the model. On a CPU the pools are small (it is for trying things out), and an idle scheduler would burn a core
# without sleep_on_idle. TorchDynamo is off, since the warm-up compiles and dies where there is no C++ compiler.
_LANE_OPTIONS: t.Mapping[str, Values] = {
    CPU: {
        "device": "cpu",
        "sleep_on_idle": True,
        "disable_overlap_schedule": True,
        "mamba_radix_cache_strategy": "no_buffer",
        "max_mamba_cache_size": 64,
        "max_total_tokens": 8192,
        "max_running_requests": 4,
    },
}
_LANE_ENVIRONMENT: t.Mapping[str, t.Mapping[str, str]] = {CPU: {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}}


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What all rungs share: options and environment, the user's over those that follow from lane and GPUs."""

    options: Values
    environment: dict[str, t.Any]
    kernels: str
    given_up: tuple[str, ...]
    fallback: t.Mapping[str, str]


def decide(request: LaunchRequest) -> Launch:
    """Return with what the engine will be started.

    :raises KproError: for options that the engine does not know, GPUs or a model that can't be, and what is not modelled.
    """
    lane = _lane(request)
    version = request.engine_version or lane.engine_version
    size = tp_size(request.tp_size, len(request.gpus), request.model.config, on_cpu=lane.name == CPU)
    used, idle = (request.gpus[:size], request.gpus[size:]) if lane.name != CPU else ((), ())
    settings = _settings(request, lane, used)
    rungs = _ladder(request, settings)
    if request.plan:
        # By the name alone: the driver may tell no memory of such a GPU.
        check_kind([_card(gpu) for gpu in used])
    if is_planned(request, lane.name) and request.model.config:
        found, row, plan = _with_plan(request, version, size, settings, rungs)
    else:
        found, row, plan = _without_plan(request, version, settings, rungs), 0, {}
    waits = (f"GPU {', '.join(gpu.uuid or gpu.name for gpu in idle)} (idle: the model is divided among {size})",) if idle else ()
    return Launch(lane.name, version, size, used, idle, settings.kernels if used else "", found, row, settings.given_up + waits, plan)


def is_planned(request: LaunchRequest, lane: str) -> bool:
    """Tell whether the memory is planned, if the model is known: for GPUs whose memory is known, on a lane that uses them."""
    return request.plan and lane != CPU and bool(request.gpus) and all(gpu.memory_mib for gpu in request.gpus)


def _lane(request: LaunchRequest) -> Lane:
    if request.lane:
        return choose_lane(request.lane, request.driver_version)
    if not request.engine_version:
        raise KproError("option lane", "neither a lane nor engine_version is given", "Give one of them", field="lane")
    # Nothing follows from an engine of unknown origin.
    return Lane("", request.engine_version, "", "", 0, (), (), (), "", Footprint(0, 0, 0))


def capabilities_of(gpus: t.Iterable[GpuRecord]) -> tuple[str, ...]:
    """Return the compute capabilities of GPUs, by what the driver says or by the type's data sheet."""
    found = []
    for gpu in gpus:
        generation = generation_of(gpu.name)
        found.append(gpu.compute_capability or (f"{generation // 10}.{generation % 10}" if generation else ""))
    return tuple(dict.fromkeys(capability for capability in found if capability))


def _settings(request: LaunchRequest, lane: Lane, used: t.Sequence[GpuRecord]) -> _Settings:
    capabilities = request.capabilities or capabilities_of(used)
    hardware = hardware_for(lane, capabilities, request.driver_version, toolkit=request.toolkit, peers_off=request.peers_off)
    attention = attention_for(lane, capabilities, request.toolkit)
    return _Settings(
        {"enable_metrics": True, **_LANE_OPTIONS.get(lane.name, {}), **hardware.options, **attention.options, **request.options},
        {**_LANE_ENVIRONMENT.get(lane.name, {}), **hardware.environment, **request.environment},
        hardware.kernels if lane.name else "",
        hardware.given_up,
        # Who has chosen a backend gets no other.
        {} if "attention_backend" in request.options else attention.fallback,
    )


def _ladder(request: LaunchRequest, settings: _Settings) -> list[Values]:
    rungs = [dict(profile) for profile in request.profiles] or [{"name": ONLY_RUNG, "options": {}}]
    # The last rung is for kernels that can't be compiled or don't run on these GPUs.
    if settings.fallback:
        last = rungs[-1]
        rungs.append({**last, "name": ATTENTION_RUNG, "options": {**(last.get("options") or {}), **settings.fallback}})
    return rungs


def _with_plan(request: LaunchRequest, version: str, size: int, settings: _Settings, rungs: list[Values]) -> tuple[tuple[Rung, ...], int, Values]:
    asked = _request(request, version, {**settings.options, "tp_size": size}, settings.environment)
    if request.goal is not None:
        plan = planned(asked, request.goal)
        plan.update(goal_as_rung(plan))
    else:
        plan = planned_ladder(asked, rungs)
    found = tuple(_planned_rung(row) for row in plan["rungs"])
    return found, plan["rung"], plan


def _request(request: LaunchRequest, version: str, args: t.Mapping[str, t.Any], environment: t.Mapping[str, t.Any]) -> Request:
    model = request.model
    return Request(model.config, model.where, model.entries, tuple(_card(gpu) for gpu in request.gpus), version, args, environment, notes=model.notes)


def deviations_of(request: LaunchRequest, launch: Launch, rung: int, log: str) -> list[Deviation]:
    """Return what the engine logged beside the plan of the rung that it was started with; empty without a plan.

    :param rung: number of the rung that runs.
    :raises KproError: if there is no such rung.
    """
    if not 0 <= rung < len(launch.rungs):
        raise KproError(f"rung {rung}", f"the ladder has {len(launch.rungs)}", "Give the number that the service runs, from 0 on")
    if not launch.plan:
        return []
    found = launch.rungs[rung]
    return deviations(
        planned(_request(request, launch.engine_version, {**found.options, "tp_size": launch.tp_size}, found.environment)), read(log.splitlines())
    )


def _planned_rung(row: Values) -> Rung:
    foretold = {key: value for key, value in row.items() if key not in ("name", "options", "environment", "passed_over")}
    return Rung(row["name"], row["options"], row["environment"], row["passed_over"], foretold)


def _without_plan(request: LaunchRequest, version: str, settings: _Settings, rungs: list[Values]) -> tuple[Rung, ...]:
    if request.goal is not None or any(rung.get("goal") for rung in rungs):
        reason = "a goal needs the memory plan, which is not made here"
        raise KproError("goal", reason, "Plan the memory (plan: required, with GPUs whose memory is known), or give options in its place")
    environment = {name: str(value) for name, value in settings.environment.items()}
    return tuple(Rung(rung["name"], merged_options(settings.options, rung["options"], version), environment) for rung in rungs)


def _card(gpu: GpuRecord) -> Card:
    idle = card_of(int(gpu.memory_mib or 0), 0, gpu.name, gpu.compute_capability)
    return card_of(idle.total_mib, idle.total_mib - idle.reserve_mib if gpu.free_mib is None else gpu.free_mib, gpu.name, gpu.compute_capability)
