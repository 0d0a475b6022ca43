# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan for each rung of the fallback ladder, and the rung to begin with."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._engine.options import TYPED_OPTIONS, merged_options
from .request import Request, planned

Values = dict[str, t.Any]

_SHOWN = ("verdict", "max_total_num_tokens", "max_running_requests", "low_point_gib", "state_mib_per_slot", "cause", "advice")


def planned_ladder(request: Request, profiles: t.Sequence[t.Mapping[str, t.Any]]) -> Values:
    """Return the plan of the rung to begin with, and with it ``rung`` (its number) and ``rungs`` (a row for each).

    A row has what the rung is started with (``options``, nothing left implicit, and ``environment``) and why it is passed over
    (``passed_over``, empty if it is not).

    :param request: the plan without rungs; each rung's options are laid over its arguments.
    :param profiles: rungs in order, each with ``name`` and ``options``, and ``goal`` if the rest of its options has to be searched.
    :raises KproError: as :func:`planned`, naming the rung.
    """
    plans = [_planned(request, profile) for profile in profiles]
    chosen = first_that_fits([plan["verdict"] for plan in plans])
    rows = [_row(str(profile["name"]), plan) for profile, plan in zip(profiles, plans, strict=True)]
    for row in rows:
        row["passed_over"] = why_not(row) if row["verdict"] == "FAIL" or row in rows[:chosen] else ""
    notes = [f"rung {row['name']!r} is passed over: {row['passed_over']}" for row in rows[:chosen]]
    return {**plans[chosen], "notes": notes + plans[chosen]["notes"], "rung": chosen, "rungs": rows}


def first_that_fits(verdicts: t.Sequence[str]) -> int:
    """Return the number of the first rung with the verdict OK, else of the first that starts at all, else 0."""
    for accepted in (("OK",), ("OK", "RISK", "SHORT")):
        for number, verdict in enumerate(verdicts):
            if verdict in accepted:
                return number
    return 0


def why_not(row: t.Mapping[str, t.Any]) -> str:
    """Return in a sentence why a rung is passed over."""
    if row["verdict"] == "SHORT":
        return f"the cache would hold {row['max_total_num_tokens']:,} tokens, fewer than its context"
    if row["verdict"] == "RISK":
        return f"only {row['low_point_gib']:.2f} GiB would be left for graphs and activations"
    return str((row.get("cause") or {}).get("message") or "the engine would not start")


def goal_as_rung(plan: Values) -> Values:
    """Return ``rung`` and ``rungs`` for a plan that was searched for a goal: what is to be started for it."""
    row = _row("goal", plan)
    row["passed_over"] = why_not(row) if row["verdict"] == "FAIL" else ""
    return {"rung": 0, "rungs": [row]}


def _row(name: str, plan: Values) -> Values:
    options = {key: value for key, value in plan["resolved_args"].items() if key not in TYPED_OPTIONS}
    return {"name": name, "options": options, "environment": plan["resolved_environment"], **{key: plan[key] for key in _SHOWN}}


def _planned(request: Request, profile: t.Mapping[str, t.Any]) -> Values:
    name, own, goal = profile.get("name"), profile.get("options"), profile.get("goal")
    if not name or not isinstance(own, dict):
        raise KproError(f"rung {name or '(without a name)'}", "it needs a name and options", "Correct sglang_server__profiles")
    typed = {key: value for key, value in request.args.items() if key in TYPED_OPTIONS}
    plain = {key: value for key, value in request.args.items() if key not in TYPED_OPTIONS}
    try:
        return planned(dataclasses.replace(request, args={**typed, **merged_options(plain, own, request.version)}), goal)
    except KproError as error:
        _raise_for_all(request, error)
        raise KproError(f"rung {name}: {error.what}", error.reason, error.remedy, **error.details) from error


def _raise_for_all(request: Request, found: KproError) -> None:
    """Raise the error without the rung's name if it is one of model, version, GPUs or the options of all rungs."""
    try:
        planned(request)
    except KproError as error:
        if error.reason == found.reason:
            raise error from None
