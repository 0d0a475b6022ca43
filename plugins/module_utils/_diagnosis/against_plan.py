# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lost start held against the memory plan: the sum, and how far which option has to go."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._engine.failures import Failure
from .._vram.cards import card_of
from .._vram.compare import read
from .._vram.request import Request, planned
from .case import Diagnosis, gpus_of

Facts = t.Mapping[str, t.Any]

_SHOWN = 2
# The log names no pool; the plan does.
_POOL_CLASSES = {"state_copies": Failure.HYBRID_STATE_POOL_TOO_LARGE, "state_slots": Failure.HYBRID_STATE_POOL_TOO_LARGE}


def with_plan(finding: Diagnosis, lines: t.Sequence[str], facts: Facts) -> Diagnosis:
    """Return the finding with the plan's sum in its cause and computed changes in its remedy; as it was if nothing can be planned.

    :param facts: ``model_config`` (the parsed config.json), ``gpus`` (records of those in use), ``engine_version``, ``args``, ``environment``.
    """
    plan = _plan(lines, facts)
    if plan is None:
        return finding
    if plan["verdict"] == "OK":
        words = f"{finding.cause}. By the plan it would have fitted, with {plan['low_point_gib']:.1f} GiB left: something else held memory"
        return dataclasses.replace(finding, cause=words)
    # The first of each option: the others are the same change, less far.
    firsts = {item["option"]: item for item in reversed(plan["advice"])}
    advice = [_words(item) for item in plan["advice"] if firsts[item["option"]] is item][:_SHOWN]
    message = str(plan["cause"].get("message", ""))
    known = _POOL_CLASSES.get(str(plan["cause"].get("kind"))) if finding.class_ == Failure.POOLS_TOO_LARGE else None
    return dataclasses.replace(
        finding,
        class_=known or finding.class_,
        cause=f"{finding.cause}. By the plan: {message}" if message else finding.cause,
        remedy=f"Computed: {'; or '.join(advice)}" if advice else finding.remedy,
    )


def _plan(lines: t.Sequence[str], facts: Facts) -> dict[str, t.Any] | None:
    config, args, version = (facts.get(name) for name in ("model_config", "args", "engine_version"))
    gpus = gpus_of(facts)
    if not isinstance(config, dict) or not isinstance(args, dict) or not gpus or not version:
        return None
    logged = read(lines)
    idle = [card_of(int(gpu["memory_mib"]), 0, str(gpu.get("name") or "")) for gpu in gpus]
    request = Request(
        config,
        "the model's config.json",
        [],
        tuple(card_of(card.total_mib, card.total_mib - card.reserve_mib, card.name) for card in idle),
        str(version),
        args,
        facts.get("environment") or {},
        # Only the weights of the model itself are logged before a failure; those of the draft are computed.
        logged.weights_gib,
        logged.free_before_gib,
    )
    try:
        return planned(request)
    except KproError:
        # Not modelled, or options that the engine refused as well: the log's own words stay.
        return None


def _words(item: t.Mapping[str, t.Any]) -> str:
    also = "".join(f", {name} {value}" for name, value in item["also"].items())
    result = item["predicted"]
    return (
        f"set {item['option']} from {item['from']} to {item['to']}{also} "
        f"(then {result['verdict']}: {result['max_total_num_tokens']:,} tokens, {result['max_running_requests']} requests)"
    )
