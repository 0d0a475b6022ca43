# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about a service that runs, yet not as it should, and about memory that does not come free."""

from __future__ import annotations

import re
import typing as t

from .._engine.failures import Failure
from .case import Case, Diagnosis


def other_server(case: Case) -> Diagnosis | None:
    """Somebody else answers on the port."""
    holder, ours = case.number("ss_pid", "port_owner_pid"), case.number("unit_main_pid", "identity.main_pid")
    if not holder or not ours or holder == ours:
        return None
    models = ", ".join(str(model) for model in case.get("models") or []) or "unknown"
    return Diagnosis(
        Failure.OTHER_SERVER_ANSWERS,
        f"the port is answered by pid {holder:.0f} (model {models}), not by our service (pid {ours:.0f})",
        "End the other server or choose another sglang_server__port",
        (f"listener pid {holder:.0f}", f"main pid {ours:.0f}"),
    )


def port_held(case: Case) -> Diagnosis | None:
    """A worker of the previous run holds the port without any GPU memory."""
    listeners, table = case.get("ss"), case.get("ps")
    if not isinstance(listeners, list) or not isinstance(table, list):
        return None
    processes = {row.get("pid"): row for row in table if isinstance(row, dict)}
    for row in listeners:
        process = processes.get(row.get("pid"))
        if process and "sglang" in str(process.get("cmd")):
            return Diagnosis(
                Failure.PORT_HELD_BY_LEFTOVER,
                f"port {row['port']} is held by pid {row['pid']} ({process['cmd']}), left over from the previous run; it holds no GPU memory",
                "Clean up with kpro.llm.gpu_cleanup, which looks at port and unit too",
                (f"{row['pid']} {process['cmd']}",),
                action="fix_and_continue",
            )
    return None


def on_the_cpu(case: Case) -> Diagnosis | None:
    """Ready, but without a GPU."""
    line = case.seen_line(r"starting with cpu backend|timed out looking for GPUs")
    if not line or case.number("vram_by_service_mib") not in (0, None):
        return None
    return Diagnosis(
        Failure.RUNNING_ON_CPU,
        f"the engine holds no GPU memory: it runs on the CPU ({line.strip()})",
        "Warm the GPUs up before the start (persistence mode on the node), then restart",
        (line,),
    )


def wrong_weights(case: Case) -> Diagnosis | None:
    """Parameters were dropped while loading, so the text is none."""
    line = case.seen_line(r"not found in params_dict|Some weights are not initialized from checkpoints?")
    if not line:
        return None
    named = sum("not found in params_dict" in text for text in case.lines)
    more = case.seen(r"\((\d+) more of this kind\)")
    count = named + (int(more[1]) if more else 0)
    said = case.get("generate.text")
    return Diagnosis(
        Failure.WEIGHTS_LOADED_WRONG,
        f"{count} parameters of the checkpoint were not loaded (first: {line.split(' not found')[0].split()[-1]})"
        f"{f' and the test answer is no text ({said})' if said else ''}: the weights are wrong in this release",
        "Use a newer engine, or a BF16 checkpoint",
        (line,),
    )


def peer_copies(case: Case) -> Diagnosis | None:
    """Copies between the GPUs arrive with other bytes."""
    copy = case.get("copy_checksum")
    if not isinstance(copy, dict) or copy.get("sent") == copy.get("received"):
        return None
    return Diagnosis(
        Failure.P2P_CORRUPTS_DATA,
        f"copies between the GPUs return other bytes than were sent (checksum {copy.get('received')} for {copy.get('sent')}, "
        f"{int(copy.get('bytes', 0)) >> 20} MiB)",
        "Keep peer access off with this driver: disable_custom_all_reduce and NCCL_P2P_DISABLE=1",
        (str(case.get("generate_text") or ""),),
    )


def tool_parser(case: Case) -> Diagnosis | None:
    """A tool call arrived as text."""
    message = case.get("response.message")
    if not isinstance(message, dict) or message.get("tool_calls"):
        return None
    where = next((name for name in ("reasoning_content", "content") if "<tool_call>" in str(message.get(name) or "")), "")
    if not where:
        return None
    return Diagnosis(
        Failure.TOOL_PARSER_WRONG,
        f"the server answers, but a test tool call came back inside {where}",
        "Set tool_call_parser (--tool-call-parser) and reasoning_parser for this model",
        (str(message[where]),),
        action="warn_and_continue",
    )


