# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random starts, the same for the engine's functions and for the planner."""

from __future__ import annotations

import dataclasses
import random
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import release_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.families import DENSE, HYBRID, HYBRID_MOE, KDA, LATENT, MAMBA
from ansible_collections.kpro.llm.plugins.module_utils._vram.model import Latent, Linear, Model, Window

CARDS_MIB = (15360, 16376, 23028, 24564, 32607, 40960, 46068, 49140, 81559, 81920, 97887, 143771, 196608)


@dataclasses.dataclass(frozen=True)
class Case:
    """One start: a model, options by long name, a card, and the driver's free memory before and after loading."""

    model: Model
    args: dict[str, t.Any]
    environment: dict[str, str]
    card_mib: int
    before_gib: float
    after_gib: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a start gives; ``stage`` is options or sizing if it fails there, else empty."""

    stage: str
    fraction: float | None = None
    chunk: int | None = None
    graph_batch: int | None = None
    slots: int | None = None
    requests: int | None = None
    tokens: int | None = None
    state_bytes: int | None = None


def random_case(dice: random.Random, version: str) -> Case:
    """Return a start, most often a sensible one and now and then one at an edge."""
    tp = dice.choice((1, 1, 2, 2, 2, 4, 8))
    groups = dice.choice((1, 1, 1, 1, 2)) if tp > 1 else 1
    model = _model(dice, tp)
    if has_families(version) and dice.random() < 0.5:
        model = _of_other_family(dice, model, tp)
    card = dice.choice(CARDS_MIB)
    before = card / 1024 * dice.uniform(0.9, 0.985)
    weights = before * dice.choice((dice.uniform(0.05, 0.9), dice.uniform(0.1, 0.6), dice.uniform(0.1, 0.6), dice.uniform(0.8, 1.0)))
    args = _sizes(dice, tp, groups) | _state(dice, model, version) | _speculation(dice, model, version) | _graphs(dice, model, version)
    if model.window and (release_of(version) < (0, 5, 22) or args.get("max_running_requests") == 1):
        # Without the prefix cache these releases size the windows' pool in a way that the planner refuses by name.
        args.pop("disable_radix_cache", None)
    environment = {"SGLANG_ENABLE_SPEC_V2": dice.choice(("0", "1"))} if not _is_new(version) and dice.random() < 0.6 else {}
    return Case(model, args, environment, card, before, before - weights)


def _model(dice: random.Random, tp: int) -> Model:
    kv_heads = dice.choice((1, 2, 4, 8, 16))
    kv_heads = kv_heads if kv_heads <= tp or kv_heads % tp == 0 else tp
    heads = max(kv_heads, tp) * dice.choice((1, 2, 4, 6))
    interval = dice.choice((2, 4, 4, 8))
    layers = interval * dice.randint(1, 16)
    hybrid = dice.random() < 0.8
    key_heads = dice.choice((8, 16, 16, 32))
    linear = Linear(layers - layers // interval, key_heads * dice.choice((1, 2, 3, 4)), key_heads, 128, 128, 4) if hybrid else None
    vision = hybrid and dice.random() < 0.7
    architecture = "LlamaForCausalLM" if not hybrid and dice.random() < 0.3 else "Qwen3ForCausalLM"
    if hybrid:
        architecture = "Qwen3_5ForConditionalGeneration" if vision else "Qwen3NextForCausalLM"
    return Model(
        architecture=architecture,
        kind=(HYBRID if vision else HYBRID_MOE) if hybrid else DENSE,
        hidden=1024,
        layers=layers,
        full_layers=layers // interval if hybrid else layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dice.choice((64, 128, 256)),
        intermediate=1024 * tp,
        vocab=32000,
        tied=False,
        max_position=dice.choice((8192, 32768, 131072, 262144)),
        rotary_dim=64,
        weight_bytes=2,
        linear=linear,
        multimodal=vision,
        vision_complexity=dice.choice((0.0, 0.56, 1.0, 1.27, 4.0)) if vision else 0.0,
        mtp_layers=1 if hybrid else 0,
        ssm_dtype=dice.choice(("float32", "float32", "bfloat16")) if hybrid else "",
    )


def has_families(version: str) -> bool:
    """Whether the engine's functions for windows, compressed caches and other states are run for a release, too."""
    return release_of(version) >= (0, 5, 19)


