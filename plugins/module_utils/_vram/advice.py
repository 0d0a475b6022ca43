# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes that make a plan work: each one computed, none assumed."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .core import LEFTOVER_TOLERANCE_MIB, Inputs, Outcome, evaluate
from .resolve import IMPLICIT_REQUESTS

# Up to here fractions are looked at; what is left after the pools decides.
HIGHEST_FRACTION = 0.99
# Fractions are looked at in steps of a thousandth.
_LEAST_STEP, _STEPS_MORE = 100, 10
_SHORT_RANGE, _LOOKED_AT = 16, 20
_VERDICTS = ("FAIL", "RISK", "SHORT", "OK")
_USUAL_LIMITS = (256, 128, 64, 32, 16, 8, 4, 2, 1)


@dataclasses.dataclass(frozen=True)
class Advice:
    """One change: option, its present value and the new one, and the outcome with it.

    :param also: further options that have to change with it.
    """

    option: str
    before: t.Any
    after: t.Any
    outcome: Outcome
    note: str
    also: tuple[tuple[str, t.Any], ...] = ()


def largest_where(low: int, high: int, holds: t.Callable[[int], bool]) -> int:
    """The largest number from low to high for which a condition holds that only ends once, or low."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def changed(inputs: Inputs, **values: t.Any) -> Outcome | None:
    """Return the outcome with other options, or None if they can't be."""
    try:
        return evaluate(dataclasses.replace(inputs, options=dataclasses.replace(inputs.options, **values)))
    except KproError:
        return None


def most_where(low: int, high: int, holds: t.Callable[[int], bool]) -> int:
    """The largest number from low + 1 to high for which a condition holds, or low; single slots of state make it hold here and there.

    Long ranges are halved, as if it ended only once.
    """
    if high - low > _SHORT_RANGE:
        return largest_where(low, high, lambda number: number == low or holds(number))
    return next((number for number in range(high, low, -1) if holds(number)), low)


def irrelevant_options(outcome: Outcome) -> list[str]:
    """Return the options that are commonly blamed and whose most favourable value does not cure this failure."""
    if outcome.stage not in ("load", "sizing", "pools"):
        return []
    tries: dict[str, dict[str, t.Any]] = {
        "context_length": {"context_length": 2048},
        "kv_cache_dtype": {"kv_cache_dtype": "fp8_e4m3"},
        "chunked_prefill_size": {"chunked_prefill_size": 2048},
        "cuda_graph_max_bs": {"cuda_graph_max_bs_decode": 1},
        "enable_torch_compile": {"enable_torch_compile": False},
    }
    pinned = {"mem_fraction_static": outcome.resolved.fraction}
    found = []
    for name, values in tries.items():
        other = changed(outcome.inputs, **values, **pinned)
        if other is not None and not other.boots:
            found.append(name)
    return found


def advise(outcome: Outcome) -> list[Advice]:
    """Return the changes that cure a FAIL, RISK or SHORT, the best first and of equals the least intrusive; each is computed."""
    if outcome.verdict == "OK":
        return []
    found = _freed_advice(outcome)
    if outcome.stage == "options":
        found += _refusal_advice(outcome)
    elif outcome.verdict != "FAIL" or outcome.stage in ("sizing", "pools", "load"):
        requests, fraction = _request_advice(outcome), _fraction_advice(outcome)
        # A limit that nobody has chosen costs nothing to lower.
        found += fraction + requests if outcome.resolved.limit_given else requests + fraction
        found += _state_advice(outcome) + _draft_advice(outcome) + _cache_advice(outcome) + _gpu_advice(outcome)
    return sorted(found, key=lambda item: _VERDICTS.index(item.outcome.verdict), reverse=True)


def variations(outcome: Outcome) -> list[Advice]:
    """Return what common changes would do to a plan that is good already: for comparison, not as advice."""
    options, resolved = outcome.inputs.options, outcome.resolved
    found: list[tuple[str, t.Any, t.Any, dict[str, t.Any]]] = []
    if resolved.algorithm:
        found.append(("speculative_algorithm", options.speculative_algorithm, None, _WITHOUT_SPECULATION))
    elif outcome.inputs.model.mtp_layers:
        on = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
        found.append(("speculative_algorithm", None, "NEXTN", on))
    if outcome.shape.state_bytes and resolved.ssm_dtype == "float32":
        found.append(("mamba_ssm_dtype", "float32", "bfloat16", {}))
    if resolved.limit is not None:
        # Slots that were counted for the requests follow them.
        slots = {"max_mamba_cache_size": resolved.slots * 2} if resolved.slots is not None and outcome.shape.state_bytes else {}
        found.append(("max_running_requests", resolved.limit, resolved.limit * 2, slots))
    highest = _highest_fraction(outcome)
    if highest:
        found.append(("mem_fraction_static", round(resolved.fraction, 3), highest, {}))
    if resolved.context < outcome.inputs.model.max_position:
        found.append(("context_length", resolved.context, outcome.inputs.model.max_position, {}))
    if resolved.radix:
        found.append(("disable_radix_cache", False, True, {}))
    items = []
    for name, before, after, also in found:
        other = changed(outcome.inputs, **{**also, name: after})
        if other is not None:
            items.append(_item(name, before, after, other, "", {key: value for key, value in also.items() if value is not None}))
    return items


