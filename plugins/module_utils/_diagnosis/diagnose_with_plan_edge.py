# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge around the diagnosis: what it needs of the machine, and the memory plan where that has the sum."""

from __future__ import annotations

import json
import os
import typing as t

from .._engine.failures import Failure
from .._linux.held_folder_edge import read_bounded
from .case import Diagnosis, gpus_of
from .diagnose import diagnose

# Classes that the memory plan can quantify.
_PLANNED = frozenset(
    {
        Failure.HYBRID_STATE_POOL_TOO_LARGE,
        Failure.POOLS_TOO_LARGE,
        Failure.FRACTION_TOO_LOW,
        Failure.WEIGHTS_TOO_LARGE,
        Failure.STATE_SLOTS_TOO_FEW,
        Failure.GRAPH_CAPTURE_OOM,
    }
)


def explain(lines: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Diagnosis:
    """Return the cause of a failed start, with the plan's sum and computed changes if the context names model, GPUs, version and options."""
    finding = diagnose(lines, context)
    on_cpu = (context.get("args") or {}).get("device") == "cpu"
    if finding.class_ not in _PLANNED or not gpus_of(context) or on_cpu:
        return finding
    # Only here, because the planner is large and most calls have no use for it.
    from .against_plan import with_plan

    return with_plan(finding, lines, {"model_config": _config_of(str(context.get("model_path") or "")), **context})


def _config_of(model_path: str) -> t.Any:
    try:
        return json.loads(read_bounded(os.path.join(os.path.abspath(model_path), "config.json"), own_links=True)) if model_path else None
    except (OSError, ValueError, RecursionError):
        return None
