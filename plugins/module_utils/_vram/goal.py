# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for settings that reach a goal with the most slack."""

from __future__ import annotations

import dataclasses
import itertools
import typing as t

from .._core.errors import KproError
from .advice import largest_where
from .cards import generation_of
from .core import SAFE_SLACK_GIB, Inputs, Outcome, evaluate
from .resolve import resolve
from .sizing import GIB

REQUIRED, PREFERRED, OFF = "required", "preferred", "off"
_LEAST_STEP, _MOST_STEP, _STEPS = 60, 190, 200
_FEWEST_CONTEXT = 1024
# More than these are only tried if they are asked for.
_MOST_DRAFTS = 8
# Compute capability times ten from which a card computes in FP8.
_FP8_GENERATION = 89


@dataclasses.dataclass(frozen=True)
class Goal:
    """The required result: one request with the whole context, a number of requests at once, and two features."""

    context_tokens: int
    concurrent_requests: int
    speculation: str = OFF
    prefix_cache: bool = True


@dataclasses.dataclass(frozen=True)
class Choice:
    """Settings that were tried, and how well they do.

    :param margin_gib: the smaller of two margins: of memory at the lowest point, and of the cache above one context.
    :param losses: what was given up, the most serious kind first; compared in this order.
    """

    outcome: Outcome
    margin_gib: float
    losses: tuple[int, ...]
    given_up: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Variant:
    draft_tokens: int
    ssm_dtype: str
    prefix_cache: bool
    kv_dtype: str
    inputs: Inputs
    slots_per_request: int


