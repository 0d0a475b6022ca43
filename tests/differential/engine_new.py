# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of 0.5.23 (and a newer one of the same make): its own functions, in its own order, out of the wheel."""

from __future__ import annotations

import types
import typing as t

import stubs
from cases import Answer, Case
from engine_old import state_functions
from wheels import Wheel

from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import release_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.families import KDA

_KVC = "mem_cache/kv_cache_configurator.py"
_PC = "model_executor/pool_configurator.py"
_DEFAULTS = {
    "mamba_radix_cache_strategy": "auto",
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "attn_dp_size": 1,
    "max_prefill_tokens": 16384,
    "mamba_full_memory_ratio": 0.9,
    "mamba_track_interval": 256,
    "disable_cuda_graph_padding": False,
    "language_only": False,
    "language_model_only": False,
    "device": "cuda",
    "model_path": "model",
    "moe_a2a_backend": "none",
    "disaggregation_mode": "null",
    "linear_attn_backend": "triton",
    "disable_cuda_graph": False,
    "disable_prefill_cuda_graph": False,
    "disable_decode_cuda_graph": False,
    "dcp_size": 1,
    "enable_two_batch_overlap": False,
    "attn_cp_size": 1,
    "nnodes": 1,
    "attention_backend": "flashinfer",
    "swa_full_tokens_ratio": 0.8,
    "enable_unified_memory": False,
    "speculative_adaptive": False,
    "enable_hisparse": False,
    "encoder_only": False,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "speculative_use_rejection_sampling": False,
}


def _declare(args: t.Any, _source: str, **values: t.Any) -> None:
    for name, value in values.items():
        setattr(args, name, value)


