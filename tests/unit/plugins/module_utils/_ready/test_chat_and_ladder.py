# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.http_answer import connect_address
from ansible_collections.kpro.llm.plugins.module_utils._ready.chat import (
    ChatAnswer,
    answer_fault,
    answer_pattern,
    chat_answer,
    chat_request,
    reasoning_fault,
    served_models,
    streamed_text,
    tools_fault,
)
from ansible_collections.kpro.llm.plugins.module_utils._ready.clock_edge import WaitRecord
from ansible_collections.kpro.llm.plugins.module_utils._ready.probe import device_fault, pools_of, shortfalls
from ansible_collections.kpro.llm.plugins.module_utils._service.ladder import (
    ATTENTION_RUNG,
    CURABLE,
    Memory,
    memory_from,
    next_rung,
    rung_after_loss,
    with_loss,
)

# An answer of SGLang 0.5.23 with the tiny model, shortened.
REPLY = {
    "id": "1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "\n\nHello from the tiny test model.", "reasoning_content": None, "tool_calls": None},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 35, "completion_tokens": 8},
}


def test_a_question_is_deterministic_and_without_thinking() -> None:
    body = chat_request("qwen", "q", max_tokens=8)
    assert (body["temperature"], body["chat_template_kwargs"], body["stream"]) == (0, {"enable_thinking": False}, False)
    assert "tools" not in body and "stream_options" not in body


def test_an_answer_is_read() -> None:
    assert chat_answer(REPLY) == ChatAnswer("Hello from the tiny test model.", "", "stop", (), 8)
    for data in (None, [], {}, {"choices": []}, {"choices": [{"message": None}]}, {"error": "x"}):
        assert chat_answer(data) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ChatAnswer("It is Paris."), ""),
        (ChatAnswer("London"), "the answer was 'London', accepted is 'paris'"),
        (ChatAnswer("", "Paris, I think"), "check reasoning_parser"),
        (ChatAnswer(""), "the answer is empty"),
    ],
)
def test_what_is_wrong_with_an_answer(answer: ChatAnswer, words: str) -> None:
    fault = answer_fault(answer, answer_pattern("paris"))
    assert (words in fault) if words else fault == ""


def test_a_tool_call_must_arrive_as_one() -> None:
    assert tools_fault(ChatAnswer("", tool_names=("get_time",))) == ""
    assert "inside reasoning_content" in tools_fault(ChatAnswer("", '<tool_call>{"name":"get_time"}</tool_call>'))
    assert "did not call the test tool" in tools_fault(ChatAnswer("It is noon."))


def test_thinking_must_arrive_apart_from_the_answer() -> None:
    assert reasoning_fault(ChatAnswer("Paris", "I think")) == "" and reasoning_fault(ChatAnswer("Paris")) == ""
    assert "--reasoning-parser" in reasoning_fault(ChatAnswer("I think</think>Paris"))


def test_pool_sizes_are_those_of_the_smallest_rank() -> None:
    text = 'sglang:max_total_num_tokens{tp_rank="0"} 61000.0\nsglang:max_total_num_tokens{tp_rank="1"} 60000.0\nsglang:other 1\n'
    assert pools_of(text) == {"kv_tokens": 60000.0} and pools_of("") == {}


def test_an_engine_on_another_device_is_a_warning() -> None:
    assert "runs on cpu, not on cuda" in device_fault({"device": "cpu"}, "cuda")[0]
    for info, expected in (({"device": "cuda"}, "cuda"), ({"device": "cpu"}, ""), (None, "cuda"), ({}, "cuda")):
        assert device_fault(info, expected) == []


def test_the_list_of_models() -> None:
    models = served_models({"data": [{"id": "qwen", "max_model_len": 65536}, {"id": "old"}]})
    assert [(model.name, model.context_length) for model in models] == [("qwen", 65536), ("old", 0)]
    assert served_models({"object": "error"}) == [] and served_models(None) == []


def test_a_stream_is_put_together() -> None:
    lines = [
        'data: {"choices":[{"delta":{"content":"Pa"}}]}',
        "",
        ": ping",
        'data: {"choices":[{"delta":{"content":"ris"}}]}',
        'data: {"choices":[],"usage":{"completion_tokens":2}}',
        "data: [DONE]",
    ]
    assert streamed_text(lines) == ("Paris", 2)


