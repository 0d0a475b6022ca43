# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as the plain values that the module returns."""

from __future__ import annotations

import math
import typing as t

from .advice import Advice, advise, irrelevant_options, no_fraction_helps, variations
from .advisories import advisories_of
from .args import resolved_args
from .cards import Card
from .cause import HIGHER, LESS, LOWER, breakdown, cause_of
from .core import CONTEXT_GIB, LEFTOVER_TOLERANCE_MIB, Inputs, Outcome, evaluate, leftovers
from .goal import Choice, goal_of, search
from .nearest import Nearest, nearest

Values = dict[str, t.Any]

_ALTERNATIVES = 4
# Smaller parts of a bar are not worth a name.
_LEAST_PART_GIB = 0.005


def plan(inputs: Inputs, goal: t.Mapping[str, t.Any] | None = None, warnings: t.Sequence[str] = ()) -> Values:
    """Return the plan for these inputs, or for the settings that reach a goal best.

    :raises KproError: for inputs that can't be, and for what isn't modelled.
    """
    if goal is None:
        outcome = evaluate(inputs)
        advice = advise(outcome)
        values = _values(outcome, warnings, advice)
        values["advice"] = [_advice(item) for item in advice]
        shown = variations(outcome) if outcome.verdict == "OK" else advice
        values["alternatives"] = [_summary(outcome, "as given"), *(_summary(item.outcome, _label(item), item.note) for item in shown)]
        return values
    wanted = goal_of(goal, inputs)
    choices = search(wanted, inputs)
    best = choices[0]
    values = _values(best.outcome, [*warnings, *best.traded] if best.usable else warnings)
    lost = best.given_up if best.usable else ("everything: nothing that was tried starts with a cache that serves a request",)
    satisfied = best.usable and best.outcome.verdict == "OK" and not lost
    others = [] if satisfied else nearest(wanted, inputs)
    values["goal"] = {
        "satisfied": satisfied,
        "given_up": list(lost),
        "tried": len(choices),
        "margin_gib": _gib(best.margin_gib) if best.usable and math.isfinite(best.margin_gib) else 0.0,
        "tokens_per_request": wanted.tokens_per_request,
        "nearest": [_nearest(item) for item in others[:_ALTERNATIVES]],
    }
    if not best.usable:
        values.update(_nothing(values))
    values["alternatives"] = _alternatives([choice for choice in choices if choice.usable])
    return values


def _nothing(values: Values) -> Values:
    """What a plan says where nothing serves: no numbers of a start that is none."""
    cause = values["cause"] or {"kind": "nothing_fits", "stage": "sizing", "direction": LESS, "irrelevant": []}
    message = cause.get("message") or f"the cache would hold {values['max_total_num_tokens']} tokens, too few for any request"
    return {"verdict": "FAIL", "max_total_num_tokens": 0, "max_running_requests": 0, "whole_contexts": 0.0, "cause": {**cause, "message": message}}


def _nearest(item: Nearest) -> Values:
    outcome = item.choice.outcome
    return {
        "label": item.label,
        "satisfied": outcome.verdict == "OK" and not item.choice.given_up,
        "given_up": list(item.choice.given_up),
        "tp_size": outcome.resolved.tp,
        **_predicted(outcome),
    }


def _values(outcome: Outcome, warnings: t.Sequence[str], advice: t.Sequence[Advice] | None = None) -> Values:
    sizing = outcome.sizing
    return {
        "verdict": outcome.verdict,
        "sglang_version": outcome.inputs.version,
        "verified": outcome.inputs.rules.verified,
        "max_total_num_tokens": sizing.tokens,
        "max_running_requests": max(sizing.requests, 0),
        "serves_context": outcome.serves_context,
        "whole_contexts": round(outcome.whole_contexts, 2),
        "window_tokens": max(sizing.window_tokens, 0),
        "needed_gib": _gib(outcome.needed_gib),
        "weights_gib": _gib(outcome.weights.target_gib),
        "weights_source": outcome.weights.source,
        "state_slots": sizing.slots if sizing.slots is not None else 0,
        "state_mib_per_slot": round(outcome.shape.state_bytes / 2**20, 2),
        "state_gib": _gib(sizing.state_gib),
        "copies_gib": _gib(sizing.copies_gib),
        "kv_gib": _gib(max(sizing.kv_rest_gib, 0.0) if outcome.boots else sizing.kv_rest_gib),
        "kv_bytes_per_token": outcome.shape.token_bytes,
        "draft": _draft(outcome),
        "free_before_load_gib": _gib(outcome.free_before_gib),
        "pool_end_gib": _gib(outcome.pool_end_gib),
        "low_point_gib": _gib(outcome.low_point_gib),
        "breakdown": [{"name": row.name, "gib": _gib(row.gib), "why": row.why} for row in breakdown(outcome)],
        "gpus": _gpus(outcome),
        "cause": _cause(outcome, advice),
        "advice": [],
        "resolved_args": resolved_args(outcome),
        "resolved_environment": {name: str(value) for name, value in outcome.inputs.environment},
        "notes": [*warnings, *_warnings(outcome)],
    }


def _draft(outcome: Outcome) -> Values:
    if not outcome.resolved.algorithm:
        return {}
    return {
        "loaded_gib": _gib(outcome.weights.draft_loaded_gib),
        "stays_gib": _gib(outcome.weights.draft_stays_gib),
        "kv_gib": _gib(outcome.draft_kv_gib),
        "counted": outcome.inputs.rules.draft_counted,
    }


