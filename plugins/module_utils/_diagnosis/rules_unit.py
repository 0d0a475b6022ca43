# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the unit, its log's age, and the resolver: facts around the log."""

from __future__ import annotations

import re
import typing as t

from .._engine.failures import Failure
from .case import Case, Diagnosis


def stale_log(case: Case) -> Diagnosis | None:
    """The log ends before this start began, so it belongs to another start."""
    written, started = case.get("log_mtime"), case.get("start_time")
    # Both in ISO 8601 with the same zone, so that text order is time order.
    if not isinstance(written, str) or not isinstance(started, str) or written >= started:
        return None
    invocation = case.get("journal_invocation", "identity.invocation_id")
    return Diagnosis(
        Failure.STALE_LOG,
        f"the log was last written at {written}, before this start ({started}): it is not this run's log",
        f"Read the journal of this start: journalctl _SYSTEMD_INVOCATION_ID={invocation or '...'}",
        tuple(case.lines[-1:]),
    )


def crash_loop(case: Case) -> Diagnosis | None:
    """The number of restarts rose during the wait."""
    samples = case.get("samples", "unit_samples")
    if not isinstance(samples, list):
        return None
    counts = [int(sample["NRestarts"]) for sample in samples if isinstance(sample, dict) and "NRestarts" in sample]
    if len(counts) < 2 or counts[-1] <= counts[0]:
        return None
    last = case.get("last_error") or case.first_error
    cause = f". Cause of the last complete run: {last}" if last else ""
    nvcc = " (the CUDA toolkit is missing in the container)" if last and "nvcc" in str(last) else ""
    return Diagnosis(
        Failure.CRASH_LOOP,
        f"the service crashed and was restarted {counts[-1] - counts[0]} times while waiting (NRestarts {counts[0]} -> {counts[-1]}){cause}{nvcc}",
        "Stop the unit, repair the cause, start again",
        tuple(f"NRestarts={count}" for count in counts),
    )


def start_timeout(case: Case) -> Diagnosis | None:
    """systemd's own limit ended the start."""
    if str(case.get("unit.Result", "unit.result") or "") != "timeout":
        return None
    limit = str(case.get("unit.TimeoutStartUSec", "unit.timeout_start") or "its limit")
    seconds = _seconds(limit)
    bytes_, speed = case.number("model_bytes"), case.number("disk_mb_s")
    need = bytes_ / speed / 1e6 if bytes_ and speed else None
    shards = case.seen(r"shards:?\s*(\d+) ?%")
    came = f" at {shards[1]} % of the weights" if shards else f" in the phase '{case.log.phase}'"
    sums = f". {bytes_ / 1e9:.0f} GB at {speed:.0f} MB/s need about {need:.0f} s" if need and bytes_ and speed else ""
    wanted = int((need or 300) * 3 / 100 + 1) * 100
    return Diagnosis(
        Failure.START_TIMEOUT,
        f"systemd stopped the start after {seconds or limit} s{came}{sums}",
        f"Set TimeoutStartSec to {wanted}, or Type=exec and no waiting in ExecStartPost",
        tuple(case.lines[-1:]),
        "raise",
        action="fix_and_continue",
    )