def _highest_fraction(outcome: Outcome) -> float:
    """The highest fraction that leaves what is needed after the pools; 0 if it is the present one."""
    fractions = Fractions(outcome)

    def is_safe(step: int) -> bool:
        other = fractions.at(step)
        return other is not None and other.boots and other.low_point_gib >= other.needed_gib

    present = int(outcome.resolved.fraction * 1000)
    best = largest_where(present, int(HIGHEST_FRACTION * 1000), is_safe)
    return best / 1000 if best > present else 0.0


_WITHOUT_SPECULATION: dict[str, t.Any] = {
    "speculative_algorithm": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
}


def _better(outcome: Outcome, other: Outcome | None) -> bool:
    if other is None or not other.boots:
        return False
    return _VERDICTS.index(other.verdict) > _VERDICTS.index(outcome.verdict)


def _freed_advice(outcome: Outcome) -> list[Advice]:
    """The same start without other holders of GPU memory, if there are any."""
    if outcome.inputs.free_before_gib is not None:
        return []
    held = [index for index, card in enumerate(outcome.inputs.cards[: outcome.resolved.tp]) if card.missing_mib > LEFTOVER_TOLERANCE_MIB]
    idle = tuple(dataclasses.replace(card, free_mib=max(card.free_mib, card.total_mib - card.reserve_mib)) for card in outcome.inputs.cards)
    other = evaluate(dataclasses.replace(outcome.inputs, cards=idle)) if held else None
    if other is None or not _better(outcome, other):
        return []
    names = ", ".join(f"GPU {index}" for index in held)
    free = min(outcome.inputs.cards[index].free_mib for index in held)
    return [_item(f"free_mib of {names}", free, idle[held[0]].free_mib, other, "end what else holds the memory; its owner is visible on the node")]


def _item(option: str, before: t.Any, after: t.Any, other: Outcome, note: str = "", also: t.Mapping[str, t.Any] | None = None) -> Advice:
    return Advice(option, before, after, other, note, tuple(sorted((also or {}).items())))


def _request_advice(outcome: Outcome) -> list[Advice]:
    """Fewer requests: the recommended number, the last with a full context, the last that boots."""
    limit = outcome.resolved.limit
    if limit is None or limit < 2 or not outcome.shape.state_bytes:
        return []
    plans: dict[int, Outcome | None] = {}

    def plan(number: int) -> Outcome | None:
        if number not in plans:
            plans[number] = changed(outcome.inputs, max_running_requests=number)
        return plans[number]

    chosen: dict[int, str] = {}
    for number in (number for number in _USUAL_LIMITS if number < limit):
        other = plan(number)
        if other is not None and other.verdict == "OK" and _better(outcome, other) and _roomy(other, number):
            chosen[number] = "recommended: each running request has room for half a context"
            break
    full = most_where(0, limit - 1, lambda number: _is_full(plan(number)))
    last = most_where(0, limit - 1, lambda number: _better(outcome, plan(number)))
    if full:
        chosen.setdefault(full, "the most requests that leave a whole context")
    if last:
        chosen.setdefault(last, "the most requests that start")
    before = limit if outcome.resolved.limit_given else f"{IMPLICIT_REQUESTS} (implicit)"
    found = [(number, plan(number), note) for number, note in chosen.items()]
    return [_item("max_running_requests", before, number, other, note) for number, other, note in found if other is not None and _better(outcome, other)]


def _is_full(plan: Outcome | None) -> bool:
    return plan is not None and plan.verdict == "OK"


def _roomy(plan: Outcome, requests: int) -> bool:
    return plan.sizing.requests >= requests and plan.sizing.tokens >= requests * plan.resolved.context / 2


