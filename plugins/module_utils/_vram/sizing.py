# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How SGLang divides what is free after loading into state, copies and cache.

Sources: model_executor/model_runner_kv_cache_mixin.py of 0.5.9 (lines 47-419) and 0.5.10.post1 (75-893);
mem_cache/kv_cache_configurator.py (2990-3409) and model_executor/pool_configurator.py (94-345, 637-652) of 0.5.23;
configs/mamba_utils.py. Held to those functions by tests/differential, slot for slot and token for token.
"""

from __future__ import annotations

import dataclasses

from .._core.errors import KproError
from .._engine.versions import Rules
from .families import KDA
from .model import DTYPE_BYTES, Model
from .resolve import Resolved

GIB = 1 << 30
# Errors that end the sizing, by the text the engine prints.
NO_TOKENS, NO_STATE, NO_ROOM, NO_REQUESTS, NO_WINDOW = "no_tokens", "no_state", "no_room", "no_requests", "no_window"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Bytes on one GPU: one slot of state, and one token in the cache of target and draft, and in the layers with a window."""

    state_bytes: int
    token_bytes: int
    draft_token_bytes: int
    window_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Sizing:
    """The result of the engine's sizing on one GPU.

    :param rest_gib: free for pools after weights and slack, before anything is taken from it.
    :param copies_gib: charged for copies of the state for draft tokens.
    :param state_gib: charged for slots of state.
    :param kv_rest_gib: what is left for the cache; negative if the demand is larger than the rest.
    :param tokens: cache tokens; zero or negative as the engine computes them if it fails.
    :param failure: empty, or which error ends the sizing.
    """

    slack_gib: float
    rest_gib: float
    copies_gib: float
    state_gib: float
    kv_rest_gib: float
    slots: int | None
    tokens: int
    requests: int
    failure: str = ""
    window_tokens: int = 0


