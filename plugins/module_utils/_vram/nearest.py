# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would reach a goal that these cards don't: other weights, more cards, no images."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .cards import generation_of_card
from .core import Inputs
from .goal import Choice, Goal, reaches, search
from .quantization import FP8_GENERATION, MARLIN_GENERATION, Kind, Scheme

_BLOCK_FP8 = Scheme("fp8", Kind(8, True, 128, 128, 4))
_INT4 = Scheme("awq", Kind(4, False, 1, 128, 2, True))
_MOST_CARDS = 16


@dataclasses.dataclass(frozen=True)
class Nearest:
    """Another configuration, and what it gives of the goal."""

    label: str
    choice: Choice


def nearest(goal: Goal, inputs: Inputs) -> list[Nearest]:
    """Return other configurations that start: those that give all of the goal, the least different first; else the few that give most of it.

    Each of them is searched like the goal itself.
    """
    others = list(_others(goal, inputs))
    reached = _tried(others, reaches, _ENOUGH)
    if reached:
        return reached
    # Fewer requests or a shorter context are looked for with other weights and with the most cards only.
    few = [*others[:_FEW], *others[_FEW:][-1:]]
    found = _tried(few, lambda wanted, other: search(wanted, other)[0], len(few))
    return sorted(found, key=lambda item: item.choice.losses[:4])


_ENOUGH, _FEW = 3, 2


def _tried(others: t.Sequence[tuple[str, Inputs, Goal]], choose: t.Callable[[Goal, Inputs], Choice | None], enough: int) -> list[Nearest]:
    found: list[Nearest] = []
    for label, other, wanted in others:
        try:
            best = choose(wanted, other)
        except KproError:
            continue
        if best is not None and best.usable:
            found.append(Nearest(label, best))
        if len(found) >= enough:
            break
    return found


def _others(goal: Goal, inputs: Inputs) -> t.Iterator[tuple[str, Inputs, Goal]]:
    model = inputs.model
    if goal.images and model.multimodal and inputs.rules.language_model_only:
        yield "a start without images", inputs, dataclasses.replace(goal, images=False)
    weights = list(_weights(inputs))
    for label, scheme in weights:
        yield label, _with_scheme(inputs, scheme), goal
    if inputs.weights_gib is not None or inputs.headers is not None:
        return
    count = 2
    while count <= _MOST_CARDS:
        if count > len(inputs.cards) and (model.heads % count == 0 or model.heads == 1):
            cards = (inputs.cards[0],) * count
            more = dataclasses.replace(inputs, cards=cards, options=dataclasses.replace(inputs.options, tp_size=count), tp_given=True)
            yield f"{count} of these cards", more, goal
            for label, scheme in weights[:1]:
                yield f"{count} of these cards with {label}", _with_scheme(more, scheme), goal
        count *= 2


def _weights(inputs: Inputs) -> t.Iterator[tuple[str, Scheme]]:
    """Usual quantisations of a plain model that these cards take."""
    if inputs.model.quantization or inputs.model.by_headers or inputs.headers is not None or inputs.weights_gib is not None:
        return
    generations = [generation_of_card(card) for card in inputs.cards]
    least = min((generation for generation in generations if generation is not None), default=None)
    if least is None or least >= (FP8_GENERATION if inputs.model.experts else MARLIN_GENERATION):
        yield "a checkpoint in FP8", _BLOCK_FP8
    yield "a checkpoint in 4 bit (AWQ)", _INT4


def _with_scheme(inputs: Inputs, scheme: Scheme) -> Inputs:
    return dataclasses.replace(inputs, model=dataclasses.replace(inputs.model, scheme=scheme))
