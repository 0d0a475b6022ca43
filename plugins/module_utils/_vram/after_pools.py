# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken after the pools: attention workspace, graphs, and the activations of a prefill.

Fitted to public start-up logs, by what they print between "Memory pool end" and the last line: Llama 8B on 24 GB 0.63 GiB (8 decode graphs),
Qwen3.5-9B on two 4090 0.70 (7 decode graphs, 0.26 of it), Qwen3-14B over four cards 1.23 (decode graphs up to 80), Qwen3.8-27B from 0.5.17 on 2.78
(decode graphs up to 256, 58 prefill graphs). The same model ran on a 5090 with 2.25 GiB planned (24 and 50 graphs), and an engine that was planned
with 1.35 died under load.
"""

from __future__ import annotations

from .model import Model
from .resolve import Resolved

GIB = 1 << 30
_WORKSPACE_GIB = 0.45
_RANKS_GIB = 0.1
_DECODE_GRAPH_GIB = 0.0045
_PREFILL_GRAPH_GIB = 0.02
_VISION_GIB = 0.15


def needed_after_pools(model: Model, resolved: Resolved) -> float:
    """Return the GiB that graphs, workspaces and a prefill take on one GPU."""
    graphs = _DECODE_GRAPH_GIB * resolved.graph_batch + _PREFILL_GRAPH_GIB * resolved.prefill_graphs
    ranks = _RANKS_GIB if resolved.tp > 1 else 0.0
    # A captured prefill reuses the graphs' memory; an eager one allocates beside it.
    activations = _activations(model, resolved) * (1 if resolved.prefill_graphs else 2)
    return _WORKSPACE_GIB + ranks + graphs + activations + (_VISION_GIB if resolved.with_vision else 0.0)


def _activations(model: Model, resolved: Resolved) -> float:
    """A chunk in 16 bit: the widest layer's gate and input, and some vectors of the model's width; and the logits of the largest batch."""
    chunk = resolved.chunk if resolved.chunk > 0 else resolved.context
    width = max(model.intermediate, 0) / resolved.tp
    if model.experts:
        width = max(width, 8 * model.experts.intermediate / resolved.tp)
    logits = resolved.graph_batch * max(resolved.draft_tokens, 1) * model.vocab / resolved.tp * 4
    return (chunk * (2 * width + 6 * model.hidden) * 2 + logits) / GIB
