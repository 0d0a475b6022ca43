# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the deployments of this run have come: what may begin, what was stopped, and by what. Pure.

The state is what :mod:`kpro.llm.phase` registers for each host. Registers live as long as the run, and no cache of facts keeps them.
"""

from __future__ import annotations

import dataclasses
import typing as t

Values = t.Mapping[str, t.Any]

# Names under which the playbooks register the state of a host, and what kpro.llm.findings left.
STATE, PREFLIGHT = "kpro_llm__run", "kpro_llm__preflight"
NODE_RESULT = "gpu_node__result"


@dataclasses.dataclass(frozen=True)
class Gate:
    """Whether a host may begin a phase.

    :param refusal: why the run must not go on at all; empty if it may.
    :param left_alone: why this host is passed over without being a failure.
    """

    refusal: str = ""
    left_alone: str = ""


def gate(me: str, preflights: t.Mapping[str, Values], nodes: t.Mapping[str, str]) -> Gate:
    """Judge whether a host may be changed: only after the finished preflight of every deployment of the run.

    :param preflights: what the preflight left, by deployment; those where it left nothing are not in it.
    :param nodes: the node of each deployment.
    """
    if not preflights:
        remedy = f"Leave it in (no --skip-tags, no --start-at-task), and name a deployment on {me} if there is a --limit"
        return Gate(refusal=f"Nothing was changed: no preflight was made in this run, and nothing is changed without one. {remedy}")
    hosts = [str(host) for host in next(iter(preflights.values())).get("hosts") or []]
    if not hosts:
        return Gate(left_alone=f"{me} is left as it is: every deployment of this run was stopped")
    lacking = [host for host in hosts if not preflights.get(host, {}).get("finished")]
    if lacking:
        return Gate(refusal=f"Nothing was changed: the preflight of {', '.join(lacking)} is not finished")
    if me in preflights:
        return Gate() if me in hosts else Gate(refusal=f"Nothing was changed: {me} was not part of the preflight")
    if me not in [nodes.get(host) for host in hosts]:
        return Gate(left_alone=f"{me} is left as it is: no deployment of this run is on it, so that no preflight has looked at it")
    return Gate()


def begun(state: Values, phase: str, now_s: float) -> dict[str, t.Any]:
    """Return the state of a host with one more phase that begins."""
    phases = [*(state.get("phases") or []), {"name": phase, "started_s": now_s}]
    return {"phases": phases, "stopped": dict(state.get("stopped") or {})}


def last_phase(state: Values) -> str:
    """Return the phase that began last."""
    phases = state.get("phases") or [{"name": "preflight"}]
    return str(phases[-1]["name"])


def stopped(state: Values, why: str) -> dict[str, t.Any]:
    """Return the state of a host after its last phase has failed; what failed first stays."""
    before = dict(state.get("stopped") or {})
    return {"phases": list(state.get("phases") or []), "stopped": before or {"phase": last_phase(state), "why": why}}


def stopped_by_node(node: str, state: Values, has_result: bool) -> dict[str, str]:
    """Return why the deployments on a node can't go on; empty if they can.

    :param state: of the node; empty if it is not part of the run, or its phase was left out.
    """
    if found := state.get("stopped"):
        return {"phase": str(found["phase"]), "why": f"{node}: {found['why']}"}
    if state.get("phases") and not has_result:
        return {"phase": last_phase(state), "why": f"{node} can't be reached any more, or its phase ended without a result"}
    return {}


def judges(hosts: t.Sequence[str], here: t.Sequence[str], states: t.Mapping[str, Values], preflights: t.Mapping[str, Values]) -> list[str]:
    """Return which of a play's hosts belong into the table of findings.

    In a second preflight of the same run those that a failure has stopped don't, nor those that were lost after the first.
    """
    gone = {host for host in hosts if (states.get(host) or {}).get("stopped") or (host not in here and (preflights.get(host) or {}).get("finished"))}
    return [host for host in hosts if host not in gone]


def story(host: str, state: Values, here: bool) -> str:
    """Return in one sentence what stopped a deployment; empty if nothing did.

    :param here: the host can still be reached, as far as the run knows.
    """
    if found := state.get("stopped"):
        return f"{host} stopped in the phase {found['phase']}: {str(found['why']).rstrip('.')}"
    if not here:
        return f"{host} was lost in the phase {last_phase(state)}: it can't be reached any more (the reason is printed there)"
    return ""