def _cause(outcome: Outcome, advice: t.Sequence[Advice] | None) -> Values:
    cause = cause_of(outcome)
    if cause is None:
        return {}
    # Errors at sizing and after it ask for opposite fractions. Where neither helps, something else has to shrink.
    dead_end = no_fraction_helps(outcome, advice) if cause.direction in (HIGHER, LOWER) else ""
    return {
        "kind": cause.kind,
        "stage": cause.stage,
        "message": f"{cause.message}; {dead_end}" if dead_end else cause.message,
        "direction": LESS if dead_end else cause.direction,
        "irrelevant": irrelevant_options(outcome),
    }


def _gib(value: float) -> float:
    return round(value, 3)


def _gpus(outcome: Outcome) -> list[Values]:
    found = []
    for index, card in enumerate(_used(outcome)):
        parts, over = _parts(outcome, card)
        sizes = {"total_gib": _gib(card.total_mib / 1024), "free_gib": _gib(card.free_mib / 1024)}
        found.append({"index": index, "name": card.name, **sizes, "parts": parts, "over_gib": over})
    return found


def _used(outcome: Outcome) -> tuple[Card, ...]:
    return outcome.inputs.cards[: outcome.resolved.tp]


def _parts(outcome: Outcome, card: Card) -> tuple[list[Values], float]:
    """The memory of one GPU in GiB, from the bottom; and what is missing for the cache, which is the same on each."""
    sizing, total = outcome.sizing, card.total_mib / 1024
    given = outcome.inputs.free_before_gib
    held = total - (card.free_mib / 1024 - CONTEXT_GIB if given is None else given)
    foreign = card.missing_mib / 1024 if given is None and card.missing_mib > LEFTOVER_TOLERANCE_MIB else 0.0
    parts = [
        ("something else", foreign),
        ("driver and process", max(held - foreign, 0.0)),
        ("weights", outcome.weights.target_gib),
        ("draft head", _draft_part(outcome)),
        ("speculative copies", sizing.copies_gib),
        ("state", sizing.state_gib),
        ("cache", max(sizing.kv_rest_gib, 0.0)),
    ]
    rest = total - sum(gib for _name, gib in parts)
    over = max(-sizing.kv_rest_gib, 0.0)
    if outcome.boots:
        # The same at the lowest point as in the table: what is not in the parts above (padding, tables, what is kept back for images) stands apart.
        tightest = min(_used(outcome), key=lambda each: each.free_mib)
        free = outcome.low_point_gib + (card.free_mib - tightest.free_mib) / 1024 if given is None else outcome.low_point_gib
        kept = rest - free
        if kept > _LEAST_PART_GIB:
            parts, rest = [*parts, ("padding and tables", kept)], free
    return [{"name": name, "gib": _gib(gib)} for name, gib in [*parts, ("slack", rest)] if gib > 0], _gib(over)


def _draft_part(outcome: Outcome) -> float:
    if not outcome.resolved.algorithm:
        return 0.0
    return outcome.weights.draft_loaded_gib if outcome.inputs.rules.draft_counted else outcome.weights.draft_stays_gib + outcome.draft_kv_gib


def _advice(item: Advice) -> Values:
    return {
        "option": item.option,
        "from": item.before,
        "to": item.after,
        "also": dict(item.also),
        "predicted": _predicted(item.outcome),
        "note": item.note,
    }


def _label(item: Advice) -> str:
    also = "".join(f", {name} {value}" for name, value in item.also)
    before, after = ("off" if value is None else str(value).lower() if isinstance(value, bool) else value for value in (item.before, item.after))
    return f"{item.option} {before} -> {after}{also}"


def _predicted(outcome: Outcome) -> Values:
    return {
        "verdict": outcome.verdict,
        "max_total_num_tokens": max(outcome.sizing.tokens, 0),
        "whole_contexts": round(outcome.whole_contexts, 2),
        "max_running_requests": max(outcome.sizing.requests, 0),
        "low_point_gib": _gib(outcome.low_point_gib),
    }


def _summary(outcome: Outcome, label: str, note: str = "") -> Values:
    # The GPU with the least free memory decides.
    parts, over = _parts(outcome, min(_used(outcome), key=lambda card: card.free_mib))
    return {"label": label, **_predicted(outcome), "note": note, "parts": parts, "over_gib": over}


def _alternatives(choices: list[Choice]) -> list[Values]:
    shown = []
    for choice in choices[:_ALTERNATIVES]:
        resolved = choice.outcome.resolved
        speculation = f"{resolved.draft_tokens} draft tokens" if resolved.algorithm else "no speculation"
        label = f"{speculation}, {resolved.ssm_dtype} state" if choice.outcome.shape.state_bytes else speculation
        label += f", prefix cache {'on' if resolved.radix else 'off'}, fraction {resolved.fraction:g}"
        shown.append(_summary(choice.outcome, label, "; ".join(choice.given_up)))
    return shown


def _warnings(outcome: Outcome) -> list[str]:
    words = list(outcome.resolved.notes) + leftovers(outcome.inputs) + advisories_of(outcome)
    sizing, resolved = outcome.sizing, outcome.resolved
    if outcome.boots and not outcome.serves_context:
        words.append(f"the cache holds {sizing.tokens:,} tokens and the context is {resolved.context:,}: longer prompts are refused")
    if outcome.boots and outcome.low_point_gib < outcome.needed_gib:
        words.append(f"{outcome.low_point_gib:.2f} GiB at the lowest point are little for graphs and activations")
    if outcome.boots and resolved.limit_given and resolved.limit and sizing.requests < resolved.limit // resolved.attention_dp:
        words.append(f"the engine lowers the limit of {resolved.limit} requests to {sizing.requests}")
    return words
