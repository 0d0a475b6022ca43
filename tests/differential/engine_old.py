# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of 0.5.9 and 0.5.10.post1: its own functions, in its own order, out of the wheel."""

from __future__ import annotations

import ast
import types
import typing as t

import stubs
from cases import Answer, Case, has_families
from wheels import Wheel

from ansible_collections.kpro.llm.plugins.module_utils._vram.families import KDA

_ARGS = "server_args.py"
_POOL = "model_executor/model_runner_kv_cache_mixin.py"
_SETTINGS = (
    "_handle_missing_default_values",
    "_handle_gpu_memory_settings",
    "_generate_cuda_graph_batch_sizes",
    "_generate_piecewise_cuda_graph_tokens",
    "_handle_mamba_radix_cache",
    "_handle_speculative_decoding",
    "adjust_mem_fraction_for_vlm",
    "enable_mamba_extra_buffer",
    "_handle_page_size",
)
_DTYPES = {"fp8_e4m3": stubs.FLOAT8}
_DEFAULTS = {
    "mamba_scheduler_strategy": "auto",
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "max_prefill_tokens": 16384,
    "mamba_full_memory_ratio": 0.9,
    "mamba_track_interval": 256,
    "disable_cuda_graph_padding": False,
    "enable_piecewise_cuda_graph": False,
    "disable_piecewise_cuda_graph": False,
    "language_only": False,
    "device": "cuda",
    "model_path": "model",
    "moe_runner_backend": "auto",
    "moe_a2a_backend": "none",
    "cpu_offload_gb": 0,
    "attn_cp_size": 1,
    "disaggregation_mode": "null",
    "random_seed": 1,
    "mm_process_config": {},
    "linear_attn_decode_backend": "triton",
    "load_format": "auto",
    "attention_backend": "flashinfer",  # what _handle_attention_backend_compatibility has chosen by then on an A6000
}


