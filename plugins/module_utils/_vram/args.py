# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine options that a plan stands for, with nothing that decides left implicit."""

from __future__ import annotations

import typing as t

from .core import Outcome
from .options import named_for

_PASSED_ON = (
    "dp_size",
    "attn_dp_size",
    "attn_cp_size",
    "enable_dp_attention",
    "max_total_tokens",
    "mamba_full_memory_ratio",
    "disable_cuda_graph",
    "disable_decode_cuda_graph",
    "disable_prefill_cuda_graph",
    "disable_piecewise_cuda_graph",
    "enable_piecewise_cuda_graph",
    "enable_torch_compile",
    "enable_hierarchical_cache",
    "enable_deterministic_inference",
    "language_only",
    "language_model_only",
    "mm_feature_transport",
    "quantization",
    "attention_backend",
    "linear_attn_backend",
    "swa_full_tokens_ratio",
    "mamba_track_interval",
    "max_prefill_tokens",
)


def resolved_args(outcome: Outcome) -> dict[str, t.Any]:
    """Return option names (as the engine's version knows them) and values; starting with them gives this very plan."""
    options, resolved, rules = outcome.inputs.options, outcome.resolved, outcome.inputs.rules
    args: dict[str, t.Any] = dict(options.rest)
    defaults = type(options)()
    args.update({name: getattr(options, name) for name in _PASSED_ON if getattr(options, name) != getattr(defaults, name)})
    args.update(
        tp_size=resolved.tp,
        mem_fraction_static=_fraction(resolved.fraction),
        context_length=resolved.context,
        chunked_prefill_size=resolved.chunk,
        page_size=resolved.page,
        kv_cache_dtype=resolved.kv_dtype,
        disable_radix_cache=not resolved.radix,
    )
    args[named_for("cuda_graph_max_bs_decode", rules)] = resolved.graph_batch
    requests = _request_limit(outcome)
    if requests is not None:
        args["max_running_requests"] = requests
    if outcome.shape.state_bytes:
        args["mamba_ssm_dtype"] = resolved.ssm_dtype
        if resolved.radix or rules.auto_strategy == "no_buffer":
            args[named_for("mamba_radix_cache_strategy", rules)] = resolved.strategy
        if outcome.boots and outcome.sizing.slots is not None:
            args["max_mamba_cache_size"] = outcome.sizing.slots * resolved.attention_dp
        elif resolved.slots is not None:
            args["max_mamba_cache_size"] = resolved.slots
    if _overlap_has_to_be_off(outcome):
        args["disable_overlap_schedule"] = True
    if resolved.algorithm:
        args.update(
            speculative_algorithm=options.speculative_algorithm,
            speculative_num_steps=resolved.steps,
            speculative_eagle_topk=resolved.topk,
            speculative_num_draft_tokens=resolved.draft_tokens,
        )
    return dict(sorted(args.items()))


def _fraction(fraction: float) -> float:
    """Twelve digits, which hides the noise of binary fractions and costs no token."""
    return round(fraction, 12)


def _request_limit(outcome: Outcome) -> int | None:
    resolved = outcome.resolved
    if resolved.limit_given or not outcome.boots or (resolved.algorithm and outcome.inputs.rules.copies == "upfront"):
        return resolved.limit
    return outcome.sizing.requests * resolved.attention_dp


def _overlap_has_to_be_off(outcome: Outcome) -> bool:
    options, resolved = outcome.inputs.options, outcome.resolved
    if options.disable_overlap_schedule:
        return True
    return bool(outcome.shape.state_bytes and resolved.radix and resolved.strategy == "no_buffer" and not resolved.overlap and not resolved.algorithm)
