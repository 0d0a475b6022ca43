# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sentences about a start that was judged.

A start is stopped only by the run that made it, or by one that continues that run. Each ending says what runs.
"""

from __future__ import annotations

import typing as t

from .._engine.failures import Failure
from .._linux.unit_state import UnitState

# The server answers wrongly.
FAILED_CHECKS = frozenset(
    {Failure.WRONG_ANSWER, Failure.NO_ANSWER, Failure.WRONG_MODEL, Failure.API_KEY_REFUSED, Failure.TOOL_PARSER_WRONG, Failure.REASONING_PARSER_WRONG}
)
# The start belongs to somebody else, or the container goes down with it.
NOT_OURS = frozenset({Failure.IDENTITY_CHANGED, Failure.CONTAINER_STOPPING})

WAIT_ON = "Run the deployment again to wait on"


def runs_now(unit: UnitState, *, answers: bool = False) -> str:
    """Return in one sentence what runs, by what systemd says."""
    if unit.waiting_for_restart:
        return "Nothing answers now: its process ended, and systemd is about to start it again"
    if unit.running:
        return "The service runs and answers" if answers else "The service still runs"
    return "The service does not run now"


def left_alone(loss: str, unit: UnitState) -> str:
    """Return why nothing was done about a start that is not this run's."""
    if loss == Failure.CONTAINER_STOPPING:
        return "Nothing was done about it"
    if loss == Failure.IDENTITY_CHANGED:
        return f"This run did not start it anew, so it was left as it is. {runs_now(unit)}"
    return f"This run did not start it, so it was left as it is. {runs_now(unit)}"


def lost_for_good(cause: str, why: str, stopped: bool, unit: UnitState) -> str:
    """Return the reason of a run whose start was lost without another configuration to run.

    :param why: why the last good configuration is none.
    """
    ending = "It was stopped, so the service does not run now" if stopped else f"It was left as it is. {runs_now(unit)}"
    return f"the start was lost and there is no other configuration to run{why}: {cause.rstrip('.')}. {ending}"


def rolled_back(lost: t.Sequence[t.Mapping[str, t.Any]], known: t.Iterable[str], ending: str) -> str:
    """Return the reason of a run that ends with the last good configuration.

    :param lost: starts that were lost in this run.
    :param known: why the rungs were not tried, if none was.
    :param ending: what became of the last good configuration.
    """
    if lost:
        earlier = "".join(f" Before it, {row.get('name')} was lost: {str(row.get('reason', '')).rstrip('.')}." for row in lost[:-1])
        return f"The new configuration was lost: {str(lost[-1].get('reason', '')).rstrip('.')}.{earlier} {ending}"
    causes = "; ".join(dict.fromkeys(known))
    return f"The configuration is known to fail and was not tried again: {causes.rstrip('.')}. {ending}"
