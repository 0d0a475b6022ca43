# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Diagnosis against recorded failure cases: class, action and what the message must say."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.case import Case
from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose import diagnose, silent_faults
from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose_with_plan_edge import explain
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
CASES = [json.loads(line) for line in (FIXTURES / "sglang_failure_cases.jsonl").read_text(encoding="utf-8").splitlines()]
# Claims of the cases that can be told by their wording; the others are judged by their meaning, in the class.
WORDING = {"increase --mem-fraction-static", "decrease --mem-fraction-static", "still loading", "the service is ready", "everything is ok", "kill 9120"}


def log_and_context(repro: dict[str, t.Any]) -> tuple[list[str], dict[str, t.Any]]:
    """What a caller has at hand: the log's lines, and everything else as facts."""
    lines = repro.get("lines") or repro.get("log") or []
    return list(lines), {name: value for name, value in repro.items() if name not in ("lines", "log", "type")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_recorded_case(case: dict[str, t.Any]) -> None:
    found = diagnose(*log_and_context(case["repro"]))
    expect = case["expect"]
    message = f"{found.cause}. {found.remedy}"
    assert found.class_ == expect["class"], found
    assert found.action == expect["action"]
    for words in expect["must_mention"]:
        assert words.lower() in message.lower(), message
    for words in WORDING & set(expect["must_not_claim"]):
        assert words.lower() not in message.lower(), message


def test_every_kind_of_the_service_is_covered() -> None:
    assert {case["kind"] for case in CASES} == {
        "readiness",
        "gpu-cleanup",
        "systemd",
        "silent-degradation",
        "sglang-memory",
        "sglang-arch",
        "python-env",
        "multi-gpu",
    }


def test_unknown_is_an_honest_answer_with_the_evidence() -> None:
    found = diagnose(["gate: ok", "Load weight begin. avail mem=46.9 GB", "something nobody has seen"], {"made_up_key": 1})
    assert found.class_ == "unknown" and found.confidence == "none" and found.remedy == ""
    assert found.phase == "weights" and "something nobody has seen" in found.evidence


def test_an_exception_without_a_rule_is_named_and_not_explained() -> None:
    lines = [
        "[2026-11-29 12:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "x.py", line 1, in run',
        "ZeroDivisionError: division by zero",
        "[2026-11-29 12:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        "RuntimeError: Connection closed by peer",
        "Received sigquit from a child process. It usually means the child failed.",
    ]
    found = diagnose(lines)
    assert found.class_ == "unknown" and "ZeroDivisionError" in found.cause and "sigquit" not in found.cause


def test_the_first_failing_rank_decides() -> None:
    lines = [
        "[2026-11-29 12:00:00 TP1] Traceback (most recent call last):",
        "[2026-11-29 12:00:00 TP0] RuntimeError: an echo of another rank",
        "[2026-11-29 12:00:00 TP1] ValueError: the cause",
    ]
    assert "the cause" in Case(lines).first_error


@pytest.mark.parametrize(
    ("context", "class_", "direction", "words"),
    [
        # The first launch that failed: 48 requests nobody asked for, 4 draft copies each (sglang_memory.md, section 3).
        (
            {"args": {"mem_fraction_static": 0.85, "speculative_num_steps": 3}, "model_facts": {"state_mib_per_slot": 73.41}},
            "hybrid_state_pool_too_large",
            "lower",
            "17.2 GiB",
        ),
        ({"args": {"mem_fraction_static": 0.4}}, "fraction_too_low", "raise", "Raise mem_fraction_static above 0.547"),
        ({"args": {"mem_fraction_static": 0.85}, "gpu_total_gib": 62.0}, "gpu_occupied", "", "another process holds GPU memory"),
    ],
)
def test_not_enough_memory_is_told_apart_by_the_sum(context: dict[str, t.Any], class_: str, direction: str, words: str) -> None:
    lines = [
        "Max running requests is reset to 48 for speculative decoding.",
        "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=46.90 GB",
        "[2026-11-29 12:00:00 TP0] Load weight end. type=Qwen3_5ForConditionalGeneration, avail mem=21.26 GB, mem usage=25.61 GB.",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.85",
    ]
    found = diagnose(lines, context)
    assert (found.class_, found.direction) == (class_, direction)
    assert words in f"{found.cause} {found.remedy}"


@pytest.mark.parametrize(
    ("line", "class_", "direction"),
    [
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise --mem-fraction-static above 0.592",
            "fraction_too_low",
            "raise",
        ),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.9. Raise --mem-fraction-static above 0.97",
            "weights_too_large",
            "",
        ),
        (
            "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache, total_rest_memory=-3.05",
            "hybrid_state_pool_too_large",
            "raise",
        ),
        ("AssertionError: max_running_request is zero", "state_slots_too_few", "raise"),
        ("RuntimeError: TP rank could finish the model loading, but there are other ranks that didn't finish loading", "rank_missing", ""),
        ("NVMLError: Driver/library version mismatch", "driver_mismatch", ""),
    ],
)
def test_lines_of_the_table(line: str, class_: str, direction: str) -> None:
    found = diagnose(["Load weight begin. avail mem=46.9 GB", line])
    assert (found.class_, found.direction) == (class_, direction), found