def _of_other_family(dice: random.Random, model: Model, tp: int) -> Model:
    """The same sizes as another architecture: windows, compressed caches, Mamba and Kimi states, plain ones with and without images."""
    kind = dice.choice(("window", "window", "latent", "latent", "mamba", "kda", "plain"))
    plain = dataclasses.replace(model, linear=None, full_layers=model.layers, multimodal=False, vision_complexity=0.0, mtp_layers=0, ssm_dtype="", kind=DENSE)
    if kind == "plain":
        name = dice.choice(("Glm4MoeForCausalLM", "MixtralForCausalLM", "Qwen2_5_VLForConditionalGeneration", "Gemma3ForConditionalGeneration"))
        images = name.endswith("ForConditionalGeneration")
        return dataclasses.replace(plain, architecture=name, multimodal=images, vision_complexity=dice.choice((0.0, 1.0, 1.27)) if images else 0.0)
    if kind == "window":
        few = dice.randint(1, model.layers - 1)
        name = dice.choice(("GptOssForCausalLM", "Gemma4ForConditionalGeneration"))
        window = Window(model.layers - few, dice.choice((128, 512, 1024)), model.kv_heads, *(dice.choice((64, 128, 256)),) * 2, model.heads)
        images = name.startswith("Gemma4")
        return dataclasses.replace(plain, architecture=name, full_layers=few, window=window, multimodal=images, vision_complexity=1.27 if images else 0.0)
    if kind == "mamba":
        name, full = dice.choice((("NemotronHForCausalLM", dice.randint(1, model.layers)), ("FalconH1ForCausalLM", model.layers)))
        linear = Linear(dice.randint(1, model.layers), dice.choice((16, 32, 64)), dice.choice((1, 2, 8)), dice.choice((64, 128, 256)), 64, 4, MAMBA)
        return dataclasses.replace(plain, architecture=name, linear=linear, full_layers=full, ssm_dtype="float32", kind=HYBRID)
    latent = dataclasses.replace(plain, kv_heads=1, head_dim=0, latent_dim=dice.choice((512, 256)) + 64, latent=Latent(0, 512, 128, 64, 128), kind=LATENT)
    if kind == "latent":
        mtp = dice.choice((0, 1))
        return dataclasses.replace(latent, architecture="DeepseekV3ForCausalLM", mtp_layers=mtp)
    full = dice.randint(1, max(1, model.layers // 2))
    linear = Linear(model.layers - full or 1, 32, 32, 128, 128, 4, KDA)
    return dataclasses.replace(latent, architecture="KimiLinearForCausalLM", linear=linear, full_layers=full, ssm_dtype="float32", kind=HYBRID_MOE)


def _is_new(version: str) -> bool:
    """Whether the option names are those from 0.5.14 on."""
    return release_of(version) >= (0, 5, 14)


def _sizes(dice: random.Random, tp: int, groups: int) -> dict[str, t.Any]:
    args: dict[str, t.Any] = {"tp_size": tp}
    if groups > 1:
        args.update(enable_dp_attention=True, dp_size=groups)
    if dice.random() < 0.7:
        args["mem_fraction_static"] = round(dice.uniform(*dice.choice(((0.3, 0.97), (0.7, 0.95), (0.7, 0.95)))), dice.choice((2, 3)))
    if dice.random() < 0.5:
        args["context_length"] = dice.choice((2048, 4096, 8192))
    if dice.random() < 0.5:
        args["max_running_requests"] = dice.choice((1, 2, 3, 4, 7, 8, 16, 31, 48, 64, 200, 512, 3000, 5000))
    if dice.random() < 0.15:
        args["max_total_tokens"] = dice.choice((100, 5000, 100_000, 1_000_000))
    if dice.random() < 0.2:
        args["page_size"] = dice.choice((1, 16, 32, 64, 128))
    if dice.random() < 0.3:
        args["kv_cache_dtype"] = dice.choice(("fp8_e4m3", "bfloat16"))
    return args


def _state(dice: random.Random, model: Model, version: str) -> dict[str, t.Any]:
    args: dict[str, t.Any] = {}
    if dice.random() < 0.3:
        args["disable_radix_cache"] = True
    if dice.random() < 0.25:
        args["disable_overlap_schedule"] = True
    if model.linear is None:
        return args
    name = "mamba_radix_cache_strategy" if _is_new(version) else "mamba_scheduler_strategy"
    if dice.random() < 0.5:
        choices = ["auto", "no_buffer", "extra_buffer"] + (["extra_buffer_lazy"] if _is_new(version) else [])
        args[name] = dice.choice(choices)
        if args[name] == "extra_buffer_lazy":
            args.pop("disable_overlap_schedule", None)  # refused by both, but by the engine only after the slots are computed
    if dice.random() < 0.1:
        args["mamba_track_interval"] = dice.choice((4, 64, 320))
    if dice.random() < 0.3:
        args["max_mamba_cache_size"] = dice.choice((1, 2, 4, 5, 8, 40, 43, 100, 700))
    if dice.random() < 0.3:
        args["mamba_full_memory_ratio"] = round(dice.uniform(0.1, 3.0), 2)
    if dice.random() < 0.3:
        args["mamba_ssm_dtype"] = dice.choice(("float32", "bfloat16", "float16"))
    return args


def _speculation(dice: random.Random, model: Model, version: str) -> dict[str, t.Any]:
    if not model.mtp_layers or dice.random() < 0.4:
        return {}
    args: dict[str, t.Any] = {"speculative_algorithm": dice.choice(("NEXTN", "EAGLE"))}
    if release_of(version)[:3] == (0, 5, 10) and dice.random() < 0.7:
        args["mamba_scheduler_strategy"] = "extra_buffer"  # with no_buffer this version starts only without the prefix cache
    if dice.random() < 0.85:
        topk = dice.choice((1, 1, 1, 4))
        steps = dice.randint(1, 6)
        args.update(speculative_num_steps=steps, speculative_eagle_topk=topk)
        args["speculative_num_draft_tokens"] = dice.choice((steps + 1, dice.randint(2, 12))) if topk == 1 else dice.randint(2, 12)
    return args


def _graphs(dice: random.Random, model: Model, version: str) -> dict[str, t.Any]:
    args: dict[str, t.Any] = {}
    new = _is_new(version)
    if dice.random() < 0.3:
        args["chunked_prefill_size"] = dice.choice((-1, 512, 2048, 4096, 8192, 16384))
    if dice.random() < 0.2:
        args["cuda_graph_max_bs_decode" if new else "cuda_graph_max_bs"] = dice.choice((1, 8, 64, 320))
    if dice.random() < 0.15:
        args["disable_cuda_graph"] = True
    if new and dice.random() < 0.15:
        args[dice.choice(("disable_prefill_cuda_graph", "disable_decode_cuda_graph"))] = True
    if model.multimodal and dice.random() < 0.15:
        args["language_model_only" if release_of(version) >= (0, 5, 18) else "language_only"] = True
    if new and model.multimodal and dice.random() < 0.2:
        args["mm_feature_transport"] = dice.choice(("cpu", "cuda_ipc"))
    if version.startswith("0.5.10") and dice.random() < 0.15:
        args["disable_piecewise_cuda_graph"] = True
    if version.startswith("0.5.9") and dice.random() < 0.15:
        args["enable_piecewise_cuda_graph"] = True
    return args