@pytest.mark.parametrize(("bound", "address"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.5", "10.0.0.5")])
def test_how_a_bound_server_is_reached(bound: str, address: str) -> None:
    assert connect_address(bound) == address


def test_only_what_is_smaller_is_a_warning() -> None:
    assert shortfalls({"kv_tokens": 61000}, {"kv_tokens": 102400}) == ["size of the KV pool (tokens) is 61000, 40 % below the expected 102400"]
    assert shortfalls({"kv_tokens": 95000, "tokens_per_s": 20}, {"kv_tokens": 102400, "tokens_per_s": 30, "other": 1}) == []


def test_a_ladder_goes_down_for_memory_only() -> None:
    memory = with_loss(Memory("i"), 0, "graph_capture_oom", "c")
    assert memory.failed == {0: "c"} and next_rung(memory, 3) == 1
    assert with_loss(memory, 1, "port_taken", "c") == memory
    assert rung_after_loss(memory, "graph_capture_oom", 0, 3) == 1 and rung_after_loss(memory, "graph_capture_oom", 2, 3) is None
    for class_ in ("port_taken", "bad_option", "gpu_occupied", "model_path_missing", "weights_truncated", "unknown", "wrong_answer", "gate_refused"):
        assert rung_after_loss(memory, class_, 0, 3) is None and class_ not in CURABLE
    assert next_rung(Memory("i", {0: "a", 1: "b"}), 2) is None


def test_a_rung_that_the_plan_refuses_is_passed_over() -> None:
    assert next_rung(Memory("i"), 3, {0: "too large"}) == 1
    assert next_rung(Memory("i", {1: "c"}), 3, {0: "too large"}) == 2
    assert rung_after_loss(Memory("i", {0: "c"}), "load_oom", 0, 3, {1}) == 2
    assert rung_after_loss(Memory("i", {0: "c"}), "load_oom", 0, 2, {1}) is None


@pytest.mark.parametrize("values", [None, [], {"inputs": "j", "failed": {"0": "x"}}, {"inputs": "i"}, {"inputs": "i", "failed": []}])
def test_what_was_kept_for_other_inputs_is_forgotten(values: object) -> None:
    assert memory_from(values, "i") == Memory("i")


def test_what_was_kept_is_read_again() -> None:
    memory = Memory("i", {0: "a"})
    assert memory_from(json.loads(json.dumps(memory.as_dict())), "i") == memory
    assert memory_from(memory.as_dict(), "i", forget=True) == Memory("i")


def test_a_wait_counts_over_calls_and_begins_anew_after_a_gap(tmp_path: Path) -> None:
    clock = WaitRecord(str(tmp_path / "run" / "wait.json"))
    assert clock.elapsed_s("a") == 0.0
    clock.keep("a", 100.0, {"oom_kill": 1})
    assert clock.elapsed_s("a") == pytest.approx(100.0, abs=2.0)
    assert clock.elapsed_s("b") == 0.0
    assert (clock.memory_events("a"), clock.memory_events("b")) == ({"oom_kill": 1}, {})
    note = json.loads((tmp_path / "run" / "wait.json").read_text(encoding="utf-8"))
    (tmp_path / "run" / "wait.json").write_text(json.dumps({**note, "last_s": time.clock_gettime(time.CLOCK_BOOTTIME) - 600}), encoding="utf-8")
    assert clock.elapsed_s("a") == 0.0
    clock.forget()
    clock.forget()
    assert clock.elapsed_s("a") == 0.0


def test_kernels_that_do_not_run_lead_to_the_rung_with_others_and_to_no_smaller_one() -> None:
    names = ["speculation", "short", ATTENTION_RUNG]
    memory = with_loss(Memory("i"), 0, "jit_compile_failed", "nvcc", names)
    assert memory.failed == {0: "nvcc", 1: "nvcc"}
    assert rung_after_loss(memory, "jit_compile_failed", 0, 3) == 2 and next_rung(memory, 3) == 2


def test_kernels_that_do_not_run_end_the_run_where_there_are_no_others() -> None:
    for names, rung in ((["speculation", "short"], 0), (["speculation", ATTENTION_RUNG], 1)):
        memory = with_loss(Memory("i"), rung, "jit_compile_failed", "nvcc", names)
        assert memory == Memory("i") and rung_after_loss(memory, "jit_compile_failed", rung, len(names)) is None
