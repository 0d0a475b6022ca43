# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings that SGLang chooses when they are not given, by version.

Sources: server_args.py of 0.5.9 (lines 874, 935-1069, 1746-1764, 2352-2450, 5483-5519) and 0.5.10.post1; arg_groups/memory_hook.py,
speculative_hook.py, cuda_graph_hook.py and overrides.py of 0.5.23. The automatic fraction is held to those functions by
tests/differential.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._engine.versions import Rules
from .families import KDA
from .model import DTYPE_BYTES, Model
from .not_modelled import REMEDY, switch
from .options import Options, attention_dp

# Requests under speculation if no limit is given (speculative_hook.py; server_args.py:2352-2366 in 0.5.9).
IMPLICIT_REQUESTS = 48
_ALIASES = {"NEXTN": "EAGLE"}
# (steps, topk, draft tokens) when none is given (_auto_choose_speculative_params).
_AUTO_DRAFT = {"LlamaForCausalLM": (5, 4, 8)}
_AUTO_DRAFT_DEFAULT = (3, 1, 4)
_SLOTS_PER_REQUEST = 3
# Sizes of prefill graphs: first, last, step; from 4608 on in steps of 512.
_PREFILL_SIZES = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))
# Tokens that the kernels of linear attention take at once (FLA_CHUNK_SIZE).
_STATE_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Resolved:
    """All settings that decide about memory, none left open."""

    tp: int
    attention_dp: int
    attention_tp: int
    fraction: float
    fraction_given: bool
    context: int
    limit: int | None
    limit_given: bool
    token_cap: int | None
    page: int
    kv_dtype: str
    kv_bytes: int
    ssm_dtype: str
    conv_bytes: int
    state_ratio: float
    slots: int | None
    slots_per_request: int
    strategy: str
    radix: bool
    overlap: bool
    algorithm: str | None
    steps: int
    topk: int
    draft_tokens: int
    chunk: int
    graph_batch: int
    prefill_graphs: int
    with_vision: bool
    multimodal_mib: int
    window_tokens: int = 0
    window_ratio: float = 0.8
    window_cap: int = 0
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def resolve(options: Options, model: Model, card_mib: int, rules: Rules, environment: t.Mapping[str, t.Any]) -> Resolved:
    """Return the engine's settings for these options on cards whose smallest has ``card_mib`` MiB.

    :param environment: variables of the engine's process; those that decide about memory are read.
    :raises KproError: for a value that the planner does not model.
    """
    notes: list[str] = []
    refusals: list[str] = []
    algorithm = _ALIASES.get(options.speculative_algorithm or "", options.speculative_algorithm)
    steps, topk, draft = _draft_numbers(options, model, algorithm, notes)
    chunk, batch = _tier(options, card_mib, rules)
    prefill = _prefill_sizes(options, model, chunk, rules)
    strategy, radix, overlap = _cache(options, model, algorithm, rules, environment, notes, refusals)
    return Resolved(
        tp=options.tp_size,
        attention_dp=attention_dp(options),
        attention_tp=options.tp_size // attention_dp(options) // options.attn_cp_size,
        fraction=options.mem_fraction_static or _auto_fraction(options, model, card_mib, rules, chunk, batch, prefill),
        fraction_given=options.mem_fraction_static is not None,
        context=_context(options, model, environment, refusals),
        **_cache_shape(options, model, environment, rules),
        limit=_limit(options, algorithm, notes),
        limit_given=options.max_running_requests is not None,
        slots_per_request=_slots_per_request(strategy, radix, overlap, algorithm, rules),
        strategy=strategy,
        radix=radix,
        overlap=overlap,
        algorithm=algorithm,
        steps=steps,
        topk=topk,
        draft_tokens=draft,
        chunk=chunk,
        graph_batch=batch,
        prefill_graphs=prefill,
        with_vision=_with_vision(options, model),
        multimodal_mib=_multimodal_mib(options, _with_vision(options, model), rules, environment),
        **_windowed(options, model, rules, radix, chunk, draft, environment),
        notes=tuple(notes),
        refusals=tuple(refusals),
    )


