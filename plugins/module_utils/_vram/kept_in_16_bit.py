# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that a quantised checkpoint keeps in 16 bit, from the names in its config."""

from __future__ import annotations

import re
import typing as t

QUANTIZED, PLAIN, PARTLY = "quantized", "plain", "partly"

# Block FP8 leaves these in 16 bit in every checkpoint of these models; the plan counts them so.
_ALWAYS = re.compile(
    r"(^|\.)(lm_head|embed_tokens|visual|vision_tower|vision_model|conv1d|in_proj_(a|b|ba)|A_log|dt_bias|\w*norm\w*|gate|shared_expert_gate)(\.|$)"
    r"|^(model\.)?mtp\.fc(\.|$)"
)
_DRAFT = re.compile(r"^(model\.)?mtp(\.layers(\.\d+)?)?(?P<rest>\..+)?$")
_DRAFT_MATRICES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
_DRAFT_PARTS = {"self_attn": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}), "mlp": frozenset({"gate_proj", "up_proj", "down_proj"})}


def kept_in_16_bit(names: t.Iterable[str]) -> str:
    """Return what a checkpoint does with its head: QUANTIZED, PLAIN (the whole head is in 16 bit) or PARTLY.

    :param names: the config's list of modules that were not converted; a star at the end stands for all below.
    """
    draft = set[str]()
    for name in (str(name).rstrip("*").rstrip(".") for name in names):
        found = _DRAFT.match(name)
        if _ALWAYS.search(name) or found is None:
            continue
        last = (found["rest"] or "").rpartition(".")[2]
        draft |= _DRAFT_PARTS.get(last, _DRAFT_MATRICES) if last not in _DRAFT_MATRICES else {last}
    return QUANTIZED if not draft else PLAIN if draft == _DRAFT_MATRICES else PARTLY
