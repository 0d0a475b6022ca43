# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What decides with what the engine is started, and the decision, as plain values."""

from __future__ import annotations

import dataclasses
import typing as t

from .._vram.headers import Entry

Values = dict[str, t.Any]


@dataclasses.dataclass(frozen=True)
class GpuRecord:
    """A GPU of the container as a whole: what one source knows of it never gets apart.

    :param memory_mib: memory.total of nvidia-smi; None if nobody could tell yet.
    :param free_mib: what a start would find; None: an idle card of its type.
    :param compute_capability: like "8.6"; empty if nobody could tell.
    """

    name: str = ""
    memory_mib: int | None = None
    uuid: str = ""
    free_mib: int | None = None
    compute_capability: str = ""


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What is known of the model.

    :param config: its config.json; empty if it could not be read.
    :param where: what to call the config in an error.
    :param entries: tensors by the safetensors headers; empty if only the config is known.
    :param notes: what a person should hear of these files.
    """

    config: t.Mapping[str, t.Any]
    where: str = "config.json"
    entries: t.Sequence[Entry] = ()
    notes: t.Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class LaunchRequest:
    """Everything that decides with what the engine is started.

    :param lane: name of a lane, or ``auto``: the newest that the driver can run. Empty: an engine of no lane; then nothing follows from the GPUs.
    :param gpus: of the container, in its order; the engine takes the first ones.
    :param driver_version: of the node; empty if it has none.
    :param engine_version: installed; empty: that of the lane.
    :param capabilities: compute capabilities in place of the GPUs' own.
    :param toolkit: nvcc of the lane's CUDA is installed.
    :param peers_off: why copies between the GPUs are switched off; empty if they work or were not tried.
    :param tp_size: a number, or ``auto``.
    :param options: engine options by long name; they win over what follows from lane and GPUs.
    :param profiles: rungs of the ladder, each with name, options, and goal if its rest is searched.
    :param environment: of the engine.
    :param plan: whether the memory is planned; without it rungs are taken as they are given.
    :param goal: what to search settings for, in place of the rungs.
    """

    lane: str
    model: ModelFacts
    gpus: tuple[GpuRecord, ...] = ()
    driver_version: str = ""
    engine_version: str = ""
    capabilities: tuple[str, ...] = ()
    toolkit: bool = True
    peers_off: str = ""
    tp_size: t.Any = "auto"
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    profiles: t.Sequence[t.Mapping[str, t.Any]] = ()
    environment: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    plan: bool = True
    goal: t.Mapping[str, t.Any] | None = None


@dataclasses.dataclass(frozen=True)
class Rung:
    """One configuration of the engine.

    :param options: complete, by long name; with a plan nothing that decides the memory is left to the engine's defaults.
    :param environment: of the engine, complete.
    :param refused: why the plan refuses it; empty if it does not.
    :param foretold: verdict and numbers of its plan; empty without one.
    """

    name: str
    options: Values
    environment: dict[str, str]
    refused: str = ""
    foretold: Values = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Launch:
    """With what the engine will be started.

    :param gpus: those that the engine uses; ``idle``: the rest of the container's.
    :param kernels: name of the folder for kernels that the engine compiles.
    :param rung: number of the rung to begin with.
    :param given_up: what these GPUs can't do, one sentence each.
    :param plan: of the rung to begin with; empty if none was made.
    """

    lane: str
    engine_version: str
    tp_size: int
    gpus: tuple[GpuRecord, ...]
    idle: tuple[GpuRecord, ...]
    kernels: str
    rungs: tuple[Rung, ...]
    rung: int
    given_up: tuple[str, ...]
    plan: Values

    @property
    def verdict(self) -> str:
        """The plan's verdict: OK, SHORT, RISK or FAIL; empty if none was made."""
        return str(self.plan.get("verdict", ""))

    @property
    def cause(self) -> str:
        """Why the engine could not start with any rung; empty if it could, or if nothing was planned."""
        return str(self.plan["cause"].get("message") or "see the plan") if self.verdict == "FAIL" else ""

    @property
    def help(self) -> str:
        """The first change that makes it start."""
        first = next(iter(self.plan.get("advice") or []), None)
        return f"set {first['option']} to {first['to']}" if first else "no single change"

    @property
    def environment(self) -> dict[str, str]:
        """The engine's environment. One unit serves all rungs, so what one of them needs, all have."""
        return {name: value for rung in reversed(self.rungs) for name, value in rung.environment.items()}

    @property
    def refused(self) -> dict[int, str]:
        """Why rungs are refused, by number."""
        return {number: rung.refused for number, rung in enumerate(self.rungs) if rung.refused}