def _windowed(options: Options, model: Model, rules: Rules, radix: bool, chunk: int, draft: int, environment: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """How the pool of the layers with a window is sized (create_memory_pool_configurator, compute_swa_request_cap)."""
    if model.window is None:
        return {}
    found: dict[str, t.Any] = {"window_tokens": model.window.tokens, "window_ratio": options.swa_full_tokens_ratio}
    limit, page = options.max_running_requests, options.page_size or 1
    if limit is None or radix or not model.full_layers or rules.window_cap == "none":
        return found
    if rules.window_cap == "unread" or draft:
        reason = "without the prefix cache and with a limit of requests, the windows' pool is sized by a rule that is not modelled for this version"
        raise KproError(f"SGLang of {rules.first} on", reason, "Keep the prefix cache, or leave max_running_requests open", field="disable_radix_cache")
    if chunk <= 0:
        return found
    interval = max(1, int(environment.get("SGLANG_SWA_EVICTION_INTERVAL", 128)))
    each = model.window.tokens + interval + 2 * page
    waves = 1 if options.disable_overlap_schedule else 2
    return {**found, "window_cap": each * max(1, limit // attention_dp(options)) + waves * chunk + page}


def _with_vision(options: Options, model: Model) -> bool:
    return model.multimodal and not (options.language_only or options.language_model_only)


def _cache_shape(options: Options, model: Model, environment: t.Mapping[str, t.Any], rules: Rules) -> dict[str, t.Any]:
    return {
        "token_cap": options.max_total_tokens,
        "page": _page(options, model, rules),
        "kv_dtype": options.kv_cache_dtype,
        "kv_bytes": _kv_bytes(options, model),
        "ssm_dtype": _ssm_dtype(options, model, environment),
        "conv_bytes": DTYPE_BYTES.get(str(environment.get("SGLANG_MAMBA_CONV_DTYPE", "")), 2),
        "state_ratio": options.mamba_full_memory_ratio,
        "slots": options.max_mamba_cache_size if model.linear else None,
    }


def _page(options: Options, model: Model, rules: Rules) -> int:
    """Tokens of a page; trtllm_mha takes only some sizes (_mla_backend_page_constraints; server_args.py:1893-1908 in 0.5.9)."""
    page = options.page_size or 1
    if rules.no_buffer_page_one and model.linear and not options.disable_radix_cache and options.mamba_radix_cache_strategy in ("auto", "no_buffer"):
        page = 1
    if options.attention_backend != "trtllm_mha":
        return page
    if model.linear and rules.auto_strategy == "no_buffer":
        reason = "trtllm_mha changes prefix cache and page size of models with state in a way that is not modelled for this version"
        raise KproError("option attention_backend", reason, REMEDY, field="attention_backend", value=options.attention_backend)
    sizes = (16, 32, 64) if rules.auto_strategy == "no_buffer" else (16, 32, 64, 128)
    return page if page in sizes else 64


def _limit(options: Options, algorithm: str | None, notes: list[str]) -> int | None:
    if options.max_running_requests is None and algorithm:
        notes.append(f"max_running_requests is set to {IMPLICIT_REQUESTS} by the engine, since speculation is on and no limit is given")
        return IMPLICIT_REQUESTS
    return options.max_running_requests


def _draft_numbers(options: Options, model: Model, algorithm: str | None, notes: list[str]) -> tuple[int, int, int]:
    """Steps, branches and draft tokens (_handle_eagle_family); zeros without speculation."""
    if not algorithm:
        return 0, 0, 0
    steps, topk, draft = options.speculative_num_steps, options.speculative_eagle_topk, options.speculative_num_draft_tokens
    if steps is None and topk is None and draft is None:
        return _AUTO_DRAFT.get(model.architecture, _AUTO_DRAFT_DEFAULT)
    if topk is None:
        topk = 1
        notes.append("speculative_eagle_topk is not given and taken as 1: the engine wants it together with the steps")
    if steps is None:
        steps = (draft or 2) - 1
        notes.append(f"speculative_num_steps is not given and taken as {steps}: the engine wants it together with the draft tokens")
    if topk == 1 and draft != steps + 1:
        if draft is not None:
            notes.append(f"speculative_num_draft_tokens becomes {steps + 1} (steps + 1), since topk is 1")
        draft = steps + 1
    if draft is None:
        raise KproError("option speculative_num_draft_tokens", f"it is needed with topk {topk}", field="speculative_num_draft_tokens")
    return steps, topk, draft


def _tier(options: Options, card_mib: int, rules: Rules) -> tuple[int, int]:
    """Chunked prefill size and largest decode graph batch, by the smallest card (_handle_gpu_memory_settings)."""
    _bound, chunk, low, high = next(tier for tier in rules.tiers if card_mib < tier[0])
    batch = low if options.tp_size < 4 else high
    limit = options.max_running_requests
    if rules.graph_capped_by_requests and limit is not None:
        batch = min(batch, limit)
    return options.chunked_prefill_size or chunk, options.cuda_graph_max_bs_decode or batch


def _prefill_sizes(options: Options, model: Model, chunk: int, rules: Rules) -> int:
    """Number of captured prefill graphs (_generate_piecewise_cuda_graph_tokens, generate_prefill_cuda_graph_batch_sizes)."""
    if not _prefill_graphs(options, model, rules):
        return 0
    largest = chunk
    if rules.prefill_graphs != "off" and options.max_total_tokens is not None:
        largest = min(largest, options.max_total_tokens)
    if rules.prefill_graph_context_cap and options.context_length is not None:
        largest = min(largest, options.context_length)
    return sum(len(range(first, min(last, largest) + 1, step)) for first, last, step in (*_PREFILL_SIZES, (4608, largest, 512)))


def _seen_multimodal(options: Options, model: Model) -> bool:
    """Whether the engine takes it as a model with images when it chooses graphs."""
    return model.multimodal and not options.language_model_only


def _prefill_graphs(options: Options, model: Model, rules: Rules) -> bool:
    if rules.prefill_graphs == "off":
        return options.enable_piecewise_cuda_graph
    if rules.breakable_graphs:
        off = options.disable_cuda_graph or options.disable_prefill_cuda_graph or options.attn_cp_size > 1
        off = off or (_seen_multimodal(options, model) and model.architecture not in rules.graphs_with_images)
        off = off or ("dp" in rules.no_graphs_for and options.enable_dp_attention)
        off = off or ("latent" in rules.no_graphs_for and bool(model.latent_dim))
        off = off or ("nemotron" in rules.no_graphs_for and model.architecture == "NemotronHForCausalLM")
        return not (off or ("kda" in rules.no_graphs_for and model.linear is not None and model.linear.kind == KDA))
    off = options.disable_piecewise_cuda_graph or options.enable_dp_attention or options.enable_torch_compile
    off = off or options.enable_hierarchical_cache or options.enable_deterministic_inference or model.multimodal
    off = off or options.attn_cp_size > 1 or model.architecture == "Qwen3NextForCausalLM"
    off = off or (rules.graph_option == "cuda_graph_max_bs_decode" and (options.disable_cuda_graph or options.disable_prefill_cuda_graph))
    return not (off or (rules.prefill_graphs == "dense" and options.speculative_algorithm))


def _auto_fraction(options: Options, model: Model, card_mib: int, rules: Rules, chunk: int, batch: int, prefill: int) -> float:
    """The fraction that the engine chooses itself (_handle_gpu_memory_settings, adjust_mem_fraction_for_vlm)."""
    if model.latent_dim and not rules.breakable_graphs:
        raise KproError("option mem_fraction_static", "the automatic value is not modelled for latent attention in this version", "Give the fraction")
    groups = attention_dp(options)
    decode_off = not rules.idle_graphs_reserved and (options.disable_cuda_graph or options.disable_decode_cuda_graph)
    reserve = 512.0 + 1.5 * max(chunk if chunk > 0 else options.max_prefill_tokens, 2048) + 128.0 * options.tp_size
    reserve += 0 if decode_off else 2 * batch
    if options.enable_dp_attention or groups > 1:
        reserve += 3 * batch * groups + (1.5 * batch * groups if batch > 300 else 0)
    reserve += 8 * prefill if not model.latent_dim else 1536.0 * _prefill_graphs(options, model, rules)
    if card_mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    if options.speculative_algorithm:
        reserve += rules.eagle_mib
    fraction = round((card_mib - reserve) / card_mib, 3)
    if _with_vision(options, model) and model.vision_complexity:
        fraction *= 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (model.vision_complexity - 1.0)))
    return fraction


def _cache(
    options: Options,
    model: Model,
    algorithm: str | None,
    rules: Rules,
    environment: t.Mapping[str, t.Any],
    notes: list[str],
    refusals: list[str],
) -> tuple[str, bool, bool]:
    """State strategy, prefix cache and overlap (_handle_mamba_radix_cache; _mamba_radix_cache_resolution from 0.5.14 on)."""
    radix, overlap = not options.disable_radix_cache, not options.disable_overlap_schedule
    if model.linear and radix and options.enable_deterministic_inference:
        reason = "it may switch the prefix cache off, by the attention that the engine chooses, which is not modelled for models with state"
        raise KproError("option enable_deterministic_inference", reason, "Give disable_radix_cache too", field="enable_deterministic_inference")
    strategy = options.mamba_radix_cache_strategy
    if algorithm and rules.auto_strategy == "no_buffer":
        overlap = _spec_overlap(options, overlap, rules, environment, refusals)
    if model.linear is None:
        return "", radix, overlap
    if rules.auto_strategy == "no_buffer":
        return _cache_before_14(options, radix, overlap, algorithm, rules, notes, refusals)
    if not radix:
        return strategy, radix, overlap
    if strategy == "auto":
        paging = (options.page_size or 1) > 1
        strategy = "extra_buffer" if (overlap or paging) and options.linear_attn_backend == "triton" else "no_buffer"
        overlap = overlap and strategy == "extra_buffer"
    if strategy == "no_buffer":
        if overlap:
            refusals.append("no_buffer refuses the overlap schedule: give disable_overlap_schedule, or extra_buffer")
        if (options.page_size or 1) > 1:
            refusals.append(f"no_buffer takes only page_size 1, not {options.page_size}")
    else:
        _check_extra_buffer(options, strategy, overlap, refusals)
    return strategy, radix, overlap


def _spec_overlap(options: Options, overlap: bool, rules: Rules, environment: t.Mapping[str, t.Any], refusals: list[str]) -> bool:
    """The overlap schedule under speculation before 0.5.14 (_handle_speculative_decoding, _handle_eagle_family)."""
    branches = (options.speculative_eagle_topk or 1) > 1
    switched_on = switch(environment, "SGLANG_ENABLE_SPEC_V2", rules.spec_overlap_default)
    if rules.spec_decides_overlap:
        if switched_on and branches:
            refusals.append("SGLANG_ENABLE_SPEC_V2 takes only speculative_eagle_topk 1 in this version")
        return switched_on
    return overlap and switched_on and not (rules.spec_branches_need_no_overlap and branches)


def _check_extra_buffer(options: Options, strategy: str, overlap: bool, refusals: list[str]) -> None:
    if options.linear_attn_backend != "triton":
        refusals.append(f"{strategy} needs linear_attn_backend triton, not {options.linear_attn_backend}")
    _check_tracking(options, refusals)
    if strategy == "extra_buffer_lazy" and not overlap:
        refusals.append("extra_buffer_lazy needs the overlap schedule")


def _check_tracking(options: Options, refusals: list[str]) -> None:
    """Snapshots of the state have to fall on pages, and on the chunks of its kernels."""
    interval, draft, page = options.mamba_track_interval, options.speculative_num_draft_tokens or 0, options.page_size or 1
    if interval < draft:
        refusals.append(f"mamba_track_interval {interval} is below speculative_num_draft_tokens {draft}")
    if interval % page:
        refusals.append(f"mamba_track_interval {interval} is no multiple of page_size {page}")
    if max(_STATE_CHUNK, page) % min(_STATE_CHUNK, page):
        refusals.append(f"page_size {page} neither divides {_STATE_CHUNK} nor is a multiple of it, which the state's kernels need")


def _cache_before_14(
    options: Options, radix: bool, overlap: bool, algorithm: str | None, rules: Rules, notes: list[str], refusals: list[str]
) -> tuple[str, bool, bool]:
    strategy = "no_buffer" if options.mamba_radix_cache_strategy == "auto" else options.mamba_radix_cache_strategy
    if strategy != "no_buffer":
        if strategy == "extra_buffer_lazy" and (rules.lazy_buffer == "never" or algorithm):
            refusals.append(f"extra_buffer_lazy is not taken{' with speculation' if rules.lazy_buffer != 'never' else ''} in this version: give extra_buffer")
        _check_tracking(options, refusals)
        if not radix and not rules.extra_buffer_without_radix:
            refusals.append(f"{strategy} refuses disable_radix_cache in this version: give no_buffer")
        return strategy, radix, overlap
    if radix and not (algorithm and rules.spec_radix == "disable") and (options.page_size or 1) > 1 and not rules.no_buffer_page_one:
        # MambaRadixCache asserts it when it is made, after the pools.
        refusals.append(f"no_buffer with the prefix cache takes only page_size 1 in this version, not {options.page_size}: give extra_buffer")
    if radix and not algorithm:
        return strategy, radix, False
    if radix and rules.spec_radix == "disable":
        notes.append("the prefix cache is switched off by the engine: speculation with no_buffer")
        return strategy, False, overlap
    if radix:
        refusals.append("speculation with no_buffer refuses the prefix cache in this version: give disable_radix_cache or extra_buffer")
    return strategy, radix, overlap


def _slots_per_request(strategy: str, radix: bool, overlap: bool, algorithm: str | None, rules: Rules) -> int:
    """Slots of state that one request takes (_calculate_mamba_ratio)."""
    if not radix:
        return 1
    if not strategy.startswith("extra_buffer"):
        return _SLOTS_PER_REQUEST
    if rules.spec_ratio_is_four:
        return _SLOTS_PER_REQUEST + (1 if algorithm else 2)
    return _SLOTS_PER_REQUEST + (2 if overlap and strategy == "extra_buffer" else 1)


def _context(options: Options, model: Model, environment: t.Mapping[str, t.Any], refusals: list[str]) -> int:
    context = options.context_length or model.max_position
    if context > model.max_position and not switch(environment, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", False):
        refusals.append(f"context_length {context} is above the model's {model.max_position}")
    return context


def _kv_bytes(options: Options, model: Model) -> int:
    if options.kv_cache_dtype == "auto" and model.scheme.cache:
        return 1 if model.scheme.cache == "fp8" else 2
    if options.kv_cache_dtype == "auto" and model.quantization.startswith("modelopt"):
        reason = "the checkpoint may bring its own cache quantisation, so that 'auto' is not modelled"
        raise KproError("option kv_cache_dtype", reason, "Give fp8_e4m3 or bfloat16", field="kv_cache_dtype")
    return 1 if options.kv_cache_dtype.startswith("fp8") else 2


def _ssm_dtype(options: Options, model: Model, environment: t.Mapping[str, t.Any]) -> str:
    """The option reaches the engine as an environment variable, which wins over the config (configs/mamba_utils.py:47-105)."""
    from_environment = str(environment.get("SGLANG_MAMBA_SSM_DTYPE", ""))
    return options.mamba_ssm_dtype or (from_environment if from_environment in DTYPE_BYTES else "") or model.ssm_dtype


def _multimodal_mib(options: Options, with_vision: bool, rules: Rules, environment: t.Mapping[str, t.Any]) -> int:
    """Kept back for multimodal features (mm_runtime_reservation_gb)."""
    if not (with_vision and rules.multimodal_mib):
        return 0
    transport = options.mm_feature_transport
    if transport is None and switch(environment, "SGLANG_USE_CUDA_IPC_TRANSPORT", False):
        transport = "cuda_ipc"
    cache = int(environment.get("SGLANG_VLM_CACHE_SIZE_MB", rules.multimodal_mib))
    return cache + (int(environment.get("SGLANG_MM_FEATURE_CACHE_MB", 1024)) if transport in ("cuda_ipc", "cuda_vmm") else 0)
