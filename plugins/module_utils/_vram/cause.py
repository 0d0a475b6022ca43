# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a plan fails or is tight, with the sum, and where the memory goes.

The direction rule: an error at sizing needs a higher fraction or less demand, an error afterwards a lower fraction.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .core import Outcome, leftovers, unbalanced
from .resolve import IMPLICIT_REQUESTS
from .sizing import NO_REQUESTS, NO_STATE, NO_WINDOW

HIGHER, LOWER, LESS, FREE, CHANGE = "raise_fraction_or_reduce_demand", "lower_fraction", "reduce_demand", "free_gpu", "change_options"


# A table of requests above this is worth a word.
_LARGE_TABLE_GIB = 1.0


@dataclasses.dataclass(frozen=True)
class Cause:
    """The reason of a verdict other than OK.

    :param direction: which way helps: one of the constants of this file.
    """

    kind: str
    stage: str
    message: str
    direction: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the breakdown."""

    name: str
    gib: float
    why: str


def cause_of(outcome: Outcome) -> Cause | None:
    """Return why the verdict isn't OK, or None."""
    if outcome.verdict == "OK":
        return None
    if outcome.verdict == "RISK":
        return _slack_cause(outcome, "slack_small")
    if outcome.verdict == "SHORT":
        return _short_cause(outcome)
    makers: dict[str, t.Callable[[Outcome], Cause]] = {
        "options": lambda o: Cause("options_refused", "options", "; ".join(o.resolved.refusals), CHANGE),
        "start": lambda o: Cause("gpus_unbalanced", "start", unbalanced(o.inputs), FREE),
        "load": _load_cause,
        "sizing": _sizing_cause,
        "pools": lambda o: _slack_cause(o, "slack_exhausted"),
    }
    return makers[outcome.stage](outcome)


def _load_cause(outcome: Outcome) -> Cause:
    held = leftovers(outcome.inputs)
    weights = f"the weights take {outcome.weights.target_gib:.2f} GiB on each GPU and {outcome.free_before_gib:.2f} GiB are free"
    if held:
        return Cause("memory_held", "load", f"{weights}; {'; '.join(held)}", FREE)
    return Cause("weights_too_large", "load", weights, LESS)


def _sizing_cause(outcome: Outcome) -> Cause:
    sizing, resolved = outcome.sizing, outcome.resolved
    if sizing.failure == NO_REQUESTS:
        message = f"{sizing.slots} slots of state for {resolved.slots_per_request} a request leave no request: the engine stops with a limit of zero requests"
        return Cause("slots_too_few", "sizing", message + _copies_clause(outcome), HIGHER)
    held = leftovers(outcome.inputs)
    clean = max(card.missing_mib for card in outcome.inputs.cards[: resolved.tp]) / 1024
    if held and outcome.inputs.free_before_gib is None and sizing.kv_rest_gib + clean * resolved.fraction > 0:
        return Cause("memory_held", "sizing", f"{_sum(outcome)}; {'; '.join(held)}", FREE)
    if sizing.failure == NO_WINDOW:
        message = (
            f"the pool of the layers with a window would hold {sizing.window_tokens:,} tokens, and one window with its page takes "
            f"{resolved.window_tokens + resolved.page:,}: the engine stops"
        )
        return Cause("window_too_small", "sizing", message, HIGHER)
    if sizing.rest_gib <= 0:
        message = f"weights and slack leave {sizing.rest_gib:.2f} GiB: the fraction {resolved.fraction:g} is too low for these weights"
        return Cause("weights_over_fraction", "sizing", message, HIGHER)
    if sizing.failure == NO_STATE:
        return Cause("state_slots", "sizing", _no_slot_message(outcome), HIGHER)
    if sizing.copies_gib > sizing.state_gib:
        return Cause("state_copies", "sizing", _copies_message(outcome), HIGHER)
    return Cause("state_slots", "sizing", f"{sizing.slots} slots of state demand too much. {_sum(outcome)}", HIGHER)


def _no_slot_message(outcome: Outcome) -> str:
    resolved = outcome.resolved
    copies = f" and its {resolved.draft_tokens} copies for draft tokens" if resolved.draft_tokens else ""
    return f"weights and slack leave {outcome.sizing.rest_gib:.2f} GiB, too little for one slot of state of {outcome.shape.state_bytes / 2**20:.1f} MiB{copies}"