def shape_of(model: Model, resolved: Resolved, rules: Rules) -> Shape:
    """Return the bytes of a slot and a token.

    :raises KproError: if heads can't be divided among the GPUs.
    """
    split = resolved.attention_tp
    _check_divisible(model, resolved)
    if model.latent_dim:
        layer = model.latent_dim * resolved.kv_bytes
    else:
        layer = max(1, model.kv_heads // split) * (model.head_dim + (model.value_dim or model.head_dim)) * resolved.kv_bytes
    token = layer * model.full_layers
    draft = 0
    if resolved.algorithm and model.mtp_layers and model.full_layers:
        # The engine rounds a product of binary fractions, in two ways by release.
        part = model.mtp_layers / model.full_layers
        draft = int(token * (1 + part)) - token if rules.draft_cell_by_factor else int(token * model.mtp_layers / model.full_layers)
    window = model.window
    kept = max(1, window.kv_heads // split) * (window.head_dim + window.value_dim) * resolved.kv_bytes * window.layers if window else 0
    return Shape(_state_bytes(model, resolved), token, draft, kept)


def _state_bytes(model: Model, resolved: Resolved) -> int:
    """State of one request on one GPU: convolution windows in 16 bit, and one matrix per value head (mamba_utils.py:168-250)."""
    linear = model.linear
    if linear is None:
        return 0
    split = resolved.attention_tp
    if linear.kind == KDA:
        size = linear.value_heads // split * linear.value_dim
        window = 3 * size * (linear.kernel - 1) * resolved.conv_bytes
        return (window + size * linear.value_dim * DTYPE_BYTES[resolved.ssm_dtype]) * linear.layers
    groups = linear.key_heads if linear.key_heads % split == 0 else linear.key_heads + split - linear.key_heads
    channels = (linear.value_heads * linear.value_dim + 2 * groups * linear.key_dim) // split
    window = channels * (linear.kernel - 1) * resolved.conv_bytes
    matrix = linear.value_heads // split * linear.value_dim * linear.key_dim * DTYPE_BYTES[resolved.ssm_dtype]
    return (window + matrix) * linear.layers


def _check_divisible(model: Model, resolved: Resolved) -> None:
    split = resolved.attention_tp
    # One head stands for a config that was cut down to what a compressed cache needs.
    counts = {"num_attention_heads": model.heads} if model.heads > 1 or not model.latent_dim else {}
    if model.linear:
        counts["linear_num_value_heads"] = model.linear.value_heads
    if model.kv_heads >= split and not model.latent_dim:
        counts["num_key_value_heads"] = model.kv_heads
    for field, count in counts.items():
        if count % split:
            reason = f"the field {field!r} is {count}, which {split} GPUs (tp_size {resolved.tp}) don't divide"
            raise KproError(f"model {model.architecture}", reason, "Choose a tp_size that divides it", field=field, value=count)
    if model.window and model.window.kv_heads % split and split % model.window.kv_heads:
        reason = f"the layers with a window have {model.window.kv_heads} key-value heads, which {split} GPUs don't divide"
        raise KproError(f"model {model.architecture}", reason, "Choose another tp_size", value=model.window.kv_heads)
    if not model.latent_dim and model.kv_heads < split and split % model.kv_heads:
        reason = f"the field 'num_key_value_heads' is {model.kv_heads}, and can't be repeated evenly on {split} GPUs"
        raise KproError(f"model {model.architecture}", reason, "Choose another tp_size", field="num_key_value_heads", value=model.kv_heads)
    widths = [model.experts.intermediate, model.experts.shared_intermediate] if model.experts else []
    width = next((each for each in [*widths, model.intermediate if model.plain_layers else 0] if each % resolved.tp), 0)
    if width:
        reason = f"the feed-forward width {width} can't be divided among {resolved.tp} GPUs"
        raise KproError(f"model {model.architecture}", reason, "Choose a tp_size that divides it", field="intermediate_size", value=width)


def size(free_before_gib: float, free_after_gib: float, shape: Shape, resolved: Resolved, rules: Rules) -> Sizing:
    """Return the pools for the driver's free memory before and after loading (GiB, smallest of all GPUs)."""
    slack = free_before_gib * (1 - resolved.fraction)
    rest = free_after_gib - slack
    if rules.draft_counted:
        rest = free_after_gib - slack - resolved.multimodal_mib / 1024
    slots: int | None = None
    copies = state = 0.0
    failure = ""
    if shape.state_bytes:
        slots, copies, state = _slots(rest, shape.state_bytes, resolved, rules)
        if rules.state_error and slots <= 0:
            failure = NO_STATE
    remaining = (rest - copies) - state
    if not failure and rules.weights_error and remaining <= 0:
        failure = NO_ROOM
    profiled = _profiled_tokens(remaining, shape, resolved, rules)
    tokens = profiled if resolved.token_cap is None else min(profiled, resolved.token_cap)
    tokens = tokens // resolved.page * resolved.page
    requests = _requests(profiled if rules.estimate_before_cap else tokens, slots, resolved, rules)
    if not failure and tokens <= 0:
        failure = NO_TOKENS
    if not failure and requests <= 0:
        failure = NO_REQUESTS
    window = _window_tokens(tokens, shape, resolved)
    if not failure and rules.window_checked and shape.token_bytes and shape.window_bytes and resolved.window_tokens + resolved.page >= window:
        failure = NO_WINDOW
    return Sizing(slack, rest, copies, state, remaining, slots, tokens, requests, failure, window)


def _slots(rest: float, per: int, resolved: Resolved, rules: Rules) -> tuple[int, float, float]:
    """Slots, GiB of copies and GiB of slots (handle_max_mamba_cache, _handle_max_mamba_cache)."""
    limit = None if resolved.limit is None else resolved.limit // resolved.attention_dp
    draft, pad = resolved.draft_tokens, rules.padding
    if limit is not None and rules.limit_at_least_one:
        limit = max(1, limit)
    copies = 0.0
    if rules.copies == "upfront":
        if draft and limit is not None:
            copies = per * limit * draft / GIB
        slots = _explicit_slots(resolved, limit)
        if slots is None:
            budget = (rest - copies) * resolved.state_ratio / (1 + resolved.state_ratio)
            slots = int((budget * GIB) // per)
        return slots, copies, slots * per / GIB
    slots = _explicit_slots(resolved, limit)
    if slots is None:
        budget = rest * resolved.state_ratio / (1 + resolved.state_ratio) * GIB
        slots = int((budget - per * pad * (1 + draft)) // (per * (1 + draft / resolved.slots_per_request)))
    if draft and limit is not None:
        requests = slots if _radix_off_slots(resolved, limit) else min(limit, slots // resolved.slots_per_request)
        copies = per * (requests + pad) * draft / GIB
    return slots, copies, (slots + pad) * per / GIB


def _explicit_slots(resolved: Resolved, limit: int | None) -> int | None:
    if resolved.slots is not None:
        return resolved.slots // resolved.attention_dp
    return limit if not resolved.radix else None


def _radix_off_slots(resolved: Resolved, limit: int | None) -> bool:
    return resolved.slots is None and not resolved.radix and limit is not None


def _profiled_tokens(remaining_gib: float, shape: Shape, resolved: Resolved, rules: Rules) -> int:
    """Cache tokens before the cap and the pages (profile_max_num_token, calculate_pool_sizes)."""
    if shape.window_bytes:
        if not shape.token_bytes:
            return int(int(remaining_gib * GIB) // shape.window_bytes)
        if resolved.window_cap:
            fixed = -(-resolved.window_cap // resolved.page) * resolved.page * shape.window_bytes
            return int((int(remaining_gib * GIB) - fixed) // shape.token_bytes)
        return int(int(remaining_gib * GIB) // (shape.token_bytes + resolved.window_ratio * shape.window_bytes))
    return int(remaining_gib * GIB) // (shape.token_bytes + (shape.draft_token_bytes if rules.draft_counted else 0))


def _window_tokens(tokens: int, shape: Shape, resolved: Resolved) -> int:
    """Tokens in the pool of the layers with a window (_solve_pool_sizes; SWARequestCapPoolConfigurator)."""
    if not shape.window_bytes:
        return 0
    if not shape.token_bytes:
        return tokens
    if resolved.window_cap:
        return -(-resolved.window_cap // resolved.page) * resolved.page
    return int(max(tokens, 0) * resolved.window_ratio) // resolved.page * resolved.page


def _requests(tokens: int, slots: int | None, resolved: Resolved, rules: Rules) -> int:
    """Concurrent requests (_resolve_max_num_reqs, resolve_max_num_reqs; init_memory_pool in 0.5.9)."""
    estimate = max(min(int(tokens / resolved.context * 512), 4096), 2048)
    limit = resolved.limit
    if limit is None:
        requests = min(estimate, tokens // 2) if rules.half_token_default else estimate
    elif rules.request_limit == "none":
        requests = limit
    elif rules.request_limit == "estimate":
        requests = min(limit // resolved.attention_dp, estimate)
    else:
        share = limit // resolved.attention_dp
        requests = min(max(1, share) if rules.limit_at_least_one else share, tokens // 2)
    if slots is not None:
        requests = min(requests, slots // resolved.slots_per_request)
        if rules.spec_limit_divided_again and resolved.algorithm and resolved.attention_dp > 1 and limit is not None:
            requests = min(requests, limit // resolved.attention_dp)
    return requests
