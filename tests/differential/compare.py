# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner beside the engine's own functions, on random starts."""

from __future__ import annotations

import dataclasses
import random
import typing as t

import planner
from cases import Answer, Case, random_case
from engine_new import NewEngine
from engine_old import OldEngine
from wheels import Wheel

from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import release_of


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How many starts were compared, how many of them boot, and the ones where the two differ."""

    drawn: int
    booting: int
    failing_at_sizing: int
    refused: int
    differences: tuple[tuple[Case, Answer, Answer], ...]

    def sentence(self, version: str) -> str:
        """Return the result in words, with the first difference."""
        same = self.drawn - len(self.differences)
        text = f"{version}: {same} of {self.drawn} agree ({self.booting} boot, {self.failing_at_sizing} fail at sizing, {self.refused} are refused)"
        if self.differences:
            case, engine, plan = self.differences[0]
            text += f"\n  first difference, {case.args} on {case.card_mib} MiB:\n    engine  {engine}\n    planner {plan}"
        return text


def engine_of(wheel: Wheel) -> t.Any:
    """Return what runs the functions of a wheel."""
    return OldEngine(wheel) if release_of(wheel.version) < (0, 5, 14) else NewEngine(wheel)


def compare(wheel: Wheel, booting: int, answer: t.Callable[[Case, str], Answer] = planner.answer) -> Comparison:
    """Draw starts until so many of them boot, and compare all that were drawn."""
    engine = engine_of(wheel)
    dice = random.Random(f"starts of {wheel.version}")
    counts = {"": 0, "sizing": 0, "options": 0}
    differences = []
    while counts[""] < booting and len(differences) < 100:
        case = random_case(dice, wheel.version)
        by_engine, by_planner = engine.answer(case), answer(case, wheel.version)
        counts[by_engine.stage] += 1
        if by_engine != by_planner:
            differences.append((case, by_engine, by_planner))
    return Comparison(sum(counts.values()), counts[""], counts["sizing"], counts["options"], tuple(differences))