def _state_advice(outcome: Outcome) -> list[Advice]:
    found = []
    if outcome.shape.state_bytes and outcome.resolved.ssm_dtype == "float32":
        other = changed(outcome.inputs, mamba_ssm_dtype="bfloat16")
        if other is not None and _better(outcome, other):
            note = "halves the state; it is recurrent, so check the accuracy"
            found.append(_item("mamba_ssm_dtype", "float32", "bfloat16", other, note))
    return found + (_slots_advice(outcome) if outcome.resolved.slots is not None else [])


def _slots_advice(outcome: Outcome) -> list[Advice]:
    """Fewer slots of state: the most that leave a whole context, else the most that start."""
    slots = outcome.resolved.slots or 0

    def plan(number: int) -> Outcome | None:
        return changed(outcome.inputs, max_mamba_cache_size=number) if number else None

    full = most_where(0, slots - 1, lambda number: _is_full(plan(number)))
    last = most_where(0, slots - 1, lambda number: _better(outcome, plan(number)))
    for number, note in ((full, "the most slots that leave a whole context"), (last, "the most slots that start")):
        other = plan(number)
        if other is not None and _better(outcome, other):
            return [_item("max_mamba_cache_size", slots, number, other, note)]
    return []


def _draft_advice(outcome: Outcome) -> list[Advice]:
    resolved = outcome.resolved
    if not resolved.algorithm:
        return []
    found = []
    for draft in range(resolved.draft_tokens - 1, 1, -1):
        values = {"speculative_num_steps": draft - 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": draft}
        other = changed(outcome.inputs, **values)
        if other is not None and _better(outcome, other):
            also = {"speculative_num_steps": draft - 1, "speculative_eagle_topk": 1}
            found.append(_item("speculative_num_draft_tokens", resolved.draft_tokens, draft, other, "fewer copies a request", also))
            if other.verdict == "OK":
                break
    off = changed(outcome.inputs, **_WITHOUT_SPECULATION)
    if off is not None and _better(outcome, off):
        found.append(_item("speculative_algorithm", outcome.inputs.options.speculative_algorithm, None, off, "without speculation"))
    return found


def _fraction_advice(outcome: Outcome) -> list[Advice]:
    """The nearest fraction that cures it, else the nearest that starts, in the direction that the stage of the failure asks for."""
    present = outcome.resolved.fraction
    upwards = outcome.verdict == "SHORT" or (outcome.verdict == "FAIL" and outcome.stage == "sizing")
    if not upwards and outcome.stage not in ("", "pools"):
        return []
    found = _raised(outcome, int(present * 1000) + 1) if upwards else _lowered(outcome, int(present * 1000 + 0.999) - 1)
    if found is None:
        return []
    note = "errors at sizing ask for a higher fraction" if upwards else "errors after sizing ask for a lower fraction"
    return [_item("mem_fraction_static", round(present, 3), found[0], found[1], note)]


def no_fraction_helps(outcome: Outcome, advice: t.Sequence[Advice] | None = None) -> str:
    """Return in words why no fraction cures a failure that a fraction decides, or nothing: then something else has to shrink.

    :param advice: what :func:`advise` returned, if it was asked.
    """
    if outcome.verdict == "OK" or outcome.stage not in ("", "sizing", "pools"):
        return ""
    if any(item.option == "mem_fraction_static" for item in (_fraction_advice(outcome) if advice is None else advice)):
        return ""
    if outcome.verdict != "FAIL":
        return "and no other fraction gives both the context and enough slack"
    at = Fractions(outcome).at
    last = largest_where(0, 998, lambda step: step == 0 or getattr(at(step), "stage", "") == "sizing")
    if last == 998:
        return "and no fraction below 1 leaves enough for the pools"
    return f"and no fraction works: up to {last / 1000:g} the pools get too little, and from {(last + 1) / 1000:g} on too little is left after them"


class Fractions:
    """The outcomes at other fractions, in thousandths; each is computed once."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._known: dict[int, Outcome | None] = {}

    def at(self, step: int) -> Outcome | None:
        """Return the outcome at a fraction."""
        if step not in self._known:
            self._known[step] = changed(self.outcome.inputs, mem_fraction_static=step / 1000)
        return self._known[step]

    def first_of(self, steps: t.Iterable[int], verdicts: t.Collection[str]) -> tuple[float, Outcome] | None:
        """Return the first fraction with one of these verdicts, if it is better than the present one."""
        for step in steps:
            other = self.at(step)
            if other is not None and other.verdict in verdicts and _better(self.outcome, other):
                return step / 1000, other
        return None


def _raised(outcome: Outcome, least: int) -> tuple[float, Outcome] | None:
    """Both conditions begin at some fraction and hold above it, but that more memory gives more slots, and these less cache here and there.

    So that the nearest fraction of some twenty in between is looked at too.
    """
    most, fractions = int(HIGHEST_FRACTION * 1000), Fractions(outcome)

    def too_low(step: int) -> bool:
        other = fractions.at(step)
        return step < least or other is None or other.stage not in ("", "pools")

    def too_short(step: int) -> bool:
        other = fractions.at(step)
        return other is None or too_low(step) or other.sizing.tokens < other.resolved.context

    for fails, verdicts in ((too_short, ("OK",)), (too_low, ("OK", "SHORT", "RISK"))):
        first = largest_where(least - 1, most, fails) + 1
        coarse = range(least, min(first, most + 1), max(1, (most - least) // _LOOKED_AT))
        found = fractions.first_of([*coarse, *range(first, min(first + _STEPS_MORE, most + 1))], verdicts)
        if found:
            return found
    return None


def _lowered(outcome: Outcome, most: int) -> tuple[float, Outcome] | None:
    """A higher fraction leaves less memory after the pools."""
    fractions = Fractions(outcome)

    def is_safe(step: int) -> bool:
        other = fractions.at(step)
        return other is not None and other.low_point_gib >= other.needed_gib

    def is_left(step: int) -> bool:
        other = fractions.at(step)
        return other is not None and other.low_point_gib > 0

    for holds, verdicts in ((is_safe, ("OK", "SHORT")), (is_left, ("OK", "SHORT", "RISK"))):
        last = largest_where(_LEAST_STEP, most, holds)
        found = fractions.first_of(range(last, max(last - _STEPS_MORE, _LEAST_STEP - 1), -1), verdicts)
        if found:
            return found
    return None


def _cache_advice(outcome: Outcome) -> list[Advice]:
    if outcome.verdict != "SHORT":
        return []
    found = []
    context = changed(outcome.inputs, context_length=outcome.sizing.tokens)
    if context is not None and _better(outcome, context):
        found.append(_item("context_length", outcome.resolved.context, outcome.sizing.tokens, context, "the longest that fits"))
    if outcome.resolved.kv_bytes > 1:
        other = changed(outcome.inputs, kv_cache_dtype="fp8_e5m2")
        if other is not None and _better(outcome, other):
            note = "halves the cache; check the accuracy, and that the card and the attention backend take it"
            found.append(_item("kv_cache_dtype", outcome.resolved.kv_dtype, "fp8_e5m2", other, note))
    return found


def _gpu_advice(outcome: Outcome) -> list[Advice]:
    tp = outcome.resolved.tp
    for number in range(tp + 1, len(outcome.inputs.cards) + 1):
        other = changed(outcome.inputs, tp_size=number)
        if other is not None and _better(outcome, other):
            return [_item("tp_size", tp, number, other, "over more of the GPUs that are there")]
    return []


def _refusal_advice(outcome: Outcome) -> list[Advice]:
    options, resolved = outcome.inputs.options, outcome.resolved
    tries: list[tuple[str, t.Any, t.Any]] = [
        ("mamba_radix_cache_strategy", options.mamba_radix_cache_strategy, "extra_buffer"),
        ("disable_radix_cache", options.disable_radix_cache, not options.disable_radix_cache),
        ("disable_overlap_schedule", options.disable_overlap_schedule, True),
        ("page_size", options.page_size, 1),
        *(("tp_size", options.tp_size, number) for number in (16, 8, 4, 2, 1) if number < options.tp_size),
        ("context_length", options.context_length, outcome.inputs.model.max_position),
    ]
    found = []
    for name, before, after in tries:
        other = changed(outcome.inputs, **{name: after}) if before != after else None
        if other is not None and other.boots and not other.resolved.refusals:
            found.append(_item(name, before, after, other, "accepted by the engine"))
        elif other is not None and not other.resolved.refusals and other.resolved.limit is not None:
            found += _with_fewer_requests(outcome.inputs, name, before, after, resolved.limit or 1)
    return found


def _with_fewer_requests(inputs: Inputs, name: str, before: t.Any, after: t.Any, limit: int) -> list[Advice]:
    for number in (number for number in (32, 16, 8, 4, 2, 1) if number < limit):
        other = changed(inputs, **{name: after}, max_running_requests=number)
        if other is not None and other.verdict == "OK" and _roomy(other, number):
            return [_item(name, before, after, other, "accepted by the engine", {"max_running_requests": number})]
    return []