class NewEngine:
    """Runs the extracted functions for one case after the other."""

    def __init__(self, wheel: Wheel) -> None:
        self.version = wheel.version
        self._envs = stubs.Variables(
            SGLANG_VLM_CACHE_SIZE_MB=100, SGLANG_MM_FEATURE_CACHE_MB=1024, SGLANG_SIMULATE_ACC_LEN=-1.0, SGLANG_SWA_EVICTION_INTERVAL=128
        )
        self._now = types.SimpleNamespace(args=None, case=None, card_mib=0)
        self._graphs = _graph_module(wheel)
        self._names = self._argument_functions(wheel)
        self._configurator, self._pool_names = self._pool_functions(wheel)
        self._state = state_functions(wheel, self._envs)

    def _argument_functions(self, wheel: Wheel) -> dict[str, t.Any]:
        supported = _multimodal_archs(wheel)
        platform = types.SimpleNamespace(is_hip=False, is_xpu=False, is_cuda=True, is_sm100=False, is_musa=False)
        names = stubs.namespace(
            envs=self._envs,
            resolving_view=lambda args: args,
            resolved_view=lambda args: args,
            declare_resolution=_declare,
            model_config_of=lambda args: args.model_config,
            use_mla_backend=lambda _args: bool(self._now.case.model.latent_dim),
            get_platform=lambda: platform,
            get_device_memory_capacity=lambda _device: self._now.card_mib,
            post_capture_kv_sizing_planned=lambda _args: False,
            attn_dp_enabled_of=lambda args: args.enable_dp_attention,
            attention_backends_of=lambda args: (args.attention_backend,) * 2,
            register_post_process=lambda function: function,
            is_sm90_supported=lambda: False,
            _handle_iquest_q1_mtp_draft=lambda _args: None,
            _check_oot_speculative_algorithm=lambda **_: None,
            run_hook=lambda hook, args: hook(args),
            supported_archs=supported,
            current_platform=types.SimpleNamespace(is_out_of_tree=lambda: False),
            **self._graphs,
        )
        for path, wanted in _ARGUMENT_FUNCTIONS.items():
            stubs.define(names, _nodes(wheel, path, [name for name in wanted if name not in names]))
        return names

    def _pool_functions(self, wheel: Wheel) -> tuple[type, dict[str, t.Any]]:
        bag = {name: (lambda: self._now.args) for name in ("get_schedule", "get_memory", "get_spec", "get_mm", "get_disagg", "get_model")}
        context = types.SimpleNamespace(override=lambda _name, **values: _declare(self._now.args, "", **values))
        names = stubs.namespace(
            envs=self._envs,
            **bag,
            get_context=lambda: context,
            get_world_group=lambda: types.SimpleNamespace(world_size=1, cpu_group=None),
            get_attention_tp_size=lambda: self._now.parallel.attn_tp_size,
            get_server_args=lambda: self._now.args,
            mamba_extra_buffer_enabled=lambda *_: self._now.execution.mamba.enable_mamba_extra_buffer,
            mamba_extra_buffer_lazy_enabled=lambda *_: self._now.execution.mamba.enable_mamba_extra_buffer_lazy,
            get_parallel=lambda: self._now.parallel,
            get_exec=lambda: self._now.execution,
            get_available_gpu_memory=lambda *_, **__: self._now.case.after_gib,
            Backend=self._graphs["Backend"],
            _pd_prefill_skips_mamba_spec_state=lambda: False,
            mambaish_config=lambda config: config.mambaish,
            AttentionArch=types.SimpleNamespace(MLA="MLA"),
            ceil_align=lambda number, by: -(-number // by) * by,
            compute_page_shard_scratch_bytes=lambda *_, **__: 0,
        )
        stubs.define(names, _nodes(wheel, "mem_cache/allocation_sizing.py", ["get_mamba_tracking_slots"]))
        constants = ["MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO", "MAMBA_CACHE_BASE_RATIO_DROP_ON_SKIP", *_RATIOS]
        stubs.define(
            names, _nodes(wheel, _KVC, [*constants, "MAMBA_CACHE_V2_ADDITIONAL_RATIO_NO_BUFFER", "mm_runtime_reservation_gb", "calculate_mla_kv_cache_dim"])
        )
        stubs.define(names, _nodes(wheel, _PC, ["MemoryPoolConfig", "_dflash_draft_cell_size", "MemoryPoolConfigurator", "DefaultPoolConfigurator", *_WINDOWS]))
        methods = [
            "_profile_available_bytes",
            "_calculate_mamba_ratio",
            "_apply_token_constraints",
            "resolve_max_num_reqs",
            "_resolve_memory_pool_config",
            "config_from_budget",
            "_handle_max_mamba_cache",
        ]
        return stubs.class_of(names, _nodes(wheel, _KVC, methods, "KVCacheConfigurator")), names

    def answer(self, case: Case) -> Answer:
        """Return what the engine's functions give."""
        args = self._server_args(case)
        try:
            self._resolve(args, case)
        except (ValueError, AssertionError, TypeError):
            return Answer("options")
        state = self._state(case, args) if case.model.linear else None
        start = (args.mem_fraction_static, args.chunked_prefill_size, args.cuda_graph_config.decode.max_bs)
        try:
            config = self._size(args, case, state)
        except (RuntimeError, ValueError):
            return Answer("sizing", *start, state_bytes=state)
        if config.max_running_requests <= 0:
            return Answer("sizing", *start, state_bytes=state)  # tp_worker.py asserts max_running_requests > 0
        slots = args.max_mamba_cache_size if state else None
        return Answer("", *start, slots, config.max_running_requests, config.max_total_num_tokens, state)

    def _server_args(self, case: Case) -> t.Any:
        values = _DEFAULTS | case.args
        args = stubs.Bag(**values)
        if args.enable_dp_attention:
            # From 0.5.22 on parallel_hook.handle_deprecated_dp_attention renames it; before, both say the same.
            args.attn_dp_size, args.dp_size = args.dp_size, 1 if release_of(self.version) >= (0, 5, 22) else args.dp_size
        complexity = case.model.vision_complexity
        vision = types.SimpleNamespace(hidden_size=1024, num_hidden_layers=24 * complexity) if complexity else None
        hf_config = types.SimpleNamespace(architectures=[case.model.architecture], vision_config=vision, layer_types=[])
        multimodal = case.model.multimodal and not args.language_model_only
        args.model_config = types.SimpleNamespace(
            is_multimodal=multimodal,
            hf_config=hf_config,
            is_multimodal_piecewise_cuda_graph_supported=False,
            is_piecewise_cuda_graph_disabled_model=False,
            is_multimodal_breakable_cuda_graph_supported=case.model.architecture in self._names["supported_archs"],
        )
        self._now.args, self._now.case, self._now.card_mib = args, case, case.card_mib
        return args

    def _resolve(self, args: t.Any, case: Case) -> None:
        """The part of run_resolution_pipeline that decides about memory, in its order."""
        names = self._names
        names["parse_cuda_graph_config"](args)
        with stubs.modules(
            configs__model_config={"is_deepseek_v4": lambda _c: False, "uses_kda_attention": lambda _c: _is_kda(case.model)},
            layers__cp__bcg={"supports_prefill_cp_bcg": lambda _a: False},
            arg_groups__cuda_graph_hook=names,
            arg_groups__model_overrides__qwen3_vl=names,
            configs__linear_attn_model_registry={"get_linear_attn_spec": lambda _c: None, "get_linear_attn_spec_by_arch": lambda _a: None},
            speculative__spec_info={"SpeculativeAlgorithm": types.SimpleNamespace(from_string=lambda _n: None)},
            model_executor__cuda_graph_config=self._graphs,
        ):
            names["apply_cuda_graph_compatibility"](args)
            wanted = names["handle_gpu_memory_settings"].__code__.co_argcount
            names["handle_gpu_memory_settings"](*(args, case.card_mib)[:wanted])
            if case.model.linear:
                _declare(args, "", **names["_mamba_radix_cache_resolution"](args))
                self._validate_cache(args)
            args.page_size = args.page_size or 1  # overrides._page_size_default on CUDA
            if args.speculative_algorithm:
                args.speculative_algorithm = "EAGLE"  # _resolve_speculative_algorithm_alias without a Gemma4 draft
                names["_handle_eagle_family"](args)
        if case.args.get("context_length", 0) > case.model.max_position:
            raise ValueError("context_length above the model's")

    def _validate_cache(self, args: t.Any) -> None:
        if args.disable_radix_cache:
            return
        if args.mamba_radix_cache_strategy.startswith("extra_buffer"):
            check = self._names["validate_mamba_extra_buffer"]
            by_name = "model_arch" in check.__code__.co_varnames[:2]
            hf_config = args.model_config.hf_config
            check(args, hf_config.architectures[0] if by_name else hf_config, mamba_cache_chunk_size_of=lambda: 64)
        else:
            self._names["validate_mamba_no_buffer"](args, args.model_config.hf_config.architectures[0])

    def _size(self, args: t.Any, case: Case, state: int | None) -> t.Any:
        self._now.parallel, self._now.execution = _processes(args), _execution(args)
        pool = self._configurator()
        for name, value in (_runner(args, case) | _model(args, case, state)).items():
            setattr(pool, name, value)
        default = self._pool_names["DefaultPoolConfigurator"]
        default._compute_qsa_cell_size = staticmethod(lambda **_: 0)
        chosen = default
        if case.model.window:
            capped = self._pool_names.get("SWARequestCapPoolConfigurator")
            chosen = capped if capped and capped.is_applicable(pool) else self._pool_names["HybridSWAPoolConfigurator"]
        with stubs.modules(
            model_executor__pool_configurator={"create_memory_pool_configurator": chosen},
            mem_cache__kv_cache_configurator={"calculate_mla_kv_cache_dim": self._pool_names.get("calculate_mla_kv_cache_dim")},
            layers__cp__utils={"get_glm_dsa_layer_split_effective_num_layers": lambda _kvc, layers: layers},
        ):
            return pool._resolve_memory_pool_config(case.before_gib)


def _processes(args: t.Any) -> t.Any:
    group = types.SimpleNamespace(cpu_group=None)
    split = args.tp_size // args.attn_dp_size
    return types.SimpleNamespace(launch_world_size=1, world_group=group, pp_size=1, attn_tp_size=split, attn_dcp_size=1)


def _execution(args: t.Any) -> t.Any:
    strategy = "" if args.disable_radix_cache else args.mamba_radix_cache_strategy
    mamba = types.SimpleNamespace(
        enable_linear_replayssm_spec=False,
        enable_mamba_extra_buffer=strategy.startswith("extra_buffer"),
        enable_mamba_extra_buffer_lazy=strategy == "extra_buffer_lazy",
        linear_replayssm_cache_len=16,
    )
    return types.SimpleNamespace(mamba=mamba, graph=types.SimpleNamespace(cuda_graph_config=args.cuda_graph_config))


def _is_kda(model: t.Any) -> bool:
    return model.linear is not None and model.linear.kind == KDA


def _runner(args: t.Any, case: Case) -> dict[str, t.Any]:
    spec = args.speculative_algorithm is not None
    algorithm = types.SimpleNamespace(is_none=lambda: not spec, is_eagle=lambda: spec, is_standalone=lambda: False, is_dflash_family=lambda: False)
    return {
        "device": "cuda",
        "gpu_id": 0,
        "post_capture_kv_active": False,
        "pp_size": 1,
        "attn_dp_size": args.attn_dp_size,
        "ps": types.SimpleNamespace(attn_dp_size=args.attn_dp_size, pp_size=1),
        "spec_algorithm": algorithm,
        "spec_aux_config": types.SimpleNamespace(eagle_draft_num_layers=case.model.mtp_layers),
        "fused_entry_bytes": lambda _kind: None,
        "is_draft_worker": False,
        "use_mla_backend": bool(case.model.latent_dim),
        "is_hybrid_swa": case.model.window is not None,
        "sliding_window_size": case.model.window.tokens if case.model.window else None,
        "page_size": args.page_size or 1,
        "kv_cache_dtype_str": case.args.get("kv_cache_dtype", "auto"),
        "kv_cache_dtype": stubs.FLOAT8 if case.args.get("kv_cache_dtype") == "fp8_e4m3" else stubs.BFLOAT16,
        "server_args": args,
    }


def _model(args: t.Any, case: Case, state: int | None) -> dict[str, t.Any]:
    model = case.model
    hybrid = None
    if state and model.linear:
        params = types.SimpleNamespace(mamba_cache_per_req=state, layers=[0] * model.linear.layers)
        hybrid = types.SimpleNamespace(full_attention_layer_ids=list(range(model.full_layers)), mamba2_cache_params=params)
    config = types.SimpleNamespace(
        context_len=args.context_length or model.max_position,
        is_multimodal=args.model_config.is_multimodal,
        mambaish=hybrid,
        hf_config=None,
        get_num_kv_heads=lambda split, _dcp=1: max(1, model.kv_heads // split),
        head_dim=model.head_dim,
        v_head_dim=model.head_dim,
        num_hidden_layers=model.layers,
        kv_lora_rank=model.latent_dim,
        qk_rope_head_dim=0,
        attention_arch="MHA",
        hf_text_config=None,
    )
    layers = types.SimpleNamespace(start_layer=0, end_layer=model.layers, num_effective_layers=model.layers)
    if model.window:
        window = model.window
        layers.full_attention_layer_ids = list(range(model.full_layers))
        layers.swa_attention_layer_ids = list(range(window.layers))
        config.get_swa_num_kv_heads = lambda split: max(1, window.kv_heads // split)
        config.swa_head_dim, config.swa_v_head_dim = window.head_dim, window.value_dim
        config.full_attention_layer_ids, config.swa_attention_layer_ids = layers.full_attention_layer_ids, layers.swa_attention_layer_ids
    return {
        "mambaish_config": hybrid,
        "hybrid_gdn_config": hybrid,
        "hybrid_kda_config": None,
        "extra_mamba_cache_bytes_per_req": 0,
        "layer_info": layers,
        "model_config": config,
    }


_WINDOWS = ["HybridSWAPoolConfigurator", "compute_swa_request_cap", "SWARequestCapPoolConfigurator"]
_RATIOS = [f"MAMBA_CACHE_V2_ADDITIONAL_RATIO_{name}" for name in ("OVERLAP", "OVERLAP_LAZY", "NO_OVERLAP")]
# Functions that a release between 0.5.19 and 0.5.23 brought.
_LATER = frozenset(
    {
        "_platform_supports_mamba_cache_extra_buffer",
        "_HOPPER_QWEN3_VL_TYPES",
        "expand_multimodal_decode_graph_to_running_limit",
        "large_hopper_qwen3_vl_model_type",
        "_should_auto_enable_hip_rejection_sampling",
        "_disable_overlap_schedule_for_cpu",
        "_handle_eagle_family",
        "_auto_choose_speculative_params",
        "get_mamba_tracking_slots",
        "validate_mamba_extra_buffer",
        "validate_mamba_no_buffer",
        "supports_mamba_cache_extra_buffer",
        "MAMBA_CACHE_BASE_RATIO_DROP_ON_SKIP",
        *_RATIOS,
        "compute_swa_request_cap",
        "SWARequestCapPoolConfigurator",
        "calculate_mla_kv_cache_dim",
        "_dflash_draft_cell_size",
        "_resolve_memory_pool_config",
        "config_from_budget",
        "disable_full_prefill_cudagraph_if_incompatible",
        "reserve_for_deepep_a2a_mb",
        "_DEFAULT_PP_PREFILL_CUDA_GRAPH_MAX_TOKENS",
    }
)


def _nodes(wheel: Wheel, path: str, wanted: t.Sequence[str], inside: str = "") -> list[t.Any]:
    """The named functions, without those that a later release brought: what asks for one that is missing fails when it runs."""
    try:
        there = wheel.names(path, inside)
    except KeyError:
        there = set()
    return wheel.nodes(path, [name for name in wanted if name in there or name not in _LATER], inside) if there else []


_ARGUMENT_FUNCTIONS: dict[str, list[str]] = {
    "arg_groups/cuda_graph_hook.py": [
        "parse_cuda_graph_config",
        "apply_cuda_graph_compatibility",
        "disable_breakable_cudagraph_if_incompatible",
        "disable_full_prefill_cudagraph_if_incompatible",
        "generate_prefill_cuda_graph_batch_sizes",
        "generate_decode_cuda_graph_batch_sizes",
        "generate_cpu_graph_batch_sizes",
    ],
    "arg_groups/model_overrides/qwen3_vl.py": [
        "_HOPPER_QWEN3_VL_TYPES",
        "large_hopper_qwen3_vl_model_type",
        "expand_multimodal_decode_graph_to_running_limit",
    ],
    "arg_groups/memory_hook.py": [
        "_DEFAULT_PP_PREFILL_CUDA_GRAPH_MAX_TOKENS",
        "handle_gpu_memory_settings",
        "reserve_for_graph_mb",
        "reserve_for_deepep_a2a_mb",
        "adjust_mem_fraction_for_vlm",
    ],
    "arg_groups/overrides.py": [
        "_MAMBA_RADIX_CACHE_ARCHS",
        "_MAMBA_EXTRA_BUFFER_ARCHS",
        "supports_mamba_cache_extra_buffer",
        "_mamba_radix_cache_resolution",
    ],
    "arg_groups/mamba_hook.py": ["_platform_supports_mamba_cache_extra_buffer", "validate_mamba_extra_buffer", "validate_mamba_no_buffer"],
    "arg_groups/speculative_hook.py": [
        "_should_auto_enable_hip_rejection_sampling",
        "_disable_overlap_schedule_for_cpu",
        "_auto_choose_speculative_params",
        "_handle_eagle_family",
    ],
}


def _graph_module(wheel: Wheel) -> dict[str, t.Any]:
    """model_executor/cuda_graph_config.py, which needs nothing but two small imports."""
    names = stubs.namespace()
    path = "model_executor/cuda_graph_config.py"
    wanted = [
        "Phase",
        "Backend",
        "ALLOWED_BACKENDS_PER_PHASE",
        "ALLOWED_KEYS_PER_PHASE",
        "PhaseConfig",
        "default_prefill_backend",
        "with_phase",
        "CudaGraphConfig",
        "default_cuda_graph_config",
        "_diff_phase",
    ]
    stubs.define(names, wheel.nodes(path, wanted))
    names["default_prefill_backend"] = lambda: names["Backend"].BREAKABLE  # what it answers on CUDA
    return {name: names[name] for name in wanted}


def _multimodal_archs(wheel: Wheel) -> list[str]:
    name = "multimodal_breakable_cuda_graph_supported_model_archs"
    return list(stubs.define(stubs.namespace(), wheel.nodes("configs/model_config.py", [name]))[name])
