# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which configuration the service is to run now: a rung, or the last good one."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .files import api_key, given_texts, wanted_service
from .ladder import Memory, memory_from, next_rung, rung_after_loss, with_loss
from .plan import ServicePresent, ServiceWanted
from .state_edge import ServiceState, good_texts
from .text import environment_of, texts_digest

ROLLED_BACK = -1


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to run.

    :param rung: number of the rung; :data:`ROLLED_BACK` for the last good configuration.
    :param texts: of the last good configuration; empty for a rung.
    :param names: engine version, model path and served name of what is to run.
    :param unfit: causes by rung that the memory plan refuses.
    """

    rung: int
    memory: Memory
    names: t.Mapping[str, str]
    texts: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    unfit: t.Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def causes(self) -> dict[str, str]:
        """Why rungs are left out, by number as text (for JSON)."""
        return {str(number): cause for number, cause in sorted({**self.memory.failed, **self.unfit}.items())}

    def given_up(self, names: t.Sequence[str]) -> list[str]:
        """Return why the rungs above the one that runs do not, one sentence each."""
        known = {**self.memory.failed, **self.unfit}
        above = sorted(number for number in known if number < self.rung or self.rung == ROLLED_BACK)
        return [f"{names[number] if number < len(names) else f'rung {number}'}: {known[number]}" for number in above]

    def notes(self, names: t.Sequence[str]) -> list[str]:
        """Return what a person has to know about the choice."""
        lost = self.given_up(names)
        if not lost:
            return []
        runs = "the last good configuration" if self.rung == ROLLED_BACK else names[self.rung] if self.rung < len(names) else f"rung {self.rung}"
        again = " sglang_server__retry=true tries again what failed." if self.memory.failed else ""
        return [f"What runs is {runs}. Given up: {'; '.join(lost)}.{again}"]


def choose(params: t.Mapping[str, t.Any], state: ServiceState, present: ServicePresent) -> Choice:
    """Return what to run, after a lost start (option ``lost``) or at the beginning of a run.

    :raises KproError: if the start was lost for a reason that no other configuration cures, and there is no good one to restore.
    """
    rungs = [params["config_text"] or "", *params["fallback_config_texts"]]
    memory = memory_from(state.rungs(), _inputs(params, rungs), forget=params["retry"] and not params["lost"])
    names = {name: str(params[name] or "") for name in ("engine_version", "model_path", "served_name")}
    unfit = {int(number): str(cause) for number, cause in params["unfit"].items()}
    if params["lost"]:
        return _after_loss(params, state, Choice(0, memory, names, unfit=unfit), len(rungs))
    rung = next_rung(memory, len(rungs), unfit)
    if rung is not None:
        return Choice(rung, memory, names, unfit=unfit)
    good = state.good()
    if good and present.unit.running and present.started_digest == good.get("digest"):
        # Everything wanted is known to fail and the last good configuration runs: nothing is tried again behind its back.
        return _restored(good, Choice(ROLLED_BACK, memory, names, unfit=unfit))
    # All failed earlier and nothing runs: what made them fail may be gone, so begin anew.
    return Choice(next_rung(Memory(), len(rungs), unfit) or 0, dataclasses.replace(memory, failed={}), names, unfit=unfit)


def _after_loss(params: t.Mapping[str, t.Any], state: ServiceState, choice: Choice, rungs: int) -> Choice:
    lost = {"rung": 0, "class": "unknown", "cause": "", **params["lost"]}
    number, class_, cause = int(lost["rung"]), str(lost["class"]), str(lost["cause"])
    memory = with_loss(choice.memory, number, class_, cause, params["rung_names"])
    rung = rung_after_loss(memory, class_, number, rungs, choice.unfit)
    if rung is not None:
        return dataclasses.replace(choice, rung=rung, memory=memory)
    good = state.good()
    elsewhere = bool(good) and _of_other_hardware(good_texts(good), params)
    if not good or elsewhere or good.get("digest") == lost.get("digest"):
        why = " (the last good one was for other GPUs or another driver)" if elsewhere else ""
        raise KproError(params["unit"], f"the start was lost and there is no other configuration to run{why}: {cause}", str(lost.get("remedy", "")))
    return _restored(good, dataclasses.replace(choice, rung=ROLLED_BACK, memory=memory))


def _of_other_hardware(texts: t.Mapping[str, str], params: t.Mapping[str, t.Any]) -> bool:
    """Tell whether a configuration names other GPUs or another driver than those at hand, so that its gate would refuse it."""
    then, now = environment_of(texts.get("environment", "")), environment_of(params["environment_text"] or "")
    return any(name in then and then[name] != now.get(name) for name in ("CUDA_VISIBLE_DEVICES", "KPRO_DRIVER_VERSION"))


def _restored(good: dict[str, t.Any], choice: Choice) -> Choice:
    return dataclasses.replace(choice, names={**choice.names, **good_texts(good, "names")}, texts=good_texts(good))


def _inputs(params: t.Mapping[str, t.Any], rungs: t.Sequence[str]) -> str:
    texts = {f"rung {number}": text for number, text in enumerate(rungs)}
    names = ("unit_text", "environment_text", "gate_text", "launcher_text", "engine_version", "model_path")
    return texts_digest({**texts, **{name: str(params[name] or "") for name in names}})


def wanted_now(params: t.Mapping[str, t.Any], paths: t.Mapping[str, str], present: ServicePresent, choice: Choice) -> ServiceWanted:
    """Return what the service is to be, with the chosen configuration."""
    if params["state"] == "stopped":
        return ServiceWanted((), "", running=False)
    key = api_key(params, present)
    rungs = [params["config_text"] or "", *params["fallback_config_texts"]]
    texts = choice.texts or given_texts(params, rungs[choice.rung], key)
    return wanted_service(texts, key, paths, params["group"], force_restart=params["force_restart"] and not params["lost"])
