# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine options as given: names, types, and what the planner can't model."""

from __future__ import annotations

import dataclasses
import difflib
import typing as t

from .._core.errors import KproError
from .._engine.option_names import ALIASES, BY_VERSION, RENAMED
from .._engine.versions import Rules, release_of
from .not_modelled import OPTIONS as NOT_MODELLED
from .not_modelled import PLAIN_ATTENTION, check_fraction, check_option
from .shown import number_of, shown

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_CHOICES: dict[str, tuple[str, ...]] = {
    "mamba_ssm_dtype": ("float32", "bfloat16", "float16"),
    "kv_cache_dtype": ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2"),
    "mamba_radix_cache_strategy": ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
    "speculative_algorithm": ("EAGLE", "NEXTN"),
    "attention_backend": (*PLAIN_ATTENTION, "trtllm_mha"),
    "mm_feature_transport": ("cpu", "cuda_ipc", "cuda_vmm"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that decide about memory; None is "not given"."""

    tp_size: int = 1
    dp_size: int = 1
    attn_dp_size: int = 1
    attn_cp_size: int = 1
    enable_dp_attention: bool = False
    mem_fraction_static: float | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    page_size: int | None = None
    kv_cache_dtype: str = "auto"
    mamba_ssm_dtype: str | None = None
    max_mamba_cache_size: int | None = None
    mamba_full_memory_ratio: float = 0.9
    mamba_radix_cache_strategy: str = "auto"
    mamba_track_interval: int = 256
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    cuda_graph_max_bs_decode: int | None = None
    disable_cuda_graph: bool = False
    disable_decode_cuda_graph: bool = False
    disable_prefill_cuda_graph: bool = False
    disable_piecewise_cuda_graph: bool = False
    enable_piecewise_cuda_graph: bool = False
    enable_torch_compile: bool = False
    enable_hierarchical_cache: bool = False
    enable_deterministic_inference: bool = False
    language_only: bool = False
    language_model_only: bool = False
    linear_attn_backend: str = "triton"
    swa_full_tokens_ratio: float = 0.8
    attention_backend: str | None = None
    mm_feature_transport: str | None = None
    quantization: str | None = None
    rest: tuple[tuple[str, t.Any], ...] = ()


_TYPES: dict[str, str] = {field.name: str(field.type) for field in dataclasses.fields(Options) if field.name != "rest"}
# Far above what makes sense; every number below is looked at for advice.
_MOST: dict[str, int] = {"speculative_num_steps": 64, "speculative_eagle_topk": 64, "speculative_num_draft_tokens": 256}
_MOST |= {"tp_size": 1024, "dp_size": 1024, "attn_dp_size": 1024, "attn_cp_size": 1024, "page_size": 1 << 20, "max_running_requests": 1 << 24}
_MOST_ANY, _MOST_RATIO = 1 << 60, 1000.0
_LEAST: dict[str, int] = {"chunked_prefill_size": -1, "max_mamba_cache_size": 1}


def options_of(args: t.Mapping[str, t.Any], version: str, rules: Rules) -> Options:
    """Return the options that ``args`` (long option names with underscores) give.

    :raises KproError: for an unknown name (with the nearest known one), a senseless value, or an option that isn't modelled.
    """
    known = known_names(version)
    values: dict[str, t.Any] = {}
    rest: dict[str, t.Any] = {}
    if not isinstance(args, t.Mapping):
        raise KproError("option args", f"it is {shown(args)}, and must be a section of options", field="args")
    for given, value in args.items():
        name = _canonical(str(given), known, version)
        if value is None:
            continue
        if name in NOT_MODELLED:
            check_option(name, value)
            rest[name] = value
        elif name in _TYPES:
            if name in values:
                raise KproError(f"option {given}", "it is given twice", "Keep one of them", field=name)
            values[name] = _typed(name, value)
        else:
            rest[name] = value
    if "mem_fraction_static" not in values:
        check_fraction(rest)
    options = Options(**values, rest=tuple(sorted(rest.items())))
    _check_combination(options)
    return options


def is_given(option: str, args: t.Mapping[str, t.Any]) -> bool:
    """Return whether an option is among the arguments, under any of its names."""
    spelled = (str(name).strip().lstrip("-").replace("-", "_") for name, value in args.items() if value is not None)
    return option in {RENAMED.get(ALIASES.get(name, name), ALIASES.get(name, name)) for name in spelled}


def known_names(version: str) -> frozenset[str]:
    """Return the option names that a version knows; between pinned versions, those of either neighbour."""
    release = release_of(version)
    if release < (0, 5, 10):
        return BY_VERSION["0.5.9"]
    if release < (0, 5, 14):
        return BY_VERSION["0.5.10"]
    return BY_VERSION["0.5.23"] if release >= (0, 5, 23) else BY_VERSION["0.5.10"] | BY_VERSION["0.5.23"]


def named_for(name: str, rules: Rules) -> str:
    """Return the name under which the version of these rules knows an option."""
    if name == "mamba_radix_cache_strategy":
        return rules.strategy_option
    return rules.graph_option if name == "cuda_graph_max_bs_decode" else name


def _canonical(given: str, known: frozenset[str], version: str) -> str:
    name = given[:200].strip().lstrip("-").replace("-", "_")
    name = ALIASES.get(name, name)
    renamed = RENAMED.get(name, name)
    old_names = {new: old for old, new in RENAMED.items()}
    if name in known or renamed in known or old_names.get(name) in known:
        return renamed
    near = difflib.get_close_matches(name, sorted(known | set(ALIASES) | set(RENAMED)), n=1, cutoff=0.6)
    remedy = f"The nearest known name is {near[0]!r}" if near else "Use SGLang's long option names with underscores"
    raise KproError(f"option {shown(given)[1:-1]}", f"SGLang {version} has no option of that name", remedy, field=given, nearest=near[0] if near else None)


def _typed(name: str, value: t.Any) -> t.Any:
    kind = _TYPES[name]
    if kind.startswith("bool"):
        return _boolean(name, value)
    if kind.startswith("int"):
        return _whole(name, value)
    if kind.startswith("float"):
        return _fraction(name, value)
    text = str(value)[:200]
    if name == "speculative_algorithm":
        text = text.upper()
    if name in _CHOICES and text not in _CHOICES[name]:
        reason = f"the value {shown(value)} is not modelled"
        raise KproError(f"option {name}", reason, f"Modelled are {', '.join(_CHOICES[name])}", field=name)
    return text


def _boolean(name: str, value: t.Any) -> bool:
    if isinstance(value, bool):
        return value
    word = shown(value).strip("'\"").lower()
    if word in _BOOLEANS:
        return _BOOLEANS[word]
    raise KproError(f"option {name}", f"the value {shown(value)} is neither true nor false", field=name)


def _whole(name: str, value: t.Any) -> int:
    least = _LEAST.get(name, 1)
    try:
        number = value if isinstance(value, int) else int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or number < least or (name == "chunked_prefill_size" and number == 0):
        raise KproError(f"option {name}", f"the value {shown(value)} is not a whole number of at least {least}", field=name)
    most = _MOST.get(name, _MOST_ANY)
    if number > most:
        raise KproError(f"option {name}", f"the value {shown(value)} is above {most}, which is not modelled", field=name)
    return number


def _fraction(name: str, value: t.Any) -> float:
    number = number_of(value)
    if name == "mem_fraction_static" and not 0 < number < 1:
        reason = f"the value {shown(value)} is outside (0, 1)"
        raise KproError(f"option {name}", reason, "It is the share that is planned for weights and pools, such as 0.85", field=name)
    most = 1.0 if name == "swa_full_tokens_ratio" else _MOST_RATIO
    if not 0 < number <= most:
        raise KproError(f"option {name}", f"the value {shown(value)} is not a number above 0 and up to {most:g}", field=name)
    return number


def _check_combination(options: Options) -> None:
    groups = attention_dp(options) * options.attn_cp_size
    if options.dp_size > 1 and not options.enable_dp_attention:
        reason = f"dp_size {options.dp_size} without enable_dp_attention starts that many copies of the model, which is not modelled"
        raise KproError("option dp_size", reason, "Plan one copy", field="dp_size", value=options.dp_size)
    if options.tp_size % groups:
        reason = f"{options.tp_size} GPUs can't be divided into {groups} attention groups"
        raise KproError("option tp_size", reason, "Choose tp_size as a multiple", field="tp_size", value=options.tp_size)


def attention_dp(options: Options) -> int:
    """Return into how many data-parallel groups attention is divided."""
    return max(options.attn_dp_size, options.dp_size if options.enable_dp_attention else 1)
