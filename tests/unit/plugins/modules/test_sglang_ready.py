# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module against a stand-in unit, journal and engine: real processes, real HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from sglang_standins import ENGINE, Ended, StandinUnit, free_port, run_module

from ansible_collections.kpro.llm.plugins.module_utils._start import watch_edge as _start_watch
from ansible_collections.kpro.llm.plugins.modules import sglang_ready

START = [
    {"log": "gate: ok"},
    {"log": "[2026-11-29 12:00:00] server_args={'model_path': '/srv/models/tiny'}"},
    {"log": "[2026-11-29 12:00:01] Load weight begin. avail mem=18.82 GB"},
    {"log": "[2026-11-29 12:00:02] Load weight end. elapsed=0.34 s, type=Qwen3ForCausalLM, avail mem=18.81 GB, mem usage=0.02 GB."},
    {"log": "[2026-11-29 12:00:03] max_total_num_tokens=4096, chunked_prefill_size=4096, context_len=8192"},
]
UP = [{"log": "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)"}]
# A container's count as a kernel with a memory controller shows it.
MEMORY_EVENTS = "low 0\nhigh 0\nmax 1312\noom 3\noom_kill 3\noom_group_kill 0\n"
CRASHED = "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
READY = [{"healthy": True, "log": "[2026-11-29 12:00:05] The server is fired up and ready to roll!"}]


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_start_watch, "CLOCK_PATH", str(tmp_path / "run" / "ready.json"))


@pytest.fixture
def port() -> int:
    return free_port()


def ready(identity: dict[str, t.Any], port: int, **more: t.Any) -> Ended:
    """Call the module as the action plugin does, until it has finished."""
    options = {"identity": identity, "port": port, "answer_pattern": "hello from", "poll_s": 5, **more}
    while True:
        ended = run_module(sglang_ready.main, **options)
        if ended.rc or ended.result["finished"]:
            return ended


def serving(port: int) -> list[dict[str, t.Any]]:
    return [*START, {"listen": port}, *UP, *READY]


@pytest.fixture(autouse=True)
def nothing_is_stopped(unit: StandinUnit) -> t.Iterator[None]:
    """The module only looks, whatever it finds."""
    yield
    assert not [call for call in unit.calls if not call.startswith(("show", "is-system-running"))]


def loss(ended: Ended) -> str:
    assert ended.rc == 1, ended.result
    return str(ended.result["details"]["loss"]["class"])


