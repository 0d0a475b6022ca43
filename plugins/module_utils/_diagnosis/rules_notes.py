# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of a start that succeed and still say something a person should know (``sglang_memory.md``, section 5)."""

from __future__ import annotations

import dataclasses
import typing as t

from .._engine.failures import Failure
from .case import Case, Diagnosis, gib, gpus_of

# Below it graphs and activations run out of memory sooner or later (public logs: 1.35 GiB died under load).
_LITTLE_GIB = 1.5
# Memory that driver and CUDA context take on an idle card, and a tolerance: more is held by another process.
_IDLE_GIB, _TOLERANCE_GIB = 0.65, 1.0


def notes(case: Case) -> list[Diagnosis]:
    """Return what the log says besides an error, in the order of a start."""
    # On a CPU the same lines count main memory.
    cpu = case.option("device") == "cpu"
    found = (rule(case) for rule in RULES if not (cpu and rule in _OF_THE_CARD))
    return [dataclasses.replace(finding, action="warn_and_continue", confidence="likely") for finding in found if finding is not None]


def implicit_limit(case: Case) -> Diagnosis | None:
    """Speculation sets a limit that nobody asked for."""
    found = case.seen(r"Max running requests is reset to (\d+) for speculative decoding")
    if not found:
        return None
    cause = f"the engine set max_running_requests to {found[1]} because speculation is on and none was given; on 0.5.8 to 0.5.13 that decides the memory"
    return Diagnosis(Failure.IMPLICIT_REQUEST_LIMIT, cause, "Set max_running_requests explicitly", (found.string,), "lower")


def no_prefix_cache(case: Case) -> Diagnosis | None:
    """0.5.9 cannot have speculation and the prefix cache together, without extra_buffer."""
    line = case.seen_line(r"Disabling radix cache since")
    remedy = "Nothing, or set mamba_scheduler_strategy extra_buffer (mamba_radix_cache_strategy in newer engines), which costs slots of state"
    return (
        Diagnosis(Failure.PREFIX_CACHE_OFF, "the engine switched its prefix cache off: beginnings of chats are computed anew", remedy, (line,))
        if line
        else None
    )


def occupied(case: Case) -> Diagnosis | None:
    """Less memory was free before loading than an idle card has: the start works, with smaller pools."""
    found, total = case.seen(r"Load weight begin.*?avail mem=([\d.]+)"), _card_gib(case)
    if not found or not total or float(found[1]) >= total - _IDLE_GIB - _TOLERANCE_GIB:
        return None
    cause = f"{gib(float(found[1]))} of {gib(total)} were free before loading, an idle card has about {gib(total - _IDLE_GIB)}: somebody else holds GPU memory"
    return Diagnosis(Failure.GPU_OCCUPIED, cause, "Free the GPUs of other processes, then restart the service", (found.string,))


def _card_gib(case: Case) -> float | None:
    if gpus := gpus_of(case.context):
        return min(float(gpu["memory_mib"]) for gpu in gpus) / 1024
    return case.number("gpu_total_gib")


def token_cap(case: Case) -> Diagnosis | None:
    """The wanted cap on tokens is above what fits."""
    found = case.seen(r"max_total_tokens=(\d+) is larger than the profiled value (\d+)")
    if not found:
        return None
    cause = f"max_total_tokens asks for {int(found[1]):,} tokens and {int(found[2]):,} fit: the smaller number is used"
    return Diagnosis(Failure.TOKEN_CAP_TOO_HIGH, cause, "Leave max_total_tokens out, or set it lower", (found.string,), "lower")


def capped_requests(case: Case) -> Diagnosis | None:
    """The state pool serves fewer requests than asked for."""
    found = case.seen(r"max_running_requests is capped to (\d+) by the mamba state cache")
    if not found:
        return None
    cause = f"the state pool serves {found[1]} requests at once, fewer than max_running_requests"
    return Diagnosis(
        Failure.REQUESTS_CAPPED, cause, "Raise max_mamba_cache_size or mamba_full_memory_ratio, or use mamba_ssm_dtype bfloat16", (found.string,), "raise"
    )


def little_left(case: Case) -> Diagnosis | None:
    """The pools left too little for graphs and activations."""
    found = case.seen(r"Memory pool end\. avail mem=([\d.]+)")
    if not found or float(found[1]) >= _LITTLE_GIB:
        return None
    cause = f"the pools left {float(found[1]):.2f} GiB for graphs and activations, which may run out under load"
    return Diagnosis(Failure.LITTLE_SLACK, cause, "Lower mem_fraction_static, or set a smaller cuda_graph_max_bs", (found.string,), "lower")


def loader_temporaries(case: Case) -> Diagnosis | None:
    """Before 0.5.19 the loader's memory counted as used: the pool stays tiny although memory is free."""
    found = case.seen(r"[Cc]apture (?:\w+ )*(?:cuda|CUDA) graphs? end.*?mem usage=(-[\d.]+)")
    if not found:
        return None
    cause = f"memory became free while graphs were captured ({found[1]} GB): the loader's temporaries had been counted, so the KV pool is too small"
    return Diagnosis(Failure.LOADER_TEMPORARIES_COUNTED, cause, "Use SGLang 0.5.19 or newer", (found.string,))


def short_cache(case: Case) -> Diagnosis | None:
    """One request cannot use the whole context."""
    found = case.seen(r"max_total_num_tokens=(\d+).*?context_len=(\d+)")
    if not found or int(found[1]) >= int(found[2]):
        return None
    cause = f"the cache holds {int(found[1]):,} tokens and the context is {int(found[2]):,}: longer prompts are refused"
    return Diagnosis(Failure.CACHE_SHORTER_THAN_CONTEXT, cause, "Set a shorter context_length, or fewer max_running_requests", (found.string,), "lower")


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (
    implicit_limit,
    no_prefix_cache,
    occupied,
    token_cap,
    capped_requests,
    little_left,
    loader_temporaries,
    short_cache,
)
_OF_THE_CARD = (occupied, little_left)
