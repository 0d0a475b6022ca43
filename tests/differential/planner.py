# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner's answer to a random start."""

from __future__ import annotations

from cases import Answer, Case

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import rules_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.options import options_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.resolve import resolve
from ansible_collections.kpro.llm.plugins.module_utils._vram.sizing import shape_of, size


def answer(case: Case, version: str) -> Answer:
    """Return what the planner says."""
    rules, _warnings = rules_of(version)
    try:
        options = options_of(case.args, version, rules)
        resolved = resolve(options, case.model, case.card_mib, rules, case.environment)
    except KproError:
        return Answer("options")
    if resolved.refusals:
        return Answer("options")
    shape = shape_of(case.model, resolved, rules)
    sizing = size(case.before_gib, case.after_gib, shape, resolved, rules)
    state = shape.state_bytes if case.model.linear else None
    if sizing.failure:
        return Answer("sizing", resolved.fraction, resolved.chunk, resolved.graph_batch, state_bytes=state)
    return Answer(
        "",
        resolved.fraction,
        resolved.chunk,
        resolved.graph_batch,
        sizing.slots,
        sizing.requests,
        sizing.tokens,
        state,
    )