def goal_of(values: t.Mapping[str, t.Any], inputs: Inputs) -> Goal:
    """Return the goal that the option gives.

    :raises KproError: for an unknown key or a senseless value.
    """
    known = {field.name for field in dataclasses.fields(Goal)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise KproError(f"option goal, key {unknown[0]}", "there is no such key", f"Known are {', '.join(sorted(known))}", field=unknown[0])
    context = _positive("context_tokens", values.get("context_tokens") or inputs.options.context_length or inputs.model.max_position)
    requests = _positive("concurrent_requests", values.get("concurrent_requests") or inputs.options.max_running_requests or 1)
    speculation = str(values.get("speculation") or (PREFERRED if inputs.options.speculative_algorithm else OFF)).lower()
    speculation = {"false": OFF, "true": REQUIRED}.get(speculation, speculation)
    if speculation not in (REQUIRED, PREFERRED, OFF):
        reason = f"the value {speculation!r} is none of required, preferred, off"
        raise KproError("option goal, key speculation", reason, field="speculation", value=speculation)
    prefix = values.get("prefix_cache", not inputs.options.disable_radix_cache)
    if not isinstance(prefix, bool):
        prefix = str(prefix).lower() in ("true", "yes", "required", "preferred", "on", "1")
    if context > inputs.model.max_position:
        reason = f"{context} is above the model's {inputs.model.max_position}"
        raise KproError("option goal, key context_tokens", reason, field="context_tokens", value=context)
    return Goal(context, requests, speculation, prefix)


def _positive(name: str, value: t.Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise KproError(f"option goal, key {name}", f"the value {value!r} is no whole number above 0", field=name, value=value)
    return number


def search(goal: Goal, inputs: Inputs) -> list[Choice]:
    """Return the choices, the best first; never empty.

    :raises KproError: if nothing can be planned at all, for the reason that the last try gave.
    """
    inputs = _with_all_gpus(inputs)
    # Variants that give less are looked at only if none reaches the wanted numbers.
    for reach in (_as_wanted, _with_less):
        choices: list[Choice] = []
        failure: KproError | None = None
        for settings in _variants(goal, inputs):
            try:
                choices.append(reach(goal, _variant(*settings, inputs), inputs))
            except KproError as error:
                failure = error
        good = [choice for choice in choices if choice.margin_gib >= 0] or (choices if reach is _with_less else [])
        if good:
            return sorted(good, key=lambda choice: (choice.outcome.verdict == "FAIL", choice.losses, -choice.margin_gib))
        if not choices:
            raise failure or KproError("option goal", "there is nothing to choose from", "Give fewer fixed options")
    raise AssertionError("the second round always answers")


def _with_all_gpus(inputs: Inputs) -> Inputs:
    """All GPUs that divide the model's heads, unless tp_size is given."""
    if inputs.tp_given or len(inputs.cards) < 2:
        return inputs
    heads = inputs.model.heads or 1
    number = max(count for count in range(1, len(inputs.cards) + 1) if heads % count == 0 and count & (count - 1) == 0)
    return dataclasses.replace(inputs, options=dataclasses.replace(inputs.options, tp_size=number))


def _variants(goal: Goal, inputs: Inputs) -> t.Iterator[tuple[int, str, bool, str]]:
    options = inputs.options
    wanted = options.speculative_num_draft_tokens or ((options.speculative_num_steps or 3) + 1)
    fewer = [number for number in (wanted, *range(min(wanted - 1, _MOST_DRAFTS), 1, -1)) if number > 1]
    drafts = {OFF: [0], REQUIRED: fewer, PREFERRED: [*fewer, 0]}[goal.speculation]
    if goal.speculation == PREFERRED and not inputs.model.mtp_layers:
        drafts = [0]
    dtypes = [inputs.options.mamba_ssm_dtype] if options.mamba_ssm_dtype else ["float32", "bfloat16"]
    caches = [True, False] if goal.prefix_cache else [False]
    kv_dtypes = [options.kv_cache_dtype]
    if options.kv_cache_dtype == "auto" and _takes_fp8(inputs):
        kv_dtypes.append("fp8_e4m3")
    for draft, dtype, cache, kv in itertools.product(drafts, dtypes if inputs.model.linear else [""], caches, kv_dtypes):
        yield draft, str(dtype), cache, kv


def _variant(draft: int, ssm_dtype: str, prefix_cache: bool, kv_dtype: str, inputs: Inputs) -> _Variant:
    prepared = _prepared(draft, ssm_dtype, prefix_cache, kv_dtype, inputs)
    card_mib = min(card.total_mib for card in inputs.cards)
    slots = resolve(prepared.options, inputs.model, card_mib, inputs.rules, dict(prepared.environment)).slots_per_request
    return _Variant(draft, ssm_dtype, prefix_cache, kv_dtype, prepared, slots)


def _prepared(draft: int, ssm_dtype: str, prefix_cache: bool, kv_dtype: str, inputs: Inputs) -> Inputs:
    """The inputs of a variant, without context, requests and fraction."""
    values: dict[str, t.Any] = {
        "kv_cache_dtype": kv_dtype,
        "disable_radix_cache": not prefix_cache,
        "speculative_algorithm": (inputs.options.speculative_algorithm or "NEXTN") if draft else None,
        "speculative_num_steps": draft - 1 if draft else None,
        "speculative_eagle_topk": 1 if draft else None,
        "speculative_num_draft_tokens": draft or None,
    }
    if inputs.model.linear:
        given = inputs.options.mamba_radix_cache_strategy
        strategy = "extra_buffer" if draft and given == "auto" else given
        values.update(mamba_ssm_dtype=ssm_dtype, mamba_radix_cache_strategy=strategy if prefix_cache else "auto")
    environment = dict(inputs.environment)
    if draft and prefix_cache and not inputs.rules.spec_overlap_default:
        environment["SGLANG_ENABLE_SPEC_V2"] = "1"
    # Any fraction will do here; an automatic one may not be modelled.
    options = dataclasses.replace(inputs.options, mem_fraction_static=inputs.options.mem_fraction_static or 0.5, **values)
    return dataclasses.replace(inputs, options=options, environment=tuple(sorted(environment.items())))


def _takes_fp8(inputs: Inputs) -> bool:
    return all((generation_of(card.name) or 0) >= _FP8_GENERATION for card in inputs.cards)


def _as_wanted(goal: Goal, variant: _Variant, inputs: Inputs) -> Choice:
    """The variant with the wanted numbers, which may not hold (negative margin)."""
    outcome, margin = _best_fraction(variant, inputs, goal.concurrent_requests, goal.context_tokens)
    losses, given_up = _losses(goal, variant, inputs, goal.concurrent_requests, goal.context_tokens, outcome)
    return Choice(outcome, margin, losses, given_up)


def _with_less(goal: Goal, variant: _Variant, inputs: Inputs) -> Choice:
    """The variant with as many requests as hold; if not even one does, with a shorter context too."""
    context, requests = goal.context_tokens, 1
    fewest = min(context, _FEWEST_CONTEXT)
    if _best_fraction(variant, inputs, 1, fewest)[1] < 0:
        context = fewest
    elif _best_fraction(variant, inputs, 1, context)[1] < 0:
        blocks = largest_where(1, context // _FEWEST_CONTEXT, lambda n: _best_fraction(variant, inputs, 1, n * _FEWEST_CONTEXT)[1] >= 0)
        context = blocks * _FEWEST_CONTEXT
    else:
        requests = largest_where(1, goal.concurrent_requests, lambda number: _best_fraction(variant, inputs, number, context)[1] >= 0)
    outcome, margin = _best_fraction(variant, inputs, requests, context)
    losses, given_up = _losses(goal, variant, inputs, requests, context, outcome)
    return Choice(outcome, margin, losses, given_up)


def _best_fraction(variant: _Variant, inputs: Inputs, requests: int, context: int) -> tuple[Outcome, float]:
    """The fraction at which the smaller of the two margins is largest: one falls with the fraction, the other rises."""
    if inputs.options.mem_fraction_static is not None:
        outcome = _try(variant, requests, context, inputs.options.mem_fraction_static)
        return outcome, min(_margins(outcome, requests, context))
    low, high = _LEAST_STEP, _MOST_STEP
    while high - low > 1:
        middle = (low + high) // 2
        slack, cache = _margins(_try(variant, requests, context, middle / _STEPS), requests, context)
        low, high = (middle, high) if cache < slack else (low, middle)
    tries = [_try(variant, requests, context, step / _STEPS) for step in (low, high)]
    best = max(tries, key=lambda outcome: (outcome.boots, min(_margins(outcome, requests, context))))
    return best, min(_margins(best, requests, context))


def _margins(outcome: Outcome, requests: int, context: int) -> tuple[float, float]:
    """GiB above the safe slack, and GiB of cache above one context; the latter is negative for too few requests."""
    token = outcome.shape.token_bytes + outcome.shape.draft_token_bytes
    cache = (outcome.sizing.tokens - context) * token / GIB
    if outcome.sizing.requests < requests and outcome.sizing.tokens >= context:
        cache = -float(requests - outcome.sizing.requests)
    slack = outcome.low_point_gib - SAFE_SLACK_GIB
    return (slack, cache) if outcome.stage in ("", "sizing", "pools") else (-float("inf"), -float("inf"))


def _try(variant: _Variant, requests: int, context: int, fraction: float) -> Outcome:
    slots = requests * variant.slots_per_request if variant.inputs.model.linear else variant.inputs.options.max_mamba_cache_size
    options = dataclasses.replace(
        variant.inputs.options, context_length=context, max_running_requests=requests, mem_fraction_static=fraction, max_mamba_cache_size=slots
    )
    return evaluate(dataclasses.replace(variant.inputs, options=options))


def _losses(goal: Goal, variant: _Variant, inputs: Inputs, requests: int, context: int, outcome: Outcome) -> tuple[tuple[int, ...], tuple[str, ...]]:
    wanted_draft = inputs.options.speculative_num_draft_tokens or ((inputs.options.speculative_num_steps or 3) + 1)
    small_slack = outcome.boots and outcome.verdict == "RISK"
    wants = [
        (goal.context_tokens - context, f"context: {context} instead of {goal.context_tokens} tokens"),
        (goal.concurrent_requests - requests, f"requests at once: {requests} instead of {goal.concurrent_requests}"),
        (int(small_slack), f"slack: only {outcome.low_point_gib:.2f} GiB at the lowest point"),
        (int(goal.speculation != OFF and not variant.draft_tokens), "speculation: off"),
        (int(variant.kv_dtype != inputs.options.kv_cache_dtype), f"cache in 16 bit: {variant.kv_dtype} instead (check the accuracy)"),
        (int(goal.prefix_cache and not variant.prefix_cache), "prefix cache: off, no reuse between chats"),
        (wanted_draft - variant.draft_tokens if variant.draft_tokens else 0, f"draft tokens: {variant.draft_tokens} instead of {wanted_draft}"),
        (int(variant.ssm_dtype == "bfloat16" and inputs.options.mamba_ssm_dtype is None), "state in float32: bfloat16 instead (check the accuracy)"),
    ]
    return tuple(loss for loss, _text in wants), tuple(text for loss, text in wants if loss)
