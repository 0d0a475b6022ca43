# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A module's planned changes: the single source of ``changed``, ``diff`` and the printed plan."""

from __future__ import annotations

import dataclasses
import typing as t


@dataclasses.dataclass(frozen=True)
class Change:
    """One step of a plan.

    :param sentence: what is done, one imperative sentence without a full stop.
    :param before: the value now (None: absent).
    :param after: the value wanted (None: removed).
    :param action: name and arguments for the module's ``apply``; never shown.
    """

    sentence: str
    before: t.Any = None
    after: t.Any = None
    action: tuple[t.Any, ...] = ()


def plan_result(changes: t.Sequence[Change]) -> dict[str, t.Any]:
    """Return ``changed``, ``plan`` (sentences) and ``diff`` for ``exit_json``."""
    return {
        "changed": bool(changes),
        "plan": [change.sentence for change in changes],
        "diff": {
            "before": _lines(changes, "before"),
            "after": _lines(changes, "after"),
        },
    }


def _lines(changes: t.Sequence[Change], side: str) -> str:
    return "".join(f"{change.sentence}: {_text(getattr(change, side))}\n" for change in changes)


def _text(value: t.Any) -> str:
    return "(absent)" if value is None else str(value)
