# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module against the stand-in engine over real HTTP."""

from __future__ import annotations

import socket
import time
import typing as t

import pytest
from sglang_standins import Ended, StandinUnit, free_port, run_module

from ansible_collections.kpro.llm.plugins.modules import sglang_probe


@pytest.fixture
def port() -> int:
    return free_port()


def probe(port: int, **more: t.Any) -> Ended:
    return run_module(sglang_probe.main, host="127.0.0.1", port=port, **{"served_name": "tiny", "answer_pattern": "hello from", **more})


def start(unit: StandinUnit, port: int, **scenario: t.Any) -> None:
    unit.run_engine([{"listen": port}, {"healthy": True}], **scenario)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the stand-in engine does not listen")


def test_what_a_client_sees(unit: StandinUnit, port: int) -> None:
    start(unit, port, answer_s=0.2)
    result = probe(port, expected={"context_length": 65536, "tokens_per_s": 1}).result
    assert result["answer"] == "Hello from the tiny test model."
    assert result["url"] == f"http://127.0.0.1:{port}/v1"
    assert result["context_length"] == 8192 and result["completion_tokens"] == 8
    assert 0 < result["tokens_per_s"] <= 40 and result["seconds"] >= 0.2
    assert result["warnings_found"] == ["context length (tokens) is 8192, 88 % below the expected 65536"]
    assert not result["changed"]


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        ({"model": "qwen-old"}, {}, "it serves qwen-old, not tiny"),
        ({"answer": "ege ##atan !! ege"}, {}, "the answer was 'ege ##atan !! ege'"),
        ({"answer": ""}, {}, "the answer is empty"),
        ({"api_key": "k"}, {"api_key": "wrong"}, "it refuses the API key (status 401)"),
        ({"no_models": True}, {}, "no list of models (status 404"),
    ],
)
def test_what_is_wrong_is_said(unit: StandinUnit, port: int, scenario: dict[str, t.Any], options: dict[str, t.Any], words: str) -> None:
    start(unit, port, **scenario)
    ended = probe(port, **options)
    assert ended.rc == 1 and words in ended.result["msg"]


def test_the_key_is_sent_and_not_shown(unit: StandinUnit, port: int) -> None:
    start(unit, port, api_key="secret-key-1")
    ended = probe(port, api_key="secret-key-1")
    assert ended.rc == 0
    assert "secret-key-1" not in str({name: value for name, value in ended.result.items() if name != "invocation"})


def test_nobody_listens(port: int) -> None:
    ended = probe(port)
    assert ended.rc == 1 and "no list of models (refused)" in ended.result["msg"]


# Form of a streamed answer of SGLang 0.5.23, shortened.
STREAM = """data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}

data: {"id":"a","choices":[{"index":0,"delta":{"content":"Hello from "}}],"usage":null}

data: {"id":"a","choices":[{"index":0,"delta":{"content":"the tiny test model."},"finish_reason":"stop"}],"usage":null}

data: {"id":"a","choices":[],"usage":{"prompt_tokens":35,"completion_tokens":8}}

data: [DONE]
"""
CALL = {"content": "", "tool_calls": [{"function": {"name": "get_time", "arguments": "{}"}}]}
METRICS = '# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens{engine_type="unified",model_name="tiny"} 61000.0\n'


def test_pools_and_device_are_read_without_another_question(unit: StandinUnit, port: int) -> None:
    start(unit, port, metrics=METRICS, server_info={"device": "cpu", "version": "0.5.23"})
    result = probe(port, expected={"kv_tokens": 62000, "device": "cuda"}, last_good={"kv_tokens": 102400, "max_running_requests": 8}).result
    assert result["pools"] == {"kv_tokens": 61000} and result["measured"] == {}
    assert result["warnings_found"] == [
        "the engine runs on cpu, not on cuda: it is slow for as long as it lives. Look at the GPUs, then restart the service",
        "size of the KV pool (tokens) is 61000, 40 % below the 102400 of the last good run",
    ]
    assert probe(port, expected={"device": "cpu"}).result["warnings_found"] == []


def test_an_engine_without_metrics_and_info_is_no_failure(unit: StandinUnit, port: int) -> None:
    start(unit, port)
    result = probe(port, expected={"device": "cuda", "kv_tokens": 1}).result
    assert (result["pools"], result["warnings_found"]) == ({}, [])


def test_a_longer_look(unit: StandinUnit, port: int) -> None:
    start(unit, port, stream=STREAM, thinks="Thinking.", tool_message=CALL, metrics=METRICS)
    result = probe(port, full=True, clients=3, expected={"kv_tokens": 102400}).result
    assert result["pools"]["kv_tokens"] == 61000 and result["measured"]["clients"] == 3
    assert result["measured"]["clients_tokens_per_s"] > 0 and result["measured"]["first_token_s"] > 0
    assert result["warnings_found"] == ["size of the KV pool (tokens) is 61000, 40 % below the expected 102400"]


def test_a_longer_look_warns_of_what_is_wrong(unit: StandinUnit, port: int) -> None:
    wrong = {"content": '<tool_call>{"name":"get_time"}</tool_call>', "tool_calls": None}
    start(unit, port, stream="data: [DONE]\n", tool_message=wrong)
    warnings = "\n".join(probe(port, full=True, clients=1).result["warnings_found"])
    assert "size of" not in warnings
    for words in ("the streamed answer is another one", "thinking on was not answered", "came back inside content: set --tool-call-parser"):
        assert words in warnings