def test_what_the_wait_saw_counts_where_the_log_is_silent() -> None:
    found = diagnose(["gate: ok"], {"loss": ["wrong_answer", "the answer was '!!!!', accepted is 'paris'"]})
    assert found.class_ == "wrong_answer" and "!!!!" in found.cause and found.remedy


@pytest.mark.parametrize(
    ("name", "class_", "phase", "words"),
    [
        ("model_path_absent", "model_path_missing", "gate", "/srv/t/absent"),
        ("unknown_option", "bad_option", "gate", "unrecognized arguments: --no-such-flag 1"),
        ("no_memory", "hybrid_state_pool_too_large", "pools", "-0.14 GiB rest"),
        ("tokenizer_absent", "tokenizer_missing", "warmup", "tokenizer files"),
        ("weights_truncated", "weights_truncated", "weights", "not whole"),
        ("stopped_while_starting", "stopped", "gate", "it did not fail"),
        ("port_taken", "port_taken", "scheduler", "held by another process"),
        ("scheduler_killed", "child_killed", "serving", "signal 9"),
    ],
)
def test_logs_of_the_real_engine(name: str, class_: str, phase: str, words: str) -> None:
    """Logs of SGLang 0.5.23 on a CPU, each fault provoked once (lines cut to 400 characters, import notes left out)."""
    lines = (FIXTURES / "sglang_logs" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    found = diagnose(lines, {"model_path": "/srv/t/absent"})
    assert (found.class_, found.phase) == (class_, phase), found
    assert words in found.cause
    assert found.evidence and found.remedy and found.confidence in ("certain", "likely")


def test_the_log_of_a_good_start_has_no_cause() -> None:
    lines = (FIXTURES / "sglang_logs" / "ready.log").read_text(encoding="utf-8").splitlines()
    assert diagnose(lines).class_ == "unknown"


@pytest.mark.parametrize("context", [{"unit": {"result": "oom-kill"}}, {"memory_events": {"oom": 1, "oom_kill": 2}}])
def test_the_kernels_count_decides_about_a_kill_for_memory(context: dict[str, t.Any]) -> None:
    lines = ["Load weight begin. avail mem=46.9 GB", "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."]
    assert diagnose(lines, context).class_ == "ram_kill"
    assert diagnose(lines, {"unit": {"result": "signal"}, "memory_events": {"oom_kill": 0}}).class_ == "child_killed"


@pytest.mark.parametrize(
    ("line", "class_", "remedy"),
    [
        ("gate: GPU memory is in use after 90 s: GPU-aa holds 30000 MiB (allowed: 500 MiB)", "gpu_occupied", "names the holder"),
        ("gate: port 30000 on 0.0.0.0 cannot be had (Address already in use)", "port_taken", "End the other server"),
        ("gate: model /srv/x cannot be read (No such file or directory): is the model store mounted?", "model_path_missing", "mounted"),
        ("gate: the node's driver is not 580.1 (NVRM version: 570): deploy again to bring both in line", "gate_refused", "Run the deployment again"),
    ],
)
def test_a_refusal_of_the_gate_has_class_and_remedy(line: str, class_: str, remedy: str) -> None:
    found = diagnose(["Started kpro-sglang.service", line], {"unit": {"exit_words": "exit code 78"}})
    assert (found.class_, found.phase, found.evidence) == (class_, "gate", (line,))
    assert line.removeprefix("gate: ") in found.cause and remedy in found.remedy


def test_a_kill_that_the_log_does_not_explain_came_from_outside() -> None:
    serving = ["gate: ok", "Uvicorn running on http://0.0.0.0:30000", "The server is fired up and ready to roll!"]
    found = diagnose(serving, {"unit": {"exit_words": "ended by signal 9"}, "loss": ["crashed", "x"]})
    assert found.class_ == "killed_from_outside" and "signal 9 while it served" in found.cause and found.confidence == "likely"
    own = diagnose([*serving, "kill_process_tree called: parent_pid=1"], {"unit": {"exit_words": "ended by signal 9"}})
    assert own.class_ == "unknown"


def test_a_stop_is_known_from_the_unit_where_its_line_is_missing() -> None:
    unit = {"exit_words": "ended by signal 15", "active_state": "inactive", "result": "success"}
    assert diagnose(["gate: ok", "server_args={}"], {"unit": unit}).class_ == "stopped"
    assert diagnose(["gate: ok", "server_args={}"], {"unit": {**unit, "active_state": "activating"}}).class_ == "killed_from_outside"


def test_a_crash_loop_names_the_first_error_and_a_known_port_the_holder() -> None:
    lines = ["Scheduler hit an exception: Traceback (most recent call last):", "RuntimeError: CUDA error: an illegal memory access was encountered"]
    found = diagnose(lines, {"loss": ["crash_loop", "NRestarts 0 -> 2"]})
    assert found.class_ == "crash_loop" and "NRestarts 0 -> 2" in found.cause and "illegal memory access" in found.cause
    held = "port 1 is held by pid 7 (x), not by kpro-sglang.service"
    assert diagnose(["[Errno 98] address already in use"], {"loss": ["other_server_answers", held]}).cause == held


SEED_LINES = [
    "Max running requests is reset to 48 for speculative decoding.",
    "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=46.90 GB",
    "[2026-11-29 12:00:00 TP0] Load weight end. type=Qwen3_5ForConditionalGeneration, avail mem=21.26 GB, mem usage=25.61 GB.",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.85",
]
SEED_FACTS: dict[str, t.Any] = {
    "gpu_memory_mib": [49140, 49140],
    "engine_version": "0.5.9",
    "args": {
        "tp_size": 2,
        "context_length": 65536,
        "mem_fraction_static": 0.85,
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    },
}


def test_the_sum_and_how_far_an_option_has_to_go_are_those_of_the_plan() -> None:
    found = explain(SEED_LINES, {**SEED_FACTS, "model_config": config_of("Qwen/Qwen3.6-27B")})
    assert found.class_ == "hybrid_state_pool_too_large" and found.direction == "lower"
    assert "Rest 14.22 - copies 13.76 - slots 3.44 = -2.98 GiB for the cache" in found.cause
    assert found.remedy.startswith("Computed: set max_running_requests from 48 (implicit) to 8 (then OK: 372,1")
    assert found.remedy.count("max_running_requests from") == 1


def test_what_the_plan_says_would_have_fitted_points_elsewhere() -> None:
    facts = {**SEED_FACTS, "args": {**SEED_FACTS["args"], "max_running_requests": 8}, "model_config": config_of("Qwen/Qwen3.6-27B")}
    found = explain(SEED_LINES[1:], facts)
    assert "By the plan it would have fitted" in found.cause and "something else held memory" in found.cause


@pytest.mark.parametrize("lacking", ["gpu_memory_mib", "engine_version", "args", "model_config"])
def test_without_a_fact_of_the_plan_the_log_speaks_alone(lacking: str, tmp_path: Path) -> None:
    facts = {**SEED_FACTS, "model_config": config_of("Qwen/Qwen3.6-27B"), "model_path": str(tmp_path)}
    del facts[lacking]
    found = explain(SEED_LINES, facts)
    assert "By the plan" not in found.cause and found.remedy == diagnose(SEED_LINES, facts).remedy


def test_the_models_config_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("Qwen/Qwen3.6-27B")), encoding="utf-8")
    assert "By the plan" in explain(SEED_LINES, {**SEED_FACTS, "model_path": str(tmp_path)}).cause
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert "By the plan" not in explain(SEED_LINES, {**SEED_FACTS, "model_path": str(tmp_path)}).cause


