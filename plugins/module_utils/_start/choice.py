# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which configuration the service is to run now: a rung, or the last good one."""

from __future__ import annotations

import dataclasses
import typing as t

from .._service.files import api_key, given_texts, wanted_service
from .._service.ladder import Memory, memory_from, next_rung, rung_after_loss, with_loss
from .._service.plan import ServicePresent, ServiceWanted
from .._service.record import Record
from .._service.text import environment_of, texts_digest
from .check import config_lines

ROLLED_BACK = -1


class Remembered(t.Protocol):
    """The memory of earlier runs."""

    def rungs(self) -> dict[str, t.Any]: ...

    def good(self) -> dict[str, t.Any]: ...

    def texts_of(self, good: t.Mapping[str, t.Any], part: str = ...) -> dict[str, str]: ...


@dataclasses.dataclass(frozen=True)
class Choice:
    """The configuration to run.

    :param rung: number of the rung; :data:`ROLLED_BACK` for the last good configuration.
    :param texts: of the last good configuration; empty for a rung.
    :param names: engine version, model path and served name of what is to run.
    :param unfit: causes by rung that the memory plan refuses.
    :param good: the record of the last good configuration; empty for a rung.
    """

    rung: int
    memory: Memory
    names: t.Mapping[str, str]
    texts: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    unfit: t.Mapping[int, str] = dataclasses.field(default_factory=dict)
    good: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)

    @property
    def restored(self) -> bool:
        """The last good configuration is to run."""
        return self.rung == ROLLED_BACK

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


def choose(params: t.Mapping[str, t.Any], state: Remembered, present: ServicePresent, unfinished: Record | None = None) -> Choice:
    """Return what to run at the beginning of a run.

    :param unfinished: an earlier run with the same inputs that did not end; its configuration is continued.
    """
    begin = _beginning(params, state, forget=params["retry"] and unfinished is None)
    rungs = len(params["rungs"])
    good = state.good()
    if unfinished is not None and unfinished.rung == ROLLED_BACK and good:
        return _restored(state, good, begin)
    if unfinished is not None and 0 <= unfinished.rung < rungs:
        return dataclasses.replace(begin, rung=unfinished.rung)
    rung = next_rung(begin.memory, rungs, begin.unfit)
    if rung is not None:
        return dataclasses.replace(begin, rung=rung)
    if good and present.unit.running and present.started_digest == good.get("digest"):
        # All rungs failed and the last good one runs: leave it.
        return _restored(state, good, begin)
    # All failed earlier and nothing runs: what made them fail may be gone, so begin anew.
    rung = next_rung(Memory(), rungs, begin.unfit) or 0
    return dataclasses.replace(begin, rung=rung, memory=dataclasses.replace(begin.memory, failed={}))


def after_loss(params: t.Mapping[str, t.Any], state: Remembered, lost: Choice, class_: str, cause: str, digest: str) -> Choice | str:
    """Return what to run after a lost start: the next rung, or the last good configuration; a text says why there is none.

    :param lost: what was started.
    :param digest: with what it was started.
    """
    if lost.rung == ROLLED_BACK:
        return ""
    memory = with_loss(lost.memory, lost.rung, class_, cause, rung_names(params))
    begin = dataclasses.replace(_beginning(params, state), memory=memory)
    rung = rung_after_loss(memory, class_, lost.rung, len(params["rungs"]), begin.unfit)
    if rung is not None:
        return dataclasses.replace(begin, rung=rung)
    good = state.good()
    if good and _of_other_hardware(state.texts_of(good), params):
        return " (the last good one was for other GPUs or another driver)"
    return _restored(state, good, begin) if good and good.get("digest") != digest else ""


def inputs_digest(params: t.Mapping[str, t.Any]) -> str:
    """Return one digest over all that the service is described by."""
    texts = {f"rung {number}": str(rung["config_text"]) for number, rung in enumerate(params["rungs"])}
    names = ("unit_text", "environment_text", "gate_text", "launcher_text", "engine_version", "model_path")
    return texts_digest({**texts, **{name: str(params[name] or "") for name in names}})


def rung_names(params: t.Mapping[str, t.Any]) -> list[str]:
    """Return the names of the rungs, for the report."""
    return [str(rung["name"]) for rung in params["rungs"]]


def _beginning(params: t.Mapping[str, t.Any], state: Remembered, *, forget: bool = False) -> Choice:
    memory = memory_from(state.rungs(), inputs_digest(params), forget=forget)
    names = {name: str(params[name] or "") for name in ("engine_version", "model_path", "served_name")}
    unfit = {number: str(rung["refused"]) for number, rung in enumerate(params["rungs"]) if rung["refused"]}
    return Choice(0, memory, names, unfit=unfit)


def _of_other_hardware(texts: t.Mapping[str, str], params: t.Mapping[str, t.Any]) -> bool:
    """Tell whether a configuration names other GPUs or another driver than those at hand, so that its gate would refuse it."""
    then, now = environment_of(texts.get("environment", "")), environment_of(params["environment_text"] or "")
    return any(name in then and then[name] != now.get(name) for name in ("CUDA_VISIBLE_DEVICES", "KPRO_DRIVER_VERSION"))


def _restored(state: Remembered, good: dict[str, t.Any], choice: Choice) -> Choice:
    kept = state.texts_of(good, "names")
    names = {name: kept.get(name, value) for name, value in choice.names.items()}
    return dataclasses.replace(choice, rung=ROLLED_BACK, names=names, texts=state.texts_of(good), good=good)


def wanted_now(params: t.Mapping[str, t.Any], paths: t.Mapping[str, str], present: ServicePresent, choice: Choice, *, force: bool = False) -> ServiceWanted:
    """Return what the service is to be, with the chosen configuration.

    :param force: restart although nothing changed.
    """
    if params["state"] == "stopped":
        return ServiceWanted((), "", running=False)
    if choice.texts:
        return wanted_service(choice.texts, _key_of(choice), paths, params["group"], force_restart=force)
    key = api_key(params, present)
    texts = given_texts(params, str(params["rungs"][choice.rung]["config_text"]), key)
    return wanted_service(texts, key, paths, params["group"], force_restart=force)


def _key_of(choice: Choice) -> str:
    """Return the API key of the last good configuration; an older release kept it in the engine's configuration only."""
    return str(choice.good.get("api_key") or config_lines(choice.texts.get("config", "")).get("api-key", ""))
