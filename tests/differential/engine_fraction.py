# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The automatic fraction, chunk and decode batch of 0.5.11 to 0.5.18: the engine's own methods of its record of arguments."""

from __future__ import annotations

import types
import typing as t

import stubs
from cases import Case
from wheels import Wheel

_ARGS = "server_args.py"
_METHODS = (
    "_handle_missing_default_values",
    "_handle_piecewise_cuda_graph",
    "_handle_gpu_memory_settings",
    "_generate_cuda_graph_batch_sizes",
    "_generate_piecewise_cuda_graph_tokens",
    "_generate_decode_cuda_graph_batch_sizes",
    "_generate_prefill_cuda_graph_batch_sizes",
    "_generate_prefill_bs",
    "_generate_decode_bs",
    "_disable_tc_piecewise_cudagraph_if_incompatible",
    "_disable_breakable_cudagraph_if_incompatible",
    "_disable_full_prefill_cudagraph_if_incompatible",
    "reserve_for_graph_mb",
    "reserve_for_deepep_a2a_mb",
    "adjust_mem_fraction_for_vlm",
)


_PLATFORM = types.SimpleNamespace(
    is_out_of_tree=lambda: False,
    is_cuda=lambda: True,
    support_piecewise_cuda_graph=lambda: True,
    supports_piecewise_cuda_graph=lambda: True,
    is_mps=lambda: False,
)


class FractionEngine:
    """Runs the extracted methods for one case after the other."""

    def __init__(self, wheel: Wheel) -> None:
        self.version = wheel.version
        there = wheel.names(_ARGS, "ServerArgs")
        self._methods = [name for name in _METHODS if name in there]
        no = {name: lambda *_: False for name in ("is_sm100_supported", "is_hip", "is_npu", "is_cpu", "is_mps", "is_xpu", "is_musa", "is_sm90_supported")}
        platform = types.SimpleNamespace(is_hip=False, is_xpu=False, is_cuda=True, is_sm100=False, is_musa=False, is_npu=False, is_cpu=False, is_sm90=False)
        envs = stubs.Variables()
        names = stubs.namespace(
            envs=envs,
            random=None,
            current_platform=_PLATFORM,
            resolved_view=lambda view: view,
            attn_dp_enabled_of=lambda view: view.enable_dp_attention,
            is_cuda=lambda: True,
            get_bool_env_var=lambda *_: False,
            check_gguf_file=lambda _p: False,
            get_platform=lambda: platform,
            **no,
        )
        self._phases = "cuda_graph_config" if wheel.files("model_executor") and "model_executor/cuda_graph_config.py" in wheel.files("model_executor") else ""
        if self._phases:
            path = "model_executor/cuda_graph_config.py"
            wanted = [name for name in wheel.names(path) if name not in ("logger", "annotations")]
            bag = stubs.namespace()
            stubs.define(bag, wheel.nodes(path, sorted(wanted, key=lambda name: wheel.source(path).index(name))))
            if "default_prefill_backend" in bag:
                bag["default_prefill_backend"] = lambda: bag["Backend"].BREAKABLE
            self._graphs = bag
            names.update({name: bag[name] for name in wanted})
        else:
            self._graphs = {}
        self._names = names
        self._class = stubs.class_of(names, wheel.nodes(_ARGS, self._methods, "ServerArgs"))
        lists = ("piecewise_cuda_graph_disabled_model_archs", "multimodal_breakable_cuda_graph_supported_model_archs")
        known = wheel.names("configs/model_config.py")
        self._lists = {name: stubs.define(stubs.namespace(), wheel.nodes("configs/model_config.py", [name]))[name] if name in known else [] for name in lists}

    def answer(self, case: Case) -> tuple[t.Any, ...]:
        """Return fraction, chunk and decode batch."""
        values = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "max_prefill_tokens": 16384, "device": "cuda", "model_path": "model", "moe_a2a_backend": "none"}
        values |= {
            "disaggregation_mode": "null",
            "attn_cp_size": 1,
            "dcp_size": 1,
            "disable_cuda_graph_padding": False,
            "mm_process_config": {},
            "random_seed": 1,
            "ep_size": 1,
            "moe_dp_size": 1,
            "cpu_offload_gb": 0,
            "ep_num_redundant_experts": 0,
            "nnodes": 1,
            "max_lora_rank": 0,
        }
        args = type("Args", (self._class, stubs.Bag), {})(**(values | case.args))
        complexity = case.model.vision_complexity
        vision = types.SimpleNamespace(hidden_size=1024, num_hidden_layers=24 * complexity) if complexity else None
        architecture = case.model.architecture
        config = types.SimpleNamespace(
            is_multimodal=case.model.multimodal and not args.language_model_only,
            hf_config=types.SimpleNamespace(architectures=[architecture], vision_config=vision, layer_types=[]),
            is_piecewise_cuda_graph_disabled_model=architecture in self._lists["piecewise_cuda_graph_disabled_model_archs"],
            is_multimodal_piecewise_cuda_graph_supported=False,
            is_multimodal_breakable_cuda_graph_supported=architecture in self._lists["multimodal_breakable_cuda_graph_supported_model_archs"],
        )
        args.get_model_config = lambda: config
        args.use_mla_backend = lambda: bool(case.model.latent_dim)
        args._resolved = lambda: args
        args.post_capture_kv_sizing_planned = lambda: False
        args.enable_dp_attention = bool(args.enable_dp_attention)
        stand_ins: dict[str, dict[str, t.Any]] = {
            "arg_groups__overrides": {"resolved_view": lambda view: view, "attn_dp_enabled_of": lambda view: view.enable_dp_attention},
            "configs__model_config": {
                "is_deepseek_v4": lambda _c: False,
                "is_deepseek_dsa": lambda _c: False,
                "is_nemotron_h": lambda _c: architecture == "NemotronHForCausalLM",
                "uses_kda_attention": lambda _c: False,
            },
            "platforms": {"current_platform": _PLATFORM},
            "layers__cp__bcg": {"supports_prefill_cp_bcg": lambda _a: False},
            "model_executor__cuda_graph_config": self._graphs,
        }
        with stubs.modules(**stand_ins):
            if self._phases:
                self._graph_config(args)
            elif "_handle_piecewise_cuda_graph" in self._methods:
                args._handle_piecewise_cuda_graph()
            args._handle_gpu_memory_settings(case.card_mib)
        batch = args.cuda_graph_config.decode.max_bs if self._phases else args.cuda_graph_max_bs
        return args.mem_fraction_static, args.chunked_prefill_size, batch

    def _graph_config(self, args: t.Any) -> None:
        """What _handle_cuda_graph_config makes of the options that the planner knows."""
        graphs = self._graphs
        config = graphs["CudaGraphConfig"]()
        backend = graphs["Backend"]
        if args.disable_cuda_graph or args.disable_decode_cuda_graph:
            config.decode.backend = backend.DISABLED
        if args.disable_cuda_graph or args.disable_prefill_cuda_graph:
            config.prefill.backend = backend.DISABLED
        if args.cuda_graph_max_bs_decode:
            config.decode.max_bs = args.cuda_graph_max_bs_decode
        args.cuda_graph_config, args._cuda_graph_config_locked = config, set()
        if config.prefill.backend == backend.TC_PIECEWISE:
            args._disable_tc_piecewise_cudagraph_if_incompatible()
        elif config.prefill.backend == getattr(backend, "BREAKABLE", "breakable"):
            args._disable_breakable_cudagraph_if_incompatible()
