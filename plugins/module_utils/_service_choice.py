# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which configuration the service is to run now: a rung, or the last good one. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._ladder import Memory, can_go_on, choose_rung, memory_from, with_loss
from ansible_collections.kpro.llm.plugins.module_utils._service_files import api_key, given_texts, wanted_service
from ansible_collections.kpro.llm.plugins.module_utils._service_plan import ServicePresent, ServiceWanted
from ansible_collections.kpro.llm.plugins.module_utils._service_state import ServiceState, good_texts
from ansible_collections.kpro.llm.plugins.module_utils._service_text import texts_digest

ROLLED_BACK = -1


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to run.

    :param rung: number of the rung; :data:`ROLLED_BACK` for the last good configuration.
    :param texts: of the last good configuration; empty for a rung.
    :param names: engine version, model path and served name of what is to run.
    """

    rung: int
    memory: Memory
    names: t.Mapping[str, str]
    texts: t.Mapping[str, str] = dataclasses.field(default_factory=dict)


def choose(params: t.Mapping[str, t.Any], state: ServiceState) -> Choice:
    """Return what to run, after a lost start (option ``lost``) or at the beginning of a run.

    :raises KproError: if the start was lost for a reason that no other configuration cures, and there is no good one to restore.
    """
    rungs = [params["config_text"] or "", *params["fallback_config_texts"]]
    memory = memory_from(state.rungs(), _inputs(params, rungs), forget=params["retry"] and not params["lost"])
    names = {name: str(params[name] or "") for name in ("engine_version", "model_path", "served_name")}
    if not params["lost"]:
        rung = choose_rung(memory, len(rungs))
        # All failed earlier and nothing runs: what made them fail may be gone, so begin anew.
        return Choice(0, dataclasses.replace(memory, failed={}), names) if rung is None else Choice(rung, memory, names)
    lost = {"rung": 0, "class": "unknown", "cause": "", **params["lost"]}
    number, class_, cause = int(lost["rung"]), str(lost["class"]), str(lost["cause"])
    memory = with_loss(memory, number, class_, cause)
    if can_go_on(class_, number, len(rungs)):
        return Choice(choose_rung(memory, len(rungs)) or number + 1, memory, names)
    good = state.good()
    if not good or good.get("digest") == lost.get("digest"):
        raise KproError(params["unit"], f"the start was lost and there is no other configuration to run: {cause}", str(lost.get("remedy", "")))
    return Choice(ROLLED_BACK, memory, {**names, **good_texts(good, "names")}, good_texts(good))


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
