# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known faults of engine versions that a plan has to name, as data."""

from __future__ import annotations

import dataclasses

from .._engine.versions import release_of
from .cards import limits_of
from .core import Outcome


@dataclasses.dataclass(frozen=True)
class Advisory:
    """A fault from release ``since`` on and before release ``until``; empty bounds are open.

    :param kinds: model kinds (``_plan_model``) that it concerns; empty for all.
    :param needs: what has to be in use: ``tp`` (more than one GPU), ``speculation``, ``fp8``, ``quantised``, ``spec_extra_buffer``.
    """

    text: str
    reference: str
    since: str = ""
    until: str = ""
    kinds: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


ADVISORIES: tuple[Advisory, ...] = (
    Advisory(
        "this version skips an all-reduce of dense Qwen3.5 and Qwen3.6 models on more than one GPU: the text is fluent and wrong",
        "sgl-project/sglang pull 19070",
        until="0.5.10",
        kinds=("hybrid",),
        needs=("tp",),
    ),
    Advisory(
        "temporaries of the weight loader can count as used while the pools are sized: the cache may come out up to 20 times smaller",
        "sgl-project/sglang pull 36583",
        until="0.5.19",
        needs=("quantised",),
    ),
    Advisory(
        "an FP8 checkpoint with speculation crashes while its head is loaded: upgrade, or turn speculation off",
        "sgl-project/sglang pull 27998",
        until="0.5.15",
        kinds=("hybrid",),
        needs=("fp8", "speculation"),
    ),
    Advisory(
        "extra_buffer with speculation needs SGLANG_ENABLE_SPEC_V2=1 in the engine's environment",
        "the engine's own message",
        until="0.5.11",
        needs=("spec_extra_buffer",),
    ),
)


def advisories_of(outcome: Outcome) -> list[str]:
    """Return the faults that concern this start, and what the cards can't do for it."""
    release = release_of(outcome.inputs.version)
    facts = _facts(outcome)
    found = [
        f"SGLang {outcome.inputs.version}: {item.text} ({item.reference})"
        for item in ADVISORIES
        if (not item.since or release >= release_of(item.since))
        and (not item.until or release < release_of(item.until))
        and (not item.kinds or outcome.inputs.model.kind in item.kinds)
        and set(item.needs) <= facts
    ]
    return found + _card_limits(outcome)


def _facts(outcome: Outcome) -> set[str]:
    resolved, model = outcome.resolved, outcome.inputs.model
    environment = dict(outcome.inputs.environment)
    facts = {
        "tp": resolved.tp > 1,
        "speculation": bool(resolved.algorithm),
        "fp8": model.scheme.fp8,
        "quantised": bool(model.quantization),
        "spec_extra_buffer": bool(resolved.algorithm) and resolved.strategy.startswith("extra") and "SGLANG_ENABLE_SPEC_V2" not in environment,
    }
    return {name for name, holds in facts.items() if holds}


def _card_limits(outcome: Outcome) -> list[str]:
    names = {card.name for card in outcome.inputs.cards[: outcome.resolved.tp] if card.name}
    words = []
    for name in sorted(names):
        for limit in limits_of(name):
            fp8 = "FP8" in limit and (outcome.inputs.model.scheme.fp8 or outcome.resolved.kv_dtype.startswith("fp8"))
            fp4 = "FP4" in limit and "fp4" in outcome.inputs.model.quantization
            if fp8 or fp4 or ("NVLink" in limit and outcome.resolved.tp > 1):
                words.append(f"{name}: {limit}")
    return words