def test_ready_when_it_has_answered(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine([*START, {"sleep": 0.6}, {"listen": port}, *UP, {"sleep": 0.6}, *READY])
    ended = ready(identity, port)
    assert ended.rc == 0
    assert ended.result["ready"] and ended.result["level"] == "answer" and not ended.result["changed"]
    assert ended.result["answer"] == "Hello from the tiny test model."
    assert ended.result["context_length"] == 8192
    assert {"launch", "options", "weights", "pools", "scheduler", "warmup"} <= set(ended.result["phases_s"])


def test_progress_tells_phase_time_and_what_comes_next(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine(START[:3])
    ended = run_module(sglang_ready.main, identity=identity, port=port, poll_s=4)
    assert ended.rc == 0 and not ended.result["finished"]
    assert ended.result["progress"].startswith("weights are loaded (")
    assert "next: memory pools are allocated" in ended.result["progress"]


def test_the_ready_line_alone_is_not_ready(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine([*START, {"listen": port}, *UP, {"log": "The server is fired up and ready to roll!"}])
    ended = ready(identity, port, timeout_s=4, poll_s=2)
    assert loss(ended) == "timeout"
    assert "not ready after" in ended.result["msg"] and "it came as far as" in ended.result["msg"]
    assert "still loading" in ended.result["msg"] and "The start goes on. Run the deployment again to wait on" in ended.result["msg"]


def test_the_api_key_is_read_where_it_lies(unit: StandinUnit, port: int, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the-key\n", encoding="utf-8")
    identity = unit.run_engine(serving(port), api_key="the-key")
    assert ready(identity, port, api_key_path=str(tmp_path / "key")).rc == 0
    ended = ready(identity, port)
    assert loss(ended) == "api_key_refused"


def test_a_wrong_answer_fails(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine(serving(port), answer="!!!!!!!!!!!!")
    ended = ready(identity, port)
    assert loss(ended) == "wrong_answer" and "'!!!!!!!!!!!!'" in ended.result["msg"]


@pytest.mark.parametrize("scenario", [{"model": "qwen-old"}, {"model_path": "/srv/models/other"}])
def test_a_wrong_model_fails(unit: StandinUnit, port: int, scenario: dict[str, str]) -> None:
    identity = unit.run_engine(serving(port), **scenario)
    ended = ready(identity, port)
    assert loss(ended) == "wrong_model" and next(iter(scenario.values())) in ended.result["msg"]


def test_levels_end_where_they_are_told(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine([*START, {"listen": port}, *UP])
    assert ready(identity, port, level="port").result["level"] == "port"


@pytest.mark.parametrize(
    ("message", "good"),
    [
        ({"content": "", "tool_calls": [{"function": {"name": "get_time", "arguments": "{}"}}]}, True),
        ({"content": "", "reasoning_content": '<tool_call>{"name":"get_time"}</tool_call>', "tool_calls": None}, False),
    ],
)
def test_tool_calls_must_be_understood(unit: StandinUnit, port: int, message: dict[str, t.Any], good: bool) -> None:
    identity = unit.run_engine(serving(port), tool_message=message, thinks="I think")
    ended = ready(identity, port, level="tools")
    if good:
        assert ended.rc == 0 and ended.result["level"] == "tools"
    else:
        assert loss(ended) == "tool_parser_wrong" and "tool-call-parser" in ended.result["msg"]


def test_thinking_must_be_understood_for_the_level_tools(unit: StandinUnit, port: int) -> None:
    call = {"content": "", "tool_calls": [{"function": {"name": "get_time", "arguments": "{}"}}]}
    mixed = {"content": "<think>I think</think>Paris", "reasoning_content": None, "tool_calls": None}
    ended = ready(unit.run_engine(serving(port), tool_message=call, thinks="yes", think_message=mixed), port, level="tools")
    assert loss(ended) == "reasoning_parser_wrong" and "reasoning_parser" in ended.result["msg"]


def test_a_crash_while_loading_ends_the_wait(unit: StandinUnit, port: int) -> None:
    steps = [*START[:3], {"sleep": 1}, {"log": "RuntimeError: something new"}, {"signal": int(signal.SIGKILL)}]
    began = time.monotonic()
    ended = ready(unit.run_engine(steps), port, timeout_s=60)
    assert loss(ended) == "crashed"
    assert time.monotonic() - began < 10
    assert "ended by signal 9" in ended.result["msg"]
    assert any("something new" in line for line in ended.result["details"]["log_tail"])


def test_a_refusal_of_the_gate_is_found(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine([{"log": "gate: model /srv/models/tiny cannot be read: is the model store mounted?"}, {"exit": 78}])
    ended = ready(identity, port)
    assert loss(ended) == "crashed"
    assert "model store" in json.dumps(ended.result["details"])


def test_a_dead_rank_ends_the_wait_although_the_unit_is_active(unit: StandinUnit, port: int) -> None:
    steps = [
        *START[:3],
        {"sleep": 0.5},
        {"log": "[2026-11-29 12:00:02 TP1] Scheduler hit an exception: Traceback"},
        {"log": "torch.OutOfMemoryError: CUDA out of memory"},
    ]
    ended = ready(unit.run_engine(steps), port, timeout_s=60)
    assert loss(ended) == "start_failed"
    assert "still active" in ended.result["details"]["loss"]["words"]


def test_a_restart_in_the_middle_is_no_success(unit: StandinUnit, port: int) -> None:
    first = unit.run_engine(serving(port))
    unit.set(InvocationID="b" * 32, NRestarts="3")
    ended = ready(first, port)
    assert loss(ended) == "crash_loop" and "NRestarts 0 -> 3" in ended.result["msg"]


def test_a_container_on_its_way_down_is_named(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine([*START, {"sleep": 0.3}, {"signal": int(signal.SIGTERM)}])
    unit.set(SystemState="stopping")
    ended = ready(identity, port)
    assert loss(ended) == "container_stopping" and ended.result["details"]["diagnosis"]["class"] == "container_stopping"
    assert "shutting down" in ended.result["msg"] and "Run the deployment again once" in ended.result["remedy"]


def test_another_start_is_left_alone(unit: StandinUnit, port: int) -> None:
    first = unit.run_engine(serving(port))
    unit.set(InvocationID="b" * 32)
    ended = ready(first, port)
    assert loss(ended) == "identity_changed"
    assert not ended.result["details"]["stopped"]


def test_a_reboot_is_no_success(unit: StandinUnit, port: int) -> None:
    identity = {**unit.run_engine(serving(port)), "boot_id": "00000000-0000-0000-0000-000000000000"}
    ended = ready(identity, port)
    assert loss(ended) == "identity_changed" and "booted again" in ended.result["msg"]


def test_another_server_on_the_port_is_named(unit: StandinUnit, port: int, tmp_path: Path) -> None:
    scenario = tmp_path / "foreign.json"
    scenario.write_text(json.dumps({"steps": serving(port), "model": "tiny"}), encoding="utf-8")
    foreign = subprocess.Popen([sys.executable, str(ENGINE), str(scenario)], env={"INVOCATION_ID": "f" * 32, "KPRO_STANDIN_STATE": str(unit.folder)})
    try:
        identity = unit.run_engine(START)
        unit.set(ControlGroup="/system.slice/kpro-sglang.service")
        ended = ready(identity, port)
    finally:
        foreign.kill()
        foreign.wait()
    assert loss(ended) == "other_server_answers"
    assert f"pid {foreign.pid}" in ended.result["msg"] and "not by kpro-sglang.service" in ended.result["msg"]


def test_a_mute_listener_is_named(unit: StandinUnit, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        steps = [*START, {"log": "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use"}]
        identity = unit.run_engine(steps)
        unit.set(ControlGroup="/system.slice/kpro-sglang.service")
        ended = ready(identity, port)
    assert loss(ended) == "other_server_answers" and f"held by pid {os.getpid()}" in ended.result["details"]["loss"]["words"]


def test_silence_beyond_the_budget_is_a_hang(unit: StandinUnit, port: int) -> None:
    ended = ready(unit.run_engine(START[:3]), port, poll_s=2, hang_budgets_s={"weights": 3})
    assert loss(ended) == "hang" and "3 s are allowed" in ended.result["msg"]


def test_a_stopped_unit_is_no_wait(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine(START)
    unit.set(ActiveState="inactive", SubState="dead", MainPID="0")
    ended = ready({**identity}, port)
    assert loss(ended) == "crashed"


def test_check_mode_before_the_first_start(unit: StandinUnit, port: int) -> None:
    ended = run_module(sglang_ready.main, identity={"unit": "kpro-sglang.service"}, port=port, _ansible_check_mode=True)
    assert ended.rc == 0 and ended.result["finished"] and not ended.result["ready"]


def test_a_bad_pattern_is_named_at_once(unit: StandinUnit, port: int) -> None:
    ended = run_module(sglang_ready.main, identity={"unit": "kpro-sglang.service"}, port=port, answer_pattern="(")
    assert ended.rc == 1 and "no regular expression" in ended.result["msg"]


LOGS = Path(__file__).parents[1] / "module_utils" / "fixtures" / "sglang_logs"


@pytest.mark.parametrize(
    ("log", "end", "class_"),
    [
        ("model_path_absent", {"exit": 1}, "model_path_missing"),
        ("unknown_option", {"exit": 2}, "bad_option"),
        ("no_memory", {"signal": 9}, "hybrid_state_pool_too_large"),
        ("tokenizer_absent", {"signal": 9}, "tokenizer_missing"),
        ("weights_truncated", {"signal": 9}, "weights_truncated"),
        ("scheduler_killed", {"signal": 9}, "child_killed"),
    ],
)
def test_real_logs_of_lost_starts_are_explained_at_once(unit: StandinUnit, port: int, log: str, end: dict[str, int], class_: str) -> None:
    lines = (LOGS / f"{log}.log").read_text(encoding="utf-8").splitlines()
    steps = [{"log": line} for line in lines if "service: " not in line and not line.startswith(("Starting ", "Started "))]
    began = time.monotonic()
    ended = ready(unit.run_engine([*steps, end]), port, timeout_s=120)
    found = ended.result["details"]["diagnosis"]
    assert ended.rc == 1 and found["class"] == class_ and found["remedy"] and found["evidence"]
    assert found["cause"] in ended.result["msg"] and loss(ended) != "timeout"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("line", "class_", "direction"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "hybrid_state_pool_too_large", "lower"),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise --mem-fraction-static above 0.6",
            "fraction_too_low",
            "raise",
        ),
        (
            "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. total_rest_memory=-3.05 GB",
            "hybrid_state_pool_too_large",
            "raise",
        ),
        ("AssertionError: max_running_request is zero", "state_slots_too_few", "raise"),
        ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "gpu_unbalanced", ""),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB", "rank_died_main_alive", ""),
    ],
)
def test_each_text_about_memory_has_its_direction(unit: StandinUnit, port: int, line: str, class_: str, direction: str) -> None:
    steps = [
        *START[:4],
        {"log": "Max running requests is reset to 48 for speculative decoding."},
        {"log": "[x TP0] Scheduler hit an exception: Traceback (most recent call last):"},
        {"log": line},
    ]
    found = ready(unit.run_engine(steps), port, timeout_s=60).result["details"]["diagnosis"]
    assert (found["class"], found["direction"]) == (class_, direction)


def test_a_crash_after_ready_is_no_success(unit: StandinUnit, port: int) -> None:
    identity = unit.run_engine(serving(port))
    assert ready(identity, port).rc == 0
    assert unit.process is not None and unit.watcher is not None
    unit.process.kill()
    unit.watcher.join(10)
    assert loss(ready(identity, port)) == "crashed"


def test_a_unit_that_never_started(unit: StandinUnit, port: int) -> None:
    ended = ready({"unit": "kpro-sglang.service", "served_name": "tiny"}, port)
    assert loss(ended) == "never_started" and "is inactive" in ended.result["msg"]
    assert ended.result["details"]["diagnosis"]["class"] == "never_started" and "Start it" in ended.result["remedy"]


def test_the_log_of_an_earlier_start_is_never_read(unit: StandinUnit, port: int) -> None:
    unit.say("The server is fired up and ready to roll!", _SYSTEMD_INVOCATION_ID="c" * 32)
    unit.say("Scheduler hit an exception: Traceback", _SYSTEMD_INVOCATION_ID="c" * 32)
    identity = unit.run_engine(serving(port))
    assert ready(identity, port).rc == 0


def test_a_journal_that_ends_is_followed_anew(unit: StandinUnit, port: int, tmp_path: Path) -> None:
    """journalctl ends once (as after a vacuum); the wait goes on and the start is judged by what the next one says."""
    real = tmp_path / "programs" / "journalctl"
    once = real.with_name("journalctl-real")
    real.rename(once)
    real.write_text(f'#!/bin/sh\n[ -e {tmp_path}/ended ] || {{ touch {tmp_path}/ended; exit 1; }}\nexec {once} "$@"\n', encoding="ascii")
    real.chmod(0o755)
    ended = ready(unit.run_engine([*START[:3], {"sleep": 4}, {"log": "[x TP0] Scheduler hit an exception: Traceback"}]), port, timeout_s=60)
    assert loss(ended) == "start_failed" and (tmp_path / "ended").exists()


def test_memory_events_decide_about_a_ram_kill(unit: StandinUnit, port: int, tmp_path: Path) -> None:
    """The same log and exit: what the kernel counted while somebody waited decides, not what it had counted before."""
    events = tmp_path / "memory.events"
    events.write_text(MEMORY_EVENTS, encoding="ascii")
    steps = [*START[:3], {"wait_for": str(tmp_path / "go")}, {"log": CRASHED}, {"signal": 9}]
    identity = unit.run_engine(steps)
    assert not run_module(sglang_ready.main, identity=identity, port=port, poll_s=1, memory_events=str(events)).result["finished"]
    events.write_text(MEMORY_EVENTS.replace("oom_kill 3", "oom_kill 4"), encoding="ascii")
    (tmp_path / "go").touch()
    found = ready(identity, port, timeout_s=60, memory_events=str(events)).result["details"]["diagnosis"]
    assert found["class"] == "ram_kill" and "counts 1" in found["cause"] and "gpu_container__memory_mib" in found["remedy"]


def test_old_memory_events_are_no_ram_kill(unit: StandinUnit, port: int, tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text(MEMORY_EVENTS, encoding="ascii")
    steps = [*START[:3], {"sleep": 0.5}, {"log": CRASHED}, {"signal": 9}]
    ended = ready(unit.run_engine(steps), port, timeout_s=60, memory_events=str(events))
    assert ended.result["details"]["diagnosis"]["class"] == "child_killed"


def test_a_kill_without_words_came_from_outside(unit: StandinUnit, port: int) -> None:
    ended = ready(unit.run_engine([*START[:3], {"sleep": 0.5}, {"signal": 9}]), port, timeout_s=60)
    found = ended.result["details"]["diagnosis"]
    assert found["class"] == "killed_from_outside" and "signal 9 in the phase 'weights'" in found["cause"] and found["confidence"] == "likely"


def test_parameters_that_were_not_loaded_are_a_warning_although_it_answers(unit: StandinUnit, port: int) -> None:
    lines = [{"log": f"Parameter model.layers.{n}.mlp.weight_scale not found in params_dict"} for n in range(3)]
    result = ready(unit.run_engine([*lines, *serving(port)]), port).result
    assert "3 parameters of the checkpoint were not loaded" in result["warnings_found"][0]
