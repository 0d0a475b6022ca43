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
from .cards import generation_of_card
from .core import Inputs, Outcome, evaluate
from .resolve import resolve
from .shown import shown
from .sizing import GIB

REQUIRED, PREFERRED, OFF = "required", "preferred", "off"
# Fractions in thousandths; how much the engine needs after the pools bounds them, not a constant.
_LEAST_STEP, _MOST_STEP, _STEPS = 100, 990, 1000
# A cache of fewer tokens serves nobody, so that no answer has a shorter context.
FEWEST_CONTEXT = 1024
# What one of several requests at once has for itself if the goal does not say: this share of the context.
_SHARE = 4
# More than these are only tried if they are asked for.
_MOST_DRAFTS = 8
# Compute capability times ten from which a card computes in FP8.
_FP8_GENERATION = 89
# Far above what any deployment asks for.
_MOST = 1 << 30


@dataclasses.dataclass(frozen=True)
class Goal:
    """The required result: tokens for one request and for each of a number at once, and features.

    :param tokens_per_request: tokens that each of the requests has for itself.
    :param images: whether images are to be understood; without them the vision tower is not loaded.
    """

    context_tokens: int
    concurrent_requests: int
    speculation: str = OFF
    prefix_cache: bool = True
    tokens_per_request: int = 0
    images: bool = True

    def tokens(self, context: int, requests: int) -> int:
        """The cache that these numbers need: one whole context, and every request's own."""
        return max(context, requests * min(self.tokens_per_request, context))