def _seconds(text: str) -> int | None:
    """Read systemd's "1min 30s" as seconds."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    parts = re.findall(r"(\d+)(us|ms|s|min|h)\b", text)
    return int(sum(int(number) * units[unit] for number, unit in parts)) if parts else None


def ram_kill(case: Case) -> Diagnosis | None:
    """The kernel killed a process because main memory ran out. systemd and the control group count it; exit code 137 alone does not prove it."""
    kills = case.number("memory_events.oom_kill")
    if str(case.get("unit.Result", "unit.result") or "") != "oom-kill" and not kills:
        return None
    counted = f" (memory.events counts {kills:.0f})" if kills else ""
    return Diagnosis(
        Failure.RAM_KILL,
        f"a process of the service was killed because main memory ran out in the phase '{case.log.phase}'{counted}",
        "Raise gpu_container__memory_mib, or set weight_loader_drop_cache_after_load",
        (case.seen_line(r"oom-kill|OOM killer|crashed with exit code -9") or "Result=oom-kill",),
        "raise",
    )


def normal_stop(case: Case) -> Diagnosis | None:
    """A requested stop; some versions then kill themselves with SIGKILL."""
    if not case.get("stop_requested") and not case.seen(r"^Stopping |Stopped .*\.service"):
        return None
    line = case.seen_line(r"SIGTERM received|Gracefully exiting|Finished server process")
    if not line:
        return None
    status = case.get("exit.status", "unit.ExecMainStatus", "unit.exec_status")
    return Diagnosis(
        Failure.NORMAL_STOP,
        f"stopped on request (status {status} is how this engine ends)" if status else "stopped on request",
        "",
        (line,),
        action="continue_or_wait",
    )


def stopped(case: Case) -> Diagnosis | None:
    """Somebody stopped the unit while it started; the engine says nothing then."""
    line = case.seen_line(r"^Stopping ") or _ended_by_request(case)
    if not line or case.first_error:
        return None
    return Diagnosis(
        Failure.STOPPED,
        f"the service was stopped from outside in the phase '{case.log.phase}'; it did not fail",
        "Run the deployment again",
        (line,),
    )


def killed(case: Case) -> Diagnosis | None:
    """The main process was ended by a signal and says nothing about it; a crash of its own leaves its words (asked last, after all rules)."""
    how = re.fullmatch(r"ended by (signal (?:9|15))\b.*", str(case.get("unit.exit_words") or ""))
    if not how or case.seen(r"(?i)sigquit|kill_process_tree|SIGTERM received|^Stopping "):
        return None
    when = "while it served" if case.log.phase == "serving" else f"in the phase '{case.log.phase}'"
    return Diagnosis(
        Failure.KILLED_FROM_OUTSIDE,
        f"the main process was ended by {how[1]} {when}; its log holds no error, so the signal came from outside",
        "Look at the kernel's log of the node (memory, Xid) and at who manages this container, then run the deployment again",
        tuple(case.lines[-2:]),
        confidence="likely",
    )


def _ended_by_request(case: Case) -> str:
    """systemd's own account of a stop, if the log lacks the line. With Restart=always, only a requested stop stays stopped."""
    asked = str(case.get("unit.active_state") or "") in ("inactive", "deactivating") and str(case.get("unit.result") or "") == "success"
    how = str(case.get("unit.exit_words") or "")
    return f"{how}, unit {case.get('unit.active_state')}" if asked and how.startswith("ended by signal 15") else ""


def warmup_sequence(case: Case) -> Diagnosis | None:
    """The web framework was up, the engine was not."""
    steps = case.get("steps")
    if not isinstance(steps, list):
        return None
    lines = [str(step["log"]) for step in steps if isinstance(step, dict) and "log" in step]
    failed = next((line for line in lines if "warmup error" in line), "")
    if not failed:
        return None
    cause = failed.split("warmup error:", 1)[-1].strip()
    seconds = steps[-1].get("t")
    return Diagnosis(
        Failure.WARMUP_FAILED,
        f"the web server was up but served nothing (health 503), its warm-up failed: {cause}. The process ended {seconds} s after the start",
        "Choose an attention_backend that has kernels for this GPU",
        (failed,),
    )


def silent_source_build(case: Case) -> Diagnosis | None:
    """A missing wheel made the installer compile."""
    started, wheels = str(case.get("started") or ""), case.get("available_wheels")
    if not started.startswith("Building ") or not isinstance(wheels, list):
        return None
    what = started.split()[1].split("==")[0]
    torch, newest = case.get("torch"), wheels[-1] if wheels else "none"
    return Diagnosis(
        Failure.SILENT_SOURCE_BUILD,
        f"there is no {what} wheel for torch {torch} and Python {case.get('python')}, so it is compiled from source, which takes about an hour",
        f"Allow the build explicitly, or use the newest torch with a wheel ({newest})",
        (started,),
        action="warn_and_continue",
    )


def resolver_surprise(case: Case) -> Diagnosis | None:
    """The resolver chose another version or another index than the wanted one."""
    resolved = case.get("resolved")
    if not isinstance(resolved, dict) or not resolved:
        return None
    name, found = next(iter(resolved.items()))
    if isinstance(found, dict) and case.get("strategy") == "first-index":
        return Diagnosis(
            Failure.WRONG_INDEX,
            f"{name} {found.get('version')} was taken from the index {found.get('from')}, which hides the main index",
            "Mark the extra index explicit and bind only torch, torchvision and torchaudio to it",
            (f"{name}=={found.get('version')} from {found.get('from')}",),
        )
    wanted = str(case.get("wanted") or "")
    if isinstance(found, str) and wanted.startswith(name):
        needs = [need for needs in (case.get("requires") or {}).values() for need in needs]
        pre = next((re.split(r"[<>=!~]", need)[0] for need in needs), "")
        return Diagnosis(
            Failure.RESOLVER_BACKTRACKED,
            f"the resolver chose {name} {found}, wanted is {wanted.removeprefix(name)}{f': {pre} exists only as a pre-release' if pre else ''}",
            f"Pin the version exactly{f' and allow pre-releases for {pre} only' if pre else ''}",
            (f"{name}=={found}",),
        )
    return None


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (
    stale_log,
    crash_loop,
    ram_kill,
    normal_stop,
    start_timeout,
    stopped,
    warmup_sequence,
    silent_source_build,
    resolver_surprise,
)