LOADED = [
    "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=46.90 GB",
    "[2026-11-29 12:01:00 TP0] Load weight end. type=X, avail mem=21.26 GB, mem usage=25.61 GB.",
]
CAPTURED = [
    *LOADED,
    "[2026-11-29 12:01:01 TP0] Memory pool end. avail mem=7.00 GB",
    "[2026-11-29 12:01:02 TP0] Capture cuda graph begin. avail mem=7.0 GB",
]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SERVING = "[2026-11-29 12:02:00] The server is fired up and ready to roll!"


@pytest.mark.parametrize(
    ("lines", "class_", "direction"),
    [
        (["Max running requests is reset to 48 for speculative decoding. You can override this"], "implicit_request_limit", "lower"),
        (["Disabling radix cache since speculative decoding for Qwen3_5 is not supported with radix cache yet."], "prefix_cache_off", ""),
        (["ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."], "gpu_unbalanced", ""),
        (["[TP0] Load weight begin. avail mem=30.00 GB"], "gpu_occupied", ""),
        ([*LOADED[:1], "  File loader.py, in create_weights", OOM], "load_oom", ""),
        (["TP rank could finish the model loading, but there are other ranks that didn't finish loading."], "rank_missing", ""),
        ([*LOADED, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."], "pools_too_large", "lower"),
        (["ValueError: Loaded weights leave no GPU memory for the KV cache. Raise --mem-fraction-static above 0.9"], "fraction_too_low", "raise"),
        (["RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache."], "hybrid_state_pool_too_large", "raise"),
        (["The mamba state cache is too small to serve any requests"], "state_slots_too_few", "raise"),
        (["AssertionError: max_running_request is zero"], "state_slots_too_few", "raise"),
        (["max_running_requests is capped to 7 by the mamba state cache"], "requests_capped", "raise"),
        (["max_total_tokens=500000 is larger than the profiled value 178472. Use the profiled value instead."], "token_cap_too_high", "lower"),
        ([*LOADED, "AssertionError: Memory pool size is too small"], "pools_too_large", "lower"),
        (["max_total_num_tokens=8063, chunked_prefill_size=4096, max_running_requests=8, context_len=65536"], "cache_shorter_than_context", "lower"),
        ([*LOADED, "  File memory_pool.py, in __init__", OOM], "pool_allocation_oom", "lower"),
        ([*LOADED, "  File flashinfer_backend.py, workspace_buffer = torch.empty(", OOM], "attention_workspace_oom", "lower"),
        (["[TP0] Memory pool end. avail mem=1.20 GB"], "little_slack", "lower"),
        ([*CAPTURED, f"Exception: Capture cuda graph failed: {OOM}", "Possible solutions:"], "graph_capture_oom", "lower"),
        ([*CAPTURED, "Capture cuda graph end. mem usage=1.00 GB.", "  File eagle_worker.py, in __init__", OOM], "draft_load_oom", "lower"),
        (["Capture cuda graph end. Time elapsed: 9 s. mem usage=-5.29 GB. avail mem=30.00 GB."], "loader_temporaries_counted", ""),
        (["AssertionError: Not enough space for mamba cache, try to increase --mamba-full-memory-ratio"], "request_slots_exhausted", "lower"),
        ([*CAPTURED, SERVING, OOM], "serving_oom", "lower"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_line_of_the_memory_table_has_its_meaning(lines: list[str], class_: str, direction: str) -> None:
    found = diagnose(lines, {"args": {"mem_fraction_static": 0.85}, "gpu_memory_mib": [49140]})
    assert (found.class_, found.direction) == (class_, direction), found
    assert found.cause and found.remedy and found.evidence


def test_a_start_of_the_real_engine_that_is_well_has_no_note() -> None:
    lines = (FIXTURES / "sglang_logs" / "ready.log").read_text(encoding="utf-8").splitlines()
    assert silent_faults(lines, {"args": {"device": "cpu"}, "gpu_memory_mib": [49140]}) == []


def test_a_note_is_no_cause_of_a_lost_start() -> None:
    found = diagnose([SEED_LINES[0]], {"loss": ["crashed", "it ended"]})
    assert found.class_ == "unknown"


KERNEL = [
    "[ 1.0] NVRM: Xid (PCI:0000:41:00): 31, pid=812, name=python, MMU Fault: ENGINE GRAPHICS",
    "[ 2.0] NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', GPU has fallen off the bus.",
]


def test_xid_events_decide_about_the_card() -> None:
    error = "[2026-11-29 12:00:00 TP1] torch.AcceleratorError: CUDA error: unspecified launch failure"
    found = diagnose([error], {"kernel_log": "\n".join(KERNEL)})
    assert found.class_ == "gpu_fault" and "GPU 0000:61:00 reported Xid 79" in found.cause and "cold start" in found.remedy
    program = diagnose([error], {"kernel_log": KERNEL[0]})
    assert program.class_ == "gpu_program_fault" and "Restart the service" in program.remedy
    alone = diagnose([error])
    assert alone.class_ == "cuda_error" and "rank 1" in alone.cause and "gpu_info" in alone.remedy
    listed = diagnose([error], {"xids": [{"bus_id": "0000:41:00", "xid": 48, "text": "DBE", "critical": True}]})
    assert listed.class_ == "gpu_fault" and "Xid 48" in listed.cause
    assert diagnose([error], {"xids": [{"bus_id": "0000:41:00", "xid": 999, "text": "?"}]}).class_ == "cuda_error"