class OldEngine:
    """Runs the extracted functions for one case after the other."""

    def __init__(self, wheel: Wheel) -> None:
        self.version = wheel.version
        ten = self.version.startswith("0.5.10")
        settings = _SETTINGS + (("_handle_piecewise_cuda_graph",) if ten else ())
        self._envs = stubs.Variables()
        # What the prefix cache of models with state asserts when it is made, after the pools.
        self._page_one = "Page size must be 1 for MambaRadixCache v1" in wheel.source("mem_cache/mamba_radix_cache.py")
        no = {name: lambda: False for name in ("is_sm100_supported", "is_hip", "is_npu", "is_cpu", "is_mps", "is_xpu")}
        no |= {"get_bool_env_var": lambda *_: False, "check_gguf_file": lambda _path: False, "is_cuda": lambda: True}
        names = stubs.namespace(envs=self._envs, FLA_CHUNK_SIZE=64, random=None, **no)
        stubs.define(names, wheel.nodes(_ARGS, ["auto_choose_speculative_params"]))
        self._settings = stubs.class_of(names, wheel.nodes(_ARGS, settings, "ServerArgs"))
        self._pool = self._pool_class(wheel, ten)
        self._state = state_functions(wheel, self._envs)
        piecewise = wheel.nodes("configs/model_config.py", ["piecewise_cuda_graph_disabled_model_archs"]) if ten else []
        self._no_prefill_graphs = stubs.define(stubs.namespace(), piecewise).get("piecewise_cuda_graph_disabled_model_archs", [])

    def _pool_class(self, wheel: Wheel, ten: bool) -> type:
        self._memory = types.SimpleNamespace(free_gib=0.0, attention_tp=1)
        group = types.SimpleNamespace(world_size=1, cpu_group=None)
        names = stubs.namespace(
            get_available_gpu_memory=lambda *_, **__: self._memory.free_gib,
            get_world_group=lambda: group,
            get_attention_tp_size=lambda: self._memory.attention_tp,
        )
        constants = [f"MAMBA_CACHE_{name}" for name in ("SIZE_MAX_RUNNING_REQUESTS_RATIO", "V2_ADDITIONAL_RATIO_OVERLAP", "V2_ADDITIONAL_RATIO_NO_OVERLAP")]
        stubs.define(names, wheel.nodes(_POOL, [*constants, *(["MemoryPoolConfig"] if ten else [])]))
        methods = ["get_cell_size_per_token", "profile_max_num_token", "handle_max_mamba_cache"]
        if ten:
            methods += ["_calculate_mamba_ratio", "_resolve_token_capacity", "_resolve_max_num_reqs", "_resolve_memory_pool_config"]
        nodes = wheel.nodes(_POOL, methods, "ModelRunnerKVCacheMixin")
        if not ten:
            nodes.append(_until_the_error(wheel.nodes(_POOL, ["init_memory_pool"], "ModelRunnerKVCacheMixin")[0]))
        return stubs.class_of(names, nodes)

    def answer(self, case: Case) -> Answer:
        """Return what the engine's functions give."""
        args = self._server_args(case)
        try:
            self._resolve(args, case)
        except (ValueError, AssertionError, TypeError):
            return Answer("options")
        if case.model.linear and not args.disable_radix_cache and args.mamba_scheduler_strategy == "no_buffer" and (args.page_size or 1) > 1:
            assert self._page_one
            return Answer("options")
        state = self._state(case, args) if case.model.linear else None
        start = (args.mem_fraction_static, args.chunked_prefill_size, args.cuda_graph_max_bs)
        try:
            requests, tokens = self._size(args, case, state)
        except RuntimeError:
            return Answer("sizing", *start, state_bytes=state)
        if requests <= 0:
            return Answer("sizing", *start, state_bytes=state)  # tp_worker.py asserts max_running_requests > 0
        return Answer("", *start, args.max_mamba_cache_size if state else None, requests, tokens, state)

    def _server_args(self, case: Case) -> t.Any:
        args = self._settings()
        model = _model_config(case, case.model.architecture in self._no_prefill_graphs)
        values = dict.fromkeys(_OPTIONAL) | _DEFAULTS | case.args
        for name, value in values.items():
            if name != "enable_mamba_extra_buffer":
                setattr(args, name, value)
        args.get_model_config = lambda: model
        args.use_mla_backend = lambda: False
        switch = case.environment.get("SGLANG_ENABLE_SPEC_V2", "0") == "1"
        self._envs.__dict__["_values"].update(SGLANG_ENABLE_SPEC_V2=stubs.Variable(switch), SGLANG_SYMM_MEM_PREALLOC_GB_SIZE=stubs.Variable(4))
        return args

    def _resolve(self, args: t.Any, case: Case) -> None:
        """The part of ServerArgs.__post_init__ that decides about memory, in its order."""
        args._handle_missing_default_values()
        if self.version.startswith("0.5.10"):
            args._handle_piecewise_cuda_graph()
        args._handle_gpu_memory_settings(case.card_mib)
        if case.model.linear:
            args._handle_mamba_radix_cache(
                model_arch=case.model.architecture,
                support_mamba_cache=True,
                support_mamba_cache_extra_buffer=True,
                sm100_default_attention_backend="triton",
            )
        args._handle_page_size()
        runner = types.SimpleNamespace
        with stubs.modules(layers__moe__utils={"MoeRunnerBackend": lambda _name: runner(is_flashinfer_trtllm=lambda: False)}):
            args._handle_speculative_decoding()
        if case.args.get("context_length", 0) > case.model.max_position:
            raise ValueError("context_length above the model's")

    def _size(self, args: t.Any, case: Case, state: int | None) -> tuple[int, int]:
        groups = args.dp_size if args.enable_dp_attention else 1
        self._memory.free_gib, self._memory.attention_tp = case.after_gib, args.tp_size // groups
        runner = self._pool()
        model = case.model
        runner.device, runner.gpu_id, runner.is_draft_worker, runner.use_mla_backend = "cuda", 0, False, False
        runner.server_args, runner.mem_fraction_static = args, args.mem_fraction_static
        runner.kv_cache_dtype = _DTYPES.get(case.args.get("kv_cache_dtype", ""), stubs.BFLOAT16)
        runner.dp_size, runner.pp_size, runner.is_hybrid_swa = groups, 1, False
        runner.start_layer, runner.end_layer, runner.num_effective_layers = 0, model.layers, model.layers
        runner.spec_algorithm = types.SimpleNamespace(is_none=lambda: args.speculative_algorithm is None)
        runner.model_config = types.SimpleNamespace(
            get_num_kv_heads=lambda split: max(1, model.kv_heads // split),
            head_dim=model.head_dim,
            v_head_dim=model.head_dim,
            is_hybrid_swa=False,
            context_len=args.context_length or model.max_position,
            hf_config=None,
        )
        runner.mambaish_config = (
            types.SimpleNamespace(
                full_attention_layer_ids=list(range(model.full_layers)),
                mamba2_cache_params=types.SimpleNamespace(mamba_cache_per_req=state),
            )
            if state
            else None
        )
        if self.version.startswith("0.5.10"):
            config = runner._resolve_memory_pool_config(case.before_gib)
            return config.max_running_requests, config.max_total_num_tokens
        return runner.init_memory_pool(case.before_gib), runner.max_total_num_tokens


_OPTIONAL = (
    "context_length",
    "max_running_requests",
    "max_total_tokens",
    "max_mamba_cache_size",
    "mem_fraction_static",
    "page_size",
    "chunked_prefill_size",
    "cuda_graph_max_bs",
    "cuda_graph_bs",
    "piecewise_cuda_graph_max_tokens",
    "piecewise_cuda_graph_tokens",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_moe_runner_backend",
    "speculative_draft_model_quantization",
    "quantization",
    "decode_attention_backend",
    "prefill_attention_backend",
    "enable_mixed_chunk",
    "enable_symm_mem",
    "tokenizer_path",
    "served_model_name",
    "enforce_piecewise_cuda_graph",
    "enable_torch_compile",
    "lora_paths",
    "enable_lora",
    "dllm_algorithm",
    "enable_hierarchical_cache",
    "enable_deterministic_inference",
    "enable_eplb",
    "expert_distribution_recorder_mode",
    "disable_cuda_graph",
    "revision",
    "speculative_accept_threshold_acc",
    "speculative_accept_threshold_single",
)


def _model_config(case: Case, no_prefill_graphs: bool) -> t.Any:
    complexity = case.model.vision_complexity
    vision = types.SimpleNamespace(hidden_size=1024, num_hidden_layers=24 * complexity) if complexity else None
    hf_config = types.SimpleNamespace(architectures=[case.model.architecture], vision_config=vision)
    return types.SimpleNamespace(is_multimodal=case.model.multimodal, hf_config=hf_config, is_piecewise_cuda_graph_disabled_model=no_prefill_graphs)


def _until_the_error(function: ast.stmt) -> ast.stmt:
    """init_memory_pool up to its "Not enough memory" error; what follows only allocates."""
    assert isinstance(function, ast.FunctionDef)
    end = next(index for index, node in enumerate(function.body) if "Not enough memory" in ast.unparse(node))
    function.body = [*function.body[: end + 1], ast.Return(ast.Name("max_num_reqs", ast.Load()))]
    return function


def state_functions(wheel: Wheel, envs: stubs.Variables) -> t.Callable[[Case, t.Any], int]:
    """Bytes of state by configs/mamba_utils.py."""
    names = stubs.namespace(envs=envs)
    wanted = ["extra_groups_for_head_shards", "Mamba2StateDType", "mamba2_state_dtype"]
    base = ["BaseLinearStateParams"] if "class BaseLinearStateParams" in wheel.source("configs/mamba_utils.py") else []
    stubs.define(names, wheel.nodes("configs/mamba_utils.py", [*wanted, *base, "Mamba2StateShape", "Mamba2CacheParams"]))

    if has_families(wheel.version):
        stubs.define(names, wheel.nodes("configs/mamba_utils.py", ["KimiLinearStateShape", "KimiLinearCacheParams"]))

    def state(case: Case, args: t.Any) -> int:
        linear = case.model.linear
        assert linear is not None
        if linear.kind == KDA:
            return kimi_state(case, args)
        groups = case.args.get("dp_size", 1) if args.enable_dp_attention else 1
        shape = names["Mamba2StateShape"].create(
            tp_world_size=args.tp_size // groups,
            intermediate_size=linear.value_dim * linear.value_heads,
            n_groups=linear.key_heads,
            num_heads=linear.value_heads,
            head_dim=linear.value_dim,
            state_size=linear.key_dim,
            conv_kernel=linear.kernel,
        )
        envs.__dict__["_values"].update(
            SGLANG_MAMBA_SSM_DTYPE=stubs.Variable(case.args.get("mamba_ssm_dtype")),
            SGLANG_MAMBA_CONV_DTYPE=stubs.Variable("bfloat16"),
        )
        dtype = names["mamba2_state_dtype"](types.SimpleNamespace(mamba_ssm_dtype=case.model.ssm_dtype))
        params = names["Mamba2CacheParams"](shape=shape, layers=list(range(linear.layers)), dtype=dtype)
        return int(params.mamba_cache_per_req)

    def kimi_state(case: Case, args: t.Any) -> int:
        linear = case.model.linear
        assert linear is not None
        split = args.tp_size // (case.args.get("dp_size", 1) if args.enable_dp_attention else 1)
        shape = names["KimiLinearStateShape"].create(
            tp_world_size=split, num_heads=linear.value_heads, head_dim=linear.value_dim, conv_kernel_size=linear.kernel
        )
        envs.__dict__["_values"].update(
            SGLANG_MAMBA_SSM_DTYPE=stubs.Variable(case.args.get("mamba_ssm_dtype")), SGLANG_MAMBA_CONV_DTYPE=stubs.Variable("bfloat16")
        )
        dtype = names["mamba2_state_dtype"](None)
        return int(names["KimiLinearCacheParams"](shape=shape, layers=list(range(linear.layers)), dtype=dtype).mamba_cache_per_req)

    return state
