# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole runtime at one look: what differs from what is wanted, so that a run without differences takes one round trip."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._cuda.p2p_verdict_file import PATH as PEER_COPIES
from .._cuda.result_edge import cuda_result
from .._driver.converge import make_plan, resolved
from .._driver.edge import DriverEdge
from .._driver.model import Wanted as WantedDriver
from .._engine.gpu_settings import flash_attn_package
from .._engine.lanes import Facts, choose_lane, choose_python, contract_problems, with_pins
from .._environment.ensure import ensure
from .._environment.lock import parse_lock
from .._linux.command_edge import Command
from .base import plan_base
from .base_edge import Distribution
from .options import wanted_from


class Differs(Exception):
    """Something is not as wanted; the text says what."""


def look(params: t.Mapping[str, t.Any], keep: bool = False, note: bool = False) -> dict[str, t.Any]:
    """Return whether nothing is to be done, and if so, what the steps would return; else the first thing that differs.

    What can't be looked at differs too: the step itself says why.

    :param keep: whether what was found out may be kept of copies between GPUs; ``note``: that all files of the environment were read.
    """
    found: dict[str, t.Any] = {"changed": False, "same": False, "differs": "", "base": {}, "userland": {}, "cuda": {}, "environment": {}}
    try:
        found["base"] = _base(params["base"])
        if params["driver_version"]:
            found["userland"] = _userland(params["driver_version"])
            found["cuda"] = _cuda(params["user"], params["gpus"], keep)
        found["environment"] = _environment(params, found["base"]["system"], found["cuda"], note)
    except (Differs, KproError) as error:
        return {**found, "differs": error.sentence if isinstance(error, KproError) else str(error)}
    return {**found, "same": True}


def _base(options: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    distribution = Distribution(Command())
    system = distribution.facts()
    wanted = wanted_from(options, system)
    _nothing_left(plan_base(distribution.observe(wanted), wanted))
    return {"changed": False, "plan": [], "system": system}


def _userland(version: str) -> dict[str, t.Any]:
    edge = DriverEdge(Command())
    wanted = WantedDriver("userland", version, "", "", "auto", False, (), False)
    present = edge.observe(wanted)
    wanted = resolved(wanted, present, False)
    plan = make_plan(wanted, present)
    _nothing_left(plan.changes)
    return {"changed": False, "plan": [], "version": version, "loaded": version}


def _cuda(user: str, gpus: int, keep: bool) -> dict[str, t.Any]:
    answer = cuda_result(user, remember=PEER_COPIES, keep=keep)
    if not answer["usable"]:
        raise Differs(answer["error"])
    if gpus and len(answer["devices"]) != gpus:
        raise Differs(f"CUDA shows {len(answer['devices'])} of {gpus} GPUs")
    return answer


def _environment(params: t.Mapping[str, t.Any], system: t.Mapping[str, t.Any], cuda: t.Mapping[str, t.Any], note: bool) -> dict[str, t.Any]:
    lane = choose_lane(params["lane"], params["driver_version"])
    python = choose_python(lane, params["python"], system["python"])
    facts = Facts(
        driver_version=params["driver_version"],
        python=python,
        glibc=system["glibc"],
        architecture=system["architecture"],
        toolkits=system["toolkits"] if params["toolkit"] else None,
    )
    problems = contract_problems(lane, facts)
    if problems:
        raise Differs(" ".join(problems))
    source = None
    if params["flash_attn"] != "none":
        capabilities = params["capabilities"] or sorted({device["compute_capability"] for device in cuda.get("devices", [])})
        values = flash_attn_package(lane, python, capabilities, params["wheelhouse"], build=params["flash_attn"] == "build")
        source = {name: value for name, value in values.items() if name != "lock_file"} | {"lock": params["flash_attn_lock"]}
    lock = params["locks"].get(python, "")
    lane = with_pins(lane, parse_lock(lock), "lock file") if lock else lane
    options = {**params["environment"], "lock": lock, "python": python, "package_version": lane.engine_version, "source_package": source}
    result = ensure(options, apply=False, keep=note)
    if result["changed"]:
        raise Differs(result["plan"][0])
    return result


def _nothing_left(changes: t.Sequence[t.Any]) -> None:
    if changes:
        raise Differs(changes[0].sentence)
