# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about GPU memory; the texts are those of ``sglang_memory.md``, section 5.

Direction rule: an error while pools are sized asks for a higher fraction or for less demand, an error after that for a lower fraction.
"""

from __future__ import annotations

import re
import typing as t

from .._engine.failures import Failure
from .case import Case, Diagnosis, gib

_FRACTION = "--mem-fraction-static"
# The few changes that help, said once. How far each has to go is for the plan to compute (see _diagnosis_plan).
_LESS_STATE = "a smaller max_running_requests (8 for the 27B on 48 GB), mamba_ssm_dtype bfloat16, or fewer draft tokens"
_LESS_WEIGHT = "quantised weights, or more GPUs (tp_size)"
_LESS_GRAPH = "a smaller cuda_graph_max_bs"
# Allocator, runtime, driver and cuBLAS each have words of their own for it.
_OUT_OF_MEMORY = (
    r"(?:OutOfMemoryError|CUDA out of memory|(?:CUDA|cuda|HIP)(?: driver| runtime)? error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    r"|CU(?:BLAS|SPARSE|DNN|SOLVER)_STATUS_ALLOC_FAILED|Failed to CUDA calloc|Cuda failure \d+ 'out of memory')"
)
_FREE_FIRST = "Free the GPUs of other processes, then start again"


def _fraction(case: Case) -> float | None:
    value = case.option_number("mem_fraction_static")
    found = None if value is not None else case.find(r"mem-fraction-static=(\d+(?:\.\d+)?)")
    return float(found[1]) if found else value


def two_fractions_fail(case: Case) -> Diagnosis | None:
    """Neighbouring fractions fail in opposite directions: something else must shrink."""
    runs = case.get("runs")
    if not isinstance(runs, list):
        return None
    early, late = [], []
    for run in runs:
        text = "\n".join(str(line) for line in run.get("lines", []))
        value = float(run.get("mem_fraction", run.get("mem_fraction_static", 0)))
        if re.search(r"Not enough memory|leave no GPU memory|state cache", text):
            early.append((value, text))
        elif "out of memory" in text:
            late.append((value, text))
    if not early or not late:
        return None
    low, high = max(early)[0], min(late)[0]
    return Diagnosis(
        Failure.NO_FRACTION_FITS,
        f"no {_FRACTION} can work: at {low:.2f} the pools could not be set up, at {high:.2f} too little was left for graphs",
        f"Something else has to shrink: a shorter context_length, {_LESS_STATE}, {_LESS_GRAPH}, {_LESS_WEIGHT}",
        tuple(text.splitlines()[-1] for _value, text in (*early, *late)),
    )


def unbalanced(case: Case) -> Diagnosis | None:
    """The GPUs differ in free memory before anything was loaded."""
    line = case.line(r"memory capacity is unbalanced")
    if not line:
        return None
    holders = _holder_words(case)
    if holders:
        return Diagnosis(
            Failure.GPU_OCCUPIED_FOREIGN,
            f"free memory differs between the GPUs before loading: {holders}. It is not ours, so it was left alone",
            "Free that GPU, or choose other GPUs for this container",
            (line,),
        )
    return Diagnosis(
        Failure.GPU_UNBALANCED,
        "free memory differs by more than 10 % between the GPUs before loading: another process holds one of them, or the cards are unlike",
        f"Look at the GPUs' memory on the node (kpro.llm.gpu_info). {_FREE_FIRST}, or choose equal GPUs",
        (line,),
        confidence="likely",
    )


def _holder_words(case: Case) -> str:
    words = []
    for app in case.get("nvidia_smi_compute_apps_host", "gpu_holders") or []:
        group = str(app.get("cgroup", ""))
        container = re.search(r"/lxc[./](\d+)", group)
        unit = group.rsplit("/", 1)[-1]
        where = f"container {container[1]}, {unit}" if container else unit or "host"
        words.append(f"pid {app.get('pid')} ({where}) holds {float(app.get('used_mib', 0)) / 1024:.1f} GiB on GPU {app.get('gpu', app.get('gpu_uuid', '?'))}")
    return "; ".join(words)


def advice_already_met(case: Case) -> Diagnosis | None:
    """The message asks for more than a fraction that is exceeded already: the state pool is what does not fit."""
    found = case.find(r"Loaded weights leave no GPU memory.*?above (\d+(?:\.\d+)?)")
    stated = case.find(r"under --mem-fraction-static=(\d+(?:\.\d+)?)")
    fraction = float(stated[1]) if stated else _fraction(case)
    if not found:
        return None
    minimum = float(found[1])
    if fraction is not None and fraction > minimum:
        slots, per = case.option_number("max_mamba_cache_size"), case.number("model_facts.state_mib_per_slot")
        pool = f" ({slots:.0f} slots, {slots * per / 1024:.1f} GiB)" if slots and per else ""
        return Diagnosis(
            Failure.HYBRID_STATE_POOL_TOO_LARGE,
            f"the message's advice (above {minimum:g}) is already met by {fraction:g}, so it is not the weights: the state pool{pool} does not fit",
            f"Set a smaller max_mamba_cache_size (--max-mamba-cache-size), {_LESS_STATE}",
            (found.string,),
            "lower",
        )
    if minimum > 0.92:
        return Diagnosis(
            Failure.WEIGHTS_TOO_LARGE,
            f"the loaded weights leave nothing for the KV cache: {minimum:g} of the card would be needed, more than the 0.92 that leaves room for graphs",
            f"Drop speculation, or use {_LESS_WEIGHT}",
            (found.string,),
        )
    at = "(default)" if fraction is None else fraction
    return _fraction_too_low(f"the loaded weights leave no memory for the KV cache at {_FRACTION} {at}; {minimum:g} is needed", f"{minimum:g}", (found.string,))


def _fraction_too_low(cause: str, least: str, evidence: tuple[str, ...]) -> Diagnosis:
    remedy = f"Raise mem_fraction_static above {least} (the state pool of a hybrid model needs more than that), or use {_LESS_WEIGHT}"
    return Diagnosis(Failure.FRACTION_TOO_LOW, cause, remedy, evidence, "raise")


def hybrid_state(case: Case) -> Diagnosis | None:
    """No slot of the state pool fits (0.5.13 and later)."""
    found = case.find(r"Not enough GPU memory for hybrid.*?(?:total_rest_memory=(-?[\d.]+))?")
    line = case.line(r"Not enough GPU memory for hybrid")
    if not found:
        return None
    rest = case.find(r"total_rest_memory=(-?[\d.]+)")
    words = f" ({float(rest[1]):.2f} GiB rest)" if rest else ""
    return Diagnosis(
        Failure.HYBRID_STATE_POOL_TOO_LARGE,
        f"not one slot of the state pool fits next to the weights{words}",
        f"Raise mem_fraction_static or free GPU memory; lowering it makes this worse. This also helps: {_LESS_STATE}",
        (line,),
        "raise",
    )


def too_few_slots(case: Case) -> Diagnosis | None:
    """State slots do not suffice for one request."""
    line = case.line(r"state cache is too small to serve any requests|max_running_request(?:s)? is zero")
    if not line:
        return None
    return Diagnosis(
        Failure.STATE_SLOTS_TOO_FEW,
        "the state pool has fewer slots than one request needs",
        "Set max_mamba_cache_size to at least 5 slots per request (extra_buffer), 4 (lazy), 3 (no_buffer) or 1 (without radix cache)",
        (line,),
        "raise",
    )


def not_enough_memory(case: Case) -> Diagnosis | None:
    """The KV remainder is not positive; the message always says "increase", which is right in one of three cases only."""
    line = case.line(r"Not enough memory\. Please try to increase|Memory pool size is too small")
    if not line:
        return None
    free, after = _logged_gib(case, r"Load weight begin.*?avail mem=([\d.]+)"), _logged_gib(case, r"Load weight end.*?avail mem=([\d.]+)")
    fraction = _fraction(case)
    total = case.number("gpu_total_gib")
    evidence = tuple(text for text in (case.seen_line(r"Max running requests is reset to"), line) if text)
    if free and total and free < total - 2:
        words = f"only {gib(free)} of {gib(total)} were free before loading: another process holds GPU memory"
        return Diagnosis(Failure.GPU_OCCUPIED, words, _FREE_FIRST, evidence, confidence="likely")
    if free is None or after is None or fraction is None:
        return _not_enough_unquantified(case, evidence)
    rest = after - free * (1 - fraction)
    sum_words = f"{gib(after)} free after loading - {gib(free)} x (1 - {fraction:g}) = {rest:.1f} GiB"
    if rest <= 0:
        return _fraction_too_low(f"the weights leave no memory for pools ({sum_words})", f"{1 - after / free:.3f}", evidence)
    demand = _state_demand(case)
    need = f", the state of {demand[1]} needs {gib(demand[0])}" if demand else ""
    return Diagnosis(
        Failure.HYBRID_STATE_POOL_TOO_LARGE if demand else Failure.POOLS_TOO_LARGE,
        f"the pools do not fit into the {rest:.1f} GiB that are left for them ({sum_words}){need}",
        f"Set {_LESS_STATE}. The message's own advice hardly helps",
        evidence,
        "lower",
        "certain" if demand and demand[0] > rest else "likely",
    )


def _not_enough_unquantified(case: Case, evidence: tuple[str, ...]) -> Diagnosis:
    implicit = case.seen(r"Max running requests is reset to (\d+)")
    words = f"; max_running_requests was set to {implicit[1]} without being asked for, and each reserves state" if implicit else ""
    return Diagnosis(
        Failure.HYBRID_STATE_POOL_TOO_LARGE if implicit else Failure.POOLS_TOO_LARGE,
        f"the KV cache got no memory{words}",
        f"Set {_LESS_STATE}, explicitly; check that the GPUs were empty before the start",
        evidence,
        "lower",
        "likely",
    )


def _state_demand(case: Case) -> tuple[float, str] | None:
    """State copies and slots in GiB and in words (0.5.8 to 0.5.12: draft copies for each requested request, up front)."""
    per = case.number("model_facts.state_mib_per_slot", "state_mib_per_slot")
    implicit = case.seen(r"Max running requests is reset to (\d+)")
    requests = float(implicit[1]) if implicit else case.option_number("max_running_requests")
    if not per or not requests:
        return None
    steps = case.option_number("speculative_num_steps")
    drafts = case.option_number("speculative_num_draft_tokens") or (steps + 1 if steps else 0)
    slots = case.option_number("max_mamba_cache_size") or requests
    return per * (requests * drafts + slots) / 1024, f"{requests:.0f} requests with {drafts:.0f} draft copies each and {slots:.0f} slots of {per:g} MiB"


def _logged_gib(case: Case, pattern: str) -> float | None:
    found = case.seen(pattern)
    return float(found[1]) if found else None


def context_too_long(case: Case) -> Diagnosis | None:
    """One request of full length does not fit."""
    found = case.find(r"max seq len \((\d+)\)\D+([\d.]+) GiB KV cache is needed.*?\(([\d.]+) GiB\)")
    if not found:
        return _context_in_tokens(case)
    length, need, have = int(found[1]), float(found[2]), float(found[3])
    fits = int(length * have / need)
    return Diagnosis(
        Failure.CONTEXT_TOO_LONG,
        f"a context of {length} tokens needs {need:g} GiB of KV cache, {have:g} GiB are left: at most about {fits // 1000}k tokens fit",
        f"Set context_length to {fits // 1024 * 1024} or less, or kv_cache_dtype fp8_e4m3",
        (found.string,),
        "lower",
    )


def _context_in_tokens(case: Case) -> Diagnosis | None:
    found = case.find(r"max seq len \((\d+)\) is larger than the maximum number of tokens.*?\((\d+)\)")
    if not found:
        return None
    length, fits = int(found[1]), int(found[2])
    cause = f"a context of {length} tokens does not fit: the KV cache holds {fits}"
    return Diagnosis(
        Failure.CONTEXT_TOO_LONG, cause, f"Set context_length to {fits // 1024 * 1024} or less, or kv_cache_dtype fp8_e4m3", (found.string,), "lower"
    )


def pool_exhausted(case: Case) -> Diagnosis | None:
    """A batch found no tokens in the KV pool: the pool's memory, not the card's."""
    line = case.line(r"(?:Prefill|Decode) out of memory")
    if not line:
        return None
    remedy = "Set a smaller max_running_requests or context_length, or a smaller chunked_prefill_size"
    return Diagnosis(Failure.SERVING_OOM, f"the KV pool had no tokens left for a batch: {line.strip()}", remedy, (line,), "lower")


def slots_exhausted(case: Case) -> Diagnosis | None:
    """Request slots ran out while serving: a limit, not memory."""
    line = case.line(r"alloc_\w*slots runs out of memory|Not enough space for mamba cache")
    if not line:
        return None
    running = case.seen(r"#running-req: (\d+)")
    words = f" at {running[1]} running requests" if running else ""
    return Diagnosis(
        Failure.REQUEST_SLOTS_EXHAUSTED,
        f"the pool of request slots was exhausted{words}: a limit, not a lack of GPU memory",
        f"Set max_running_requests (--max-running-requests) {'below ' + running[1] if running else 'lower'}, or one state slot more per request",
        (line,),
        "lower",
    )


def graph_capture(case: Case) -> Diagnosis | None:
    """Memory ran out while graphs were captured, after the pools had taken theirs."""
    if case.log.phase not in ("graphs",) and not case.find(r"[Cc]apture cuda graph failed"):
        return None
    line = case.line(_OUT_OF_MEMORY)
    if not line:
        return None
    fraction, tried, had = _fraction(case), case.find(r"Tried to allocate ([\d.]+ [GM]iB)"), case.seen(r"[Cc]apture cuda graph begin.*?avail mem=([\d.]+)")
    sums = f" (needed {tried[1]}{f', had {float(had[1]):.1f} GiB' if had else ''})" if tried else ""
    to = f" from {fraction:.2f} to {fraction - 0.04:.2f}" if fraction else ""
    return Diagnosis(
        Failure.GRAPH_CAPTURE_OOM,
        f"out of memory in graph capture{sums}: the pools left too little",
        f"Lower mem_fraction_static{to}, or set {_LESS_GRAPH}",
        (line,),
        "lower",
    )


def _main_alive(case: Case) -> bool:
    return str(case.get("unit.ActiveState", "unit.active_state") or "") == "active"


def draft_load(case: Case) -> Diagnosis | None:
    """0.5.9 loads the draft head after the pools and graphs of the target, out of the slack."""
    line = case.line(_OUT_OF_MEMORY)
    if not line or not case.seen(r"[Cc]apture (?:\w+ )*(?:cuda|CUDA) graphs? end") or not case.frame(r"eagle_worker|draft_worker|multi_layer_eagle"):
        return None
    return Diagnosis(
        Failure.DRAFT_LOAD_OOM,
        "CUDA out of memory while the draft head was loaded, after the pools and graphs of the model had taken theirs",
        f"Lower mem_fraction_static, set {_LESS_STATE}, or drop speculation",
        (line,),
        "lower",
    )


def pool_allocation(case: Case) -> Diagnosis | None:
    """The pools were sized, and what the sizing does not charge (padding, tables, workspaces) did not fit into the slack."""
    line = case.line(_OUT_OF_MEMORY)
    if not line or case.log.phase not in ("pools", "scheduler") or _main_alive(case) or case.frame(r"create_weights|weight_loader|load_weights"):
        return None
    workspace = case.frame(r"workspace")
    what = "the attention backend's workspace was" if workspace else "the pools were"
    return Diagnosis(
        Failure.ATTENTION_WORKSPACE_OOM if workspace else Failure.POOL_ALLOCATION_OOM,
        f"CUDA out of memory while {what} allocated: the slack is smaller than what the sizing leaves out (padding, tables, workspaces)",
        f"Lower mem_fraction_static, set a smaller max_running_requests, or {_LESS_GRAPH}",
        (line,),
        "lower",
        "likely",
    )


def load_or_serve_oom(case: Case) -> Diagnosis | None:
    """CUDA ran out of memory while loading or serving."""
    line = case.line(_OUT_OF_MEMORY)
    if not line:
        return None
    who = f"rank {case.rank}: " if case.rank else ""
    if case.log.phase in ("serving", "warmup"):
        remedy, direction = "Lower mem_fraction_static, use a smaller chunked_prefill_size or fewer image tokens", "lower"
        return Diagnosis(Failure.SERVING_OOM, f"{who}CUDA out of memory while serving: the slack was too small", remedy, (line,), direction)
    alive = _main_alive(case)
    still = "; the main process still lives, but this start has failed" if alive else ""
    other = case.find(r"Process (\d+) has ([\d.]+ [GM]iB) memory in use")
    held = f" (process {other[1]} holds {other[2]})" if other else ""
    return Diagnosis(
        Failure.RANK_DIED_MAIN_ALIVE if alive else Failure.LOAD_OOM,
        f"{who}CUDA out of memory while the weights were loaded{held}{still}",
        f"Look for other holders of GPU memory first; else the model is too large for these GPUs: {_LESS_WEIGHT}",
        (line,),
        confidence="certain" if other or alive else "likely",
    )


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (
    two_fractions_fail,
    unbalanced,
    advice_already_met,
    hybrid_state,
    too_few_slots,
    not_enough_memory,
    context_too_long,
    slots_exhausted,
    pool_exhausted,
    draft_load,
    graph_capture,
    pool_allocation,
    load_or_serve_oom,
)