def effective_setting(case: Case) -> Diagnosis | None:
    """The engine chose a method by itself."""
    found, wanted = case.seen(r"Detected speculative method: (\w+)"), case.get("wanted")
    if not found or wanted is None or str(wanted) == found[1]:
        return None
    path = case.get("path")
    return Diagnosis(
        Failure.EFFECTIVE_SETTING_DIFFERS,
        f"the engine chose the speculative method '{found[1]}'{f' from the folder name {path}' if path else ''}; wanted is '{wanted}'",
        "Set the option explicitly",
        (found.string,),
        action="warn_and_continue",
    )


def smaller_pool(case: Case) -> Diagnosis | None:
    """The KV pool is smaller than at the last good start."""
    before, now = case.number("baseline_kv_tokens"), case.number("now_kv_tokens")
    if not before or not now or now >= 0.9 * before:
        return None
    used = case.number("used_before_start_mib")
    why = f": the GPUs were not empty at the start ({used / 1024:.1f} GiB used)" if used else ""
    return Diagnosis(
        Failure.DEGRADED_POOL,
        f"the KV pool holds {now / 1000:.0f}k tokens, {100 * (1 - now / before):.0f} % below the last good start ({before / 1000:.0f}k){why}",
        "Restart the service once the GPUs are empty",
        (f"max_total_num_tokens={now:.0f}",),
        action="warn_and_continue",
    )


def ghost_memory(case: Case) -> Diagnosis | None:
    """Memory in use and nobody who uses it."""
    used, processes, handles = case.number("nvml.used_mib"), case.get("nvml.processes"), case.get("fuser_dev_nvidia")
    if not used or processes or handles is None or handles:
        return None
    test = case.number("alloc_test_gib")
    words = f"; an allocation test got {test:g} GiB, so the figure is stale" if test else ""
    return Diagnosis(
        Failure.GHOST_MEMORY,
        f"{used / 1024:.1f} GiB are reported in use with no process and no open device handle{words}",
        "No action while other guests use the node; a reboot clears the count",
        (f"used {used:.0f} MiB",),
        action="warn_and_continue",
    )


def teardown(case: Case) -> Diagnosis | None:
    """A process that was ended still frees its memory; this takes its time."""
    samples = case.get("samples")
    if not isinstance(samples, list) or not all(isinstance(sample, list) and len(sample) == 2 for sample in samples):
        return None
    first, last = samples[0][1], samples[-1][1]
    pinned = max((int(sample[1].get("locked_kb", 0)) for sample in samples), default=0)
    if pinned:
        since = next(seconds for seconds, values in samples if values.get("locked_kb"))
        until = next((seconds for seconds, values in reversed(samples) if values.get("locked_kb")), since)
        return Diagnosis(
            Failure.TEARDOWN_PENDING,
            f"the stop is still freeing pinned memory ({pinned / 2**20:.0f} GiB, {until} s so far)",
            "Wait",
            (str(samples[-1]),),
            action="continue_or_wait",
        )
    if "used_mib" not in first:
        return None
    pids = ", ".join(str(pid) for pid in first.get("pids", []))
    change = f"{first['used_mib'] / 1024:.1f} -> {last['used_mib'] / 1024:.1f} GiB"
    return Diagnosis(
        Failure.TEARDOWN_PENDING,
        f"waited {samples[-1][0]} s for pid {pids} to leave the GPU ({change})",
        "Wait",
        (str(samples[-1]),),
        action="continue_or_wait",
    )


def full_shm(case: Case) -> Diagnosis | None:
    """Shared memory is full of segments that nobody has open."""
    segments = case.get("shm")
    if not isinstance(segments, list):
        return None
    ours = re.compile(r"^(?:nccl-|sgl_shm_|sglang_|cuda\.shm\.)")
    orphans = [row for row in segments if ours.match(str(row.get("name"))) and not row.get("open_by")]
    if not orphans:
        return None
    size = sum(int(row.get("bytes", 0)) for row in orphans)
    return Diagnosis(
        Failure.SHM_LEAK,
        f"/dev/shm is full: {len(orphans)} left-over segments of earlier runs without an owner ({size / 2**20:.0f} MiB)",
        "kpro.llm.gpu_cleanup removes ours while the service is stopped; all others stay",
        tuple(str(row["name"]) for row in orphans[:5]),
        action="fix_and_continue",
    )


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (
    other_server,
    port_held,
    on_the_cpu,
    wrong_weights,
    peer_copies,
    tool_parser,
    effective_setting,
    smaller_pool,
    ghost_memory,
    teardown,
    full_shm,
)