def _copies_message(outcome: Outcome) -> str:
    resolved, sizing = outcome.resolved, outcome.sizing
    limit = f"the implicit limit of {IMPLICIT_REQUESTS} requests" if not resolved.limit_given else f"the limit of {resolved.limit} requests"
    return (
        f"speculation reserves {resolved.draft_tokens} copies of the {outcome.shape.state_bytes / 2**20:.1f} MiB state for each request, "
        f"and {limit} decides how many: {sizing.copies_gib:.2f} GiB of copies. {_sum(outcome)}, which is {sizing.tokens:,} tokens"
    )


def _copies_clause(outcome: Outcome) -> str:
    if not outcome.sizing.copies_gib:
        return ""
    return f" (copies of the state for draft tokens take {outcome.sizing.copies_gib:.2f} GiB first)"


def _sum(outcome: Outcome) -> str:
    sizing = outcome.sizing
    copies = f" - copies {sizing.copies_gib:.2f}" if sizing.copies_gib else ""
    return f"Rest {sizing.rest_gib:.2f}{copies} - slots {sizing.state_gib:.2f} = {sizing.kv_rest_gib:.2f} GiB for the cache"


def _slack_cause(outcome: Outcome, kind: str) -> Cause:
    draft = ""
    if outcome.resolved.algorithm and not outcome.inputs.rules.draft_counted:
        draft = f" (the draft head is loaded after the pools and takes {outcome.weights.draft_loaded_gib:.2f} GiB for a moment)"
    low = outcome.low_point_gib
    left = f"{low:.2f} GiB are left" if low >= 0 else f"{-low:.2f} GiB are missing"
    message = f"{left} at the lowest point after the pools{draft}, and graphs, workspaces and activations need about {outcome.needed_gib:.1f}"
    if outcome.table_gib > _LARGE_TABLE_GIB:
        message += f"; the table of {outcome.sizing.requests} requests of {outcome.resolved.context:,} tokens takes {outcome.table_gib:.2f} GiB: limit either"
    return Cause(kind, "after sizing", message, LOWER)


def _short_cause(outcome: Outcome) -> Cause:
    tokens, context = outcome.sizing.tokens, outcome.resolved.context
    message = f"the cache holds {tokens:,} tokens and the context is {context:,}: longer prompts are refused"
    return Cause("cache_shorter_than_context", "serving", message, HIGHER)


def breakdown(outcome: Outcome) -> list[Row]:
    """Return where the memory of the fullest GPU goes, in the order in which it is taken."""
    inputs, resolved, sizing, weights = outcome.inputs, outcome.resolved, outcome.sizing, outcome.weights
    total = min(card.total_mib for card in inputs.cards[: resolved.tp]) / 1024
    limit = "implicit" if resolved.limit is not None and not resolved.limit_given else "given"
    rows = [
        Row("card", total, "memory of the smallest card"),
        Row("driver and process", total - outcome.free_before_gib, "driver reserve, CUDA context, NCCL, and whatever else holds memory"),
        Row("free before loading", outcome.free_before_gib, 'the engine prints it as "Load weight begin. avail mem"'),
        Row("weights", weights.target_gib, f"from {weights.source}"),
    ]
    if resolved.algorithm:
        when = "loaded before the pools are sized" if inputs.rules.draft_counted else "loaded after the pools, out of the slack"
        rows.append(Row("draft head", weights.draft_loaded_gib, f"{when}; {weights.draft_stays_gib:.2f} GiB stay"))
    rows.append(Row("slack", sizing.slack_gib, f"free before loading x (1 - {resolved.fraction:g})"))
    rows.append(Row("rest", sizing.rest_gib, "for state and cache"))
    if outcome.shape.state_bytes:
        if resolved.algorithm:
            why = f"{resolved.draft_tokens} copies of {outcome.shape.state_bytes / 2**20:.2f} MiB for each of {resolved.limit} requests ({limit})"
            if inputs.rules.copies == "joint":
                why = f"{resolved.draft_tokens} copies of {outcome.shape.state_bytes / 2**20:.2f} MiB for each of {max(sizing.requests, 0)} requests"
            rows.append(Row("speculative copies", sizing.copies_gib, why))
        rows.append(Row("state slots", sizing.state_gib, f"{sizing.slots} slots of {outcome.shape.state_bytes / 2**20:.2f} MiB"))
    token = outcome.shape.token_bytes + (outcome.shape.draft_token_bytes if inputs.rules.draft_counted else 0)
    rows.append(Row("cache", sizing.kv_rest_gib, f"{sizing.tokens:,} tokens of {token:,} bytes" if sizing.tokens > 0 else f"not one token of {token:,} bytes"))
    rows.append(Row("pool end", outcome.pool_end_gib, 'free after the pools; the engine prints it as "Memory pool end. avail mem"'))
    rows.append(Row("lowest point", outcome.low_point_gib, "free after the draft's share, before graphs and activations"))
    return rows
