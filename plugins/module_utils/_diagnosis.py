# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cause of a failed start, from its log and what is known around it. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import dataclasses
import typing as t


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What went wrong.

    :param class_: short name of the kind of failure; ``unknown`` is an honest answer.
    :param phase: phase of the start in which it happened.
    :param cause: one sentence with the numbers that decided.
    :param evidence: the lines that decided.
    :param remedy: which setting to change; empty if none helps.
    :param direction: for a setting, up or down; otherwise empty.
    :param confidence: certain (said in so many words), likely (fits, other causes possible) or none.
    """

    class_: str
    phase: str
    cause: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    direction: str = ""
    confidence: str = "certain"

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain values for a module's result."""
        values = dataclasses.asdict(self)
        values["class"] = values.pop("class_")
        values["evidence"] = list(self.evidence)
        return values