@dataclasses.dataclass(frozen=True)
class Choice:
    """Settings that were tried, and how well they do.

    :param margin_gib: the smaller of two margins: of memory at the lowest point, and of the cache above what the requests need.
    :param losses: what was given up, the most serious kind first; compared in this order.
    :param given_up: of what was asked; ``traded``: what nobody asked for, but should know of.
    """

    outcome: Outcome
    margin_gib: float
    losses: tuple[int, ...]
    given_up: tuple[str, ...]
    traded: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether it starts with a cache that serves somebody."""
        return self.outcome.boots and self.outcome.sizing.tokens >= min(FEWEST_CONTEXT, self.outcome.inputs.model.max_position)


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
    if not isinstance(values, t.Mapping):
        raise KproError("option goal", f"it is {shown(values)}, and must be a section of keys", field="goal")
    known = {field.name for field in dataclasses.fields(Goal)}
    unknown = sorted(str(name) for name in set(values) - known)
    if unknown:
        raise KproError(f"option goal, key {unknown[0]}", "there is no such key", f"Known are {', '.join(sorted(known))}", field=unknown[0])
    context = _positive("context_tokens", values.get("context_tokens"), inputs.options.context_length or inputs.model.max_position)
    requests = _positive("concurrent_requests", values.get("concurrent_requests"), inputs.options.max_running_requests or 1)
    speculation = str(values.get("speculation") or (PREFERRED if inputs.options.speculative_algorithm else OFF)).lower()
    speculation = {"false": OFF, "true": REQUIRED}.get(speculation, speculation)
    if speculation not in (REQUIRED, PREFERRED, OFF):
        reason = f"the value {shown(speculation)} is none of required, preferred, off"
        raise KproError("option goal, key speculation", reason, field="speculation", value=speculation)
    if context > inputs.model.max_position:
        reason = f"{context} is above the model's {inputs.model.max_position}"
        raise KproError("option goal, key context_tokens", reason, field="context_tokens", value=context)
    each = _positive("tokens_per_request", values.get("tokens_per_request"), max(1, context // _SHARE))
    if each > context:
        reason = f"{each} is above the context of {context}"
        raise KproError("option goal, key tokens_per_request", reason, field="tokens_per_request", value=each)
    prefix = _flag("prefix_cache", values.get("prefix_cache"), not inputs.options.disable_radix_cache)
    images = _flag("images", values.get("images"), not (inputs.options.language_only or inputs.options.language_model_only))
    return Goal(context, requests, speculation, prefix, each, images)


def _flag(name: str, value: t.Any, default: bool) -> bool:
    if value is None or isinstance(value, bool):
        return default if value is None else value
    word = str(value).lower()
    if word in ("true", "yes", "required", "preferred", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise KproError(f"option goal, key {name}", f"the value {shown(value)} is neither true nor false", field=name)


def _positive(name: str, value: t.Any, default: int) -> int:
    if value is None:
        return default
    try:
        number = value if isinstance(value, int) else int(str(value))
    except ValueError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise KproError(f"option goal, key {name}", f"the value {shown(value)} is no whole number above 0", field=name)
    if number > _MOST:
        raise KproError(f"option goal, key {name}", f"the value {shown(value)} is above {_MOST}, which nothing serves", field=name)
    return number


def search(goal: Goal, inputs: Inputs) -> list[Choice]:
    """Return the choices, the best first; never empty.

    :raises KproError: if nothing can be planned at all, for the reason that the last try gave.
    """
    inputs = _with_images(goal, inputs)
    failure: KproError | None = None
    found: list[Choice] = []
    for number in _tp_sizes(inputs):
        divided = dataclasses.replace(inputs, options=dataclasses.replace(inputs.options, tp_size=number))
        try:
            choices = _search(goal, divided)
        except KproError as error:
            failure = failure or error
            continue
        if choices[0].usable:
            return choices
        found = found or choices
    if not found:
        raise failure or KproError("option goal", "there is nothing to choose from", "Give fewer fixed options")
    return found


def reaches(goal: Goal, inputs: Inputs) -> Choice | None:
    """Return the first settings that give all of a goal, or None: quicker than to look for what would be lost."""
    inputs = _with_images(goal, inputs)
    for number in _tp_sizes(inputs):
        divided = dataclasses.replace(inputs, options=dataclasses.replace(inputs.options, tp_size=number))
        for settings in _variants(goal, divided):
            try:
                variant = _variant(*settings, divided)
                if not _holds(goal, variant, divided, goal.concurrent_requests, goal.context_tokens):
                    continue
                choice = _as_wanted(goal, variant, divided)
            except KproError:
                continue
            if choice.margin_gib >= 0 and choice.usable and not choice.given_up:
                return choice
    return None


def _search(goal: Goal, inputs: Inputs) -> list[Choice]:
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
            return sorted(good, key=lambda choice: (not choice.usable, choice.outcome.verdict == "FAIL", choice.losses, -choice.margin_gib))
        if not choices:
            raise failure or KproError("option goal", "there is nothing to choose from", "Give fewer fixed options")
    raise AssertionError("the second round always answers")


def _with_images(goal: Goal, inputs: Inputs) -> Inputs:
    """Without need for images the tower stays away, where the release can do that."""
    options = inputs.options
    if goal.images or not inputs.model.multimodal or options.language_only or options.language_model_only or not inputs.rules.language_model_only:
        return inputs
    return dataclasses.replace(inputs, options=dataclasses.replace(options, language_model_only=True))


def _tp_sizes(inputs: Inputs) -> list[int]:
    """As many GPUs as divide the model, by powers of two, the most first; what the engine refuses to load is passed over."""
    if inputs.tp_given or len(inputs.cards) < 2:
        return [inputs.options.tp_size]
    heads = inputs.model.heads or 1
    return [number for number in (16, 8, 4, 2, 1) if number <= len(inputs.cards) and (heads % number == 0 or heads == 1)]


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
    return all((generation_of_card(card) or 0) >= _FP8_GENERATION for card in inputs.cards)


def _as_wanted(goal: Goal, variant: _Variant, inputs: Inputs) -> Choice:
    """The variant with the wanted numbers, which may not hold (negative margin)."""
    return _choice(goal, variant, inputs, goal.concurrent_requests, goal.context_tokens)


def _choice(goal: Goal, variant: _Variant, inputs: Inputs, requests: int, context: int) -> Choice:
    outcome, margin = _best_fraction(goal, variant, inputs, requests, context)
    return Choice(outcome, margin, *_losses(goal, variant, inputs, requests, context, outcome))


def _with_less(goal: Goal, variant: _Variant, inputs: Inputs) -> Choice:
    """The variant with as many requests as hold; if not even one does, with a shorter context too."""

    def holds(requests: int, context: int) -> bool:
        return _holds(goal, variant, inputs, requests, context)

    context, requests = goal.context_tokens, 1
    fewest = min(context, FEWEST_CONTEXT)
    if not holds(1, fewest):
        context = fewest
    elif not holds(1, context):
        blocks = largest_where(1, context // FEWEST_CONTEXT, lambda number: holds(1, number * FEWEST_CONTEXT))
        context = max(blocks * FEWEST_CONTEXT, fewest)
    else:
        requests = largest_where(1, goal.concurrent_requests, lambda number: holds(number, context))
    return _choice(goal, variant, inputs, requests, context)


def _best_fraction(goal: Goal, variant: _Variant, inputs: Inputs, requests: int, context: int) -> tuple[Outcome, float]:
    """The fraction at which the smaller of the two margins is largest: one falls with the fraction, the other rises."""
    if inputs.options.mem_fraction_static is not None:
        outcome = _try(variant, requests, context, inputs.options.mem_fraction_static)
        return outcome, min(_margins(goal, outcome, requests, context))
    low, high = _crossing(lambda step: _margins(goal, _try(variant, requests, context, step / _STEPS), requests, context))
    tries = [_try(variant, requests, context, step / _STEPS) for step in (low, high)]
    best = max(tries, key=lambda outcome: (outcome.boots, min(_margins(goal, outcome, requests, context))))
    return best, min(_margins(goal, best, requests, context))


def _holds(goal: Goal, variant: _Variant, inputs: Inputs, requests: int, context: int) -> bool:
    """Whether any fraction gives both margins. Where both are missed, no other one does: what gains on the one side loses on the other."""
    if inputs.options.mem_fraction_static is not None:
        return min(_margins(goal, _try(variant, requests, context, inputs.options.mem_fraction_static), requests, context)) >= 0
    low, high = _LEAST_STEP, _MOST_STEP
    while low <= high:
        middle = (low + high) // 2
        slack, cache = _margins(goal, _try(variant, requests, context, middle / _STEPS), requests, context)
        if slack >= 0 and cache >= 0:
            return True
        if slack < 0 and cache < 0:
            return False
        low, high = (middle + 1, high) if cache < 0 else (low, middle - 1)
    return False


def _crossing(margins: t.Callable[[int], tuple[float, float]]) -> tuple[int, int]:
    """The two neighbouring steps between which the margin of the cache rises above that of the slack; both are nearly straight lines."""

    def ahead(step: int) -> float:
        slack, cache = margins(step)
        return cache - slack if slack > -float("inf") else 0.0

    low, high = _LEAST_STEP, _MOST_STEP
    below, above, tries = ahead(low), ahead(high), 0
    while high - low > 1:
        straight = below < 0 < above and tries % 3 < 2
        guess = low + round((high - low) * below / (below - above)) if straight else (low + high) // 2
        middle, tries = min(max(guess, low + 1), high - 1), tries + 1
        found = ahead(middle)
        if found < 0:
            low, below = middle, found
        else:
            high, above = middle, found
    return low, high


def _margins(goal: Goal, outcome: Outcome, requests: int, context: int) -> tuple[float, float]:
    """GiB above what is needed after the pools, and GiB of cache above what the requests need; the latter is negative for too few requests."""
    token = outcome.shape.token_bytes + outcome.shape.draft_token_bytes + outcome.resolved.window_ratio * outcome.shape.window_bytes
    needed = goal.tokens(context, requests)
    cache = (outcome.sizing.tokens - needed) * token / GIB
    if outcome.sizing.requests < requests // outcome.resolved.attention_dp and outcome.sizing.tokens >= needed:
        cache = -float(requests - outcome.sizing.requests)
    if outcome.sizing.failure and cache >= 0:
        cache = -1.0
    slack = outcome.low_point_gib - outcome.needed_gib
    return (slack, cache) if outcome.stage in ("", "sizing", "pools") else (-float("inf"), -float("inf"))


def _try(variant: _Variant, requests: int, context: int, fraction: float) -> Outcome:
    slots = requests * variant.slots_per_request if variant.inputs.model.linear else variant.inputs.options.max_mamba_cache_size
    options = dataclasses.replace(
        variant.inputs.options, context_length=context, max_running_requests=requests, mem_fraction_static=fraction, max_mamba_cache_size=slots
    )
    return evaluate(dataclasses.replace(variant.inputs, options=options))


def _losses(
    goal: Goal, variant: _Variant, inputs: Inputs, requests: int, context: int, outcome: Outcome
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """How much of each is lost, in words what was asked for and is not given, and what changes without having been asked about."""
    given = inputs.options.speculative_num_draft_tokens or (inputs.options.speculative_num_steps or 0) + 1
    wanted_draft = given if given > 1 else 4
    small_slack = outcome.boots and outcome.verdict == "RISK"
    asked = [
        (goal.context_tokens - context, f"context: {context} instead of {goal.context_tokens} tokens"),
        (goal.concurrent_requests - requests, f"requests at once: {requests} instead of {goal.concurrent_requests}"),
        (int(small_slack), f"slack: only {max(outcome.low_point_gib, 0):.2f} GiB at the lowest point"),
        (int(goal.speculation != OFF and not variant.draft_tokens), "speculation: off"),
    ]
    cache = [(int(variant.kv_dtype != inputs.options.kv_cache_dtype), f"cache in 16 bit: {variant.kv_dtype} instead (check the accuracy)")]
    prefix = [(int(goal.prefix_cache and not variant.prefix_cache), "prefix cache: off, no reuse between chats")]
    fewer = wanted_draft - variant.draft_tokens if variant.draft_tokens else 0
    draft = [(fewer, f"draft tokens: {variant.draft_tokens} instead of {wanted_draft}")]
    state = [(int(variant.ssm_dtype == "bfloat16" and inputs.options.mamba_ssm_dtype is None), "state in float32: bfloat16 instead (check the accuracy)")]
    in_order = asked + cache + prefix + draft + state
    lost = asked + prefix + (draft if given > 1 else [])
    changed = cache + state + ([] if given > 1 else draft)
    return tuple(loss for loss, _text in in_order), tuple(text for loss, text in lost if loss), tuple(text for loss, text in changed if loss)
