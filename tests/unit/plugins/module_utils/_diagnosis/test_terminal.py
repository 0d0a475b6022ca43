# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The passage that ended the start decides: harmless lines beside it do not, and its shape and wording may vary."""

from __future__ import annotations

import functools
import json
import re
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose import diagnose
from ansible_collections.kpro.llm.plugins.module_utils._service import ladder

from .rule_words import texts_of_the_rules

FIXTURES = Path(__file__).parents[1] / "fixtures"


def rows(name: str) -> list[dict[str, t.Any]]:
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


SHARED = rows("diagnosis_carriers")
FACTS = SHARED[0]["context"]
START = SHARED[0]["log"][:13]
CRASH = SHARED[0]["log"][14:]
assert "fired up" in START[-1] and "Scheduler hit" in CRASH[0]

# Harmless lines around somebody's words: what a start says and goes on.
CARRIERS = (
    "[2026-11-29 12:00:41] Receive: obj=GenerateReqInput(rid='a1', text='{}', sampling_params={{}})",
    "[2026-11-29 12:00:41] Finish: obj=GenerateReqInput(rid='a1', text='x'), out={{'text': '{}'}}",
    "[2026-11-29 12:00:41] INFO: messages=[{{'role': 'user', 'content': '{}'}}]",
    "[2026-11-29 12:00:41 TP0] WARNING: {}, using the slow path",
    "[2026-11-29 12:00:41 TP1] {} (retrying 1/3)",
    "[2026-11-29 12:00:41] INFO {}",
    "[2026-11-29 12:00:41 TP0] INFO: {}, falling back",
    "[2026-11-29 12:00:41] {}; ignored",
    "/opt/x/torch/cuda/__init__.py:180: UserWarning: {}",
    "/opt/x/site-packages/a.py:1: FutureWarning: {}",
    "WARNING:root:{}",
    "WARNING 11-29 12:00:41 loader.py:12] {}",
    "INFO 11-29 12:00:41 loader.py:12] {}",
    "[W1129 12:00:41.123456789 Utils.hpp:165] Warning: {}",
    "W1129 12:00:41.123456 4242 a.cc:1] {}",
    "[rank0]:[W1129 12:00:41.123 ProcessGroupNCCL.cpp:1] {}",
    "ct129:4242:4242 [0] NCCL INFO {}",
    "ct129:4242:4242 [0] NCCL WARN {}",
    "DEBUG: {}",
    "[2026-11-29 12:00:41] Optional feature disabled: {}",
    "[2026-11-29 12:00:41] Deprecated: {}",
    "[2026-11-29 12:00:41 TP0] Retry after: {}",
    "[2026-11-29 12:00:41 TP1] Autotune candidate 3 failed, skipped: {}",
    'INFO:     127.0.0.1:4 - "GET /x?q={} HTTP/1.1" 404 Not Found',
    "[2026-11-29 12:00:41 TP0] Prefill batch, note: {}",
    "  warnings.warn('{}')",
    "[2026-11-29 12:00:41] prompt='{}'",
    "[2026-11-29 12:00:41] ERROR: client error: {}",
    "[2026-11-29 12:00:41 TP1] ERROR: health probe: {}",
    "\x1b[33m[2026-11-29 12:00:41] WARNING {}\x1b[0m",
)


@pytest.mark.parametrize("case", SHARED, ids=lambda case: case["label"])
def test_a_harmless_line_of_the_shared_list_is_not_the_cause(case: dict[str, t.Any]) -> None:
    found = diagnose(case["log"], case["context"])
    assert found.class_ == "unknown" and "ZeroDivisionError" in found.cause, found


@functools.cache
def words() -> list[str]:
    return texts_of_the_rules()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_words_of_any_rule_in_a_harmless_line_are_the_cause(carrier: str) -> None:
    """Every rule: the texts are made from the patterns in their source."""
    assert len(words()) > 60
    for text in words():
        line = carrier.format(text)
        for log in ([*START, line, *CRASH], [*START[:8], line, *START[8:], *CRASH]):
            found = diagnose(log, FACTS)
            assert found.class_ == "unknown" and "ZeroDivisionError" in found.cause, (line, found)
            memory = ladder.with_loss(ladder.Memory("x"), 0, found.class_, found.cause, ("full", ladder.ATTENTION_RUNG))
            assert ladder.rung_after_loss(memory, found.class_, 0, 2) is None


@pytest.mark.parametrize("case", rows("diagnosis_neighbours"), ids=lambda case: f"{case['near']} {case['label']}")
def test_a_neighbouring_wording_has_the_same_class(case: dict[str, t.Any]) -> None:
    found = diagnose(case["log"], case["context"])
    assert found.class_ in case["want"], found


def coloured(lines: list[str]) -> list[str]:
    return [f"\x1b[1;31m{line}\x1b[0m" for line in lines]


def journal(lines: list[str]) -> list[str]:
    return [f"Nov 29 12:00:00 ct129 sglang[4242]: {line}" for line in lines]


def journal_json(lines: list[str]) -> list[str]:
    return [json.dumps({"__REALTIME_TIMESTAMP": "1", "MESSAGE": line, "_PID": "4242"}) for line in lines]


def journal_export(lines: list[str]) -> list[str]:
    return [row for line in lines for row in ("__REALTIME_TIMESTAMP=1", "_PID=4242", f"MESSAGE={line}", "")]


def iso(lines: list[str]) -> list[str]:
    return [f"2026-11-29T12:00:00+0100 ct129 python3[4242]: {line}" for line in lines]


def container(lines: list[str]) -> list[str]:
    return [f"2026-11-29T12:00:00.123456789Z stderr F {line}" for line in lines]


def compose(lines: list[str]) -> list[str]:
    return [f"sglang-1  | {line}" for line in lines]


def windows(lines: list[str]) -> list[str]:
    return [f"{line}\r\n" for line in lines]


def other_rank(lines: list[str]) -> list[str]:
    return [re.sub(r"\bTP(\d)\]", r"DP0 TP\1 EP\1]", line) for line in lines]


def cut(lines: list[str]) -> list[str]:
    """The begin of the log is lost, up to the middle of a line."""
    return [lines[1][len(lines[1]) // 2 :], *lines[2:]] if len(lines) > 4 else lines


def interleaved(lines: list[str]) -> list[str]:
    """Another rank says what it does between the lines; it dies a little later, of the first one's death."""
    return [*lines, "[2026-11-29 12:09:00 TP7] Scheduler hit an exception: Traceback (most recent call last):", "RuntimeError: Connection closed by peer"]


# No exception ended these, so that another rank's exception does.
LIVES_ON = ("LLMX-062", "LLMX-097", "LLMX-125", "LLMX-131")
LOGS = [case for case in rows("sglang_failure_cases") if case["repro"].get("lines") or case["repro"].get("log")]


@pytest.mark.parametrize("shape", [coloured, journal, journal_json, journal_export, iso, container, compose, windows, other_rank, interleaved])
@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["id"])
def test_another_shape_of_an_open_case_has_the_same_class(case: dict[str, t.Any], shape: t.Callable[[list[str]], list[str]]) -> None:
    repro = case["repro"]
    lines = list(repro.get("lines") or repro["log"])
    facts = {name: value for name, value in repro.items() if name not in ("lines", "log", "type")}
    if shape is interleaved and case["id"] in LIVES_ON:
        return
    found = diagnose(shape(lines), facts)
    assert found.class_ == case["expect"]["class"], found


@pytest.mark.parametrize("shape", [coloured, journal, journal_json, journal_export, iso, container, compose, windows, other_rank, cut])
@pytest.mark.parametrize("case", rows("diagnosis_neighbours"), ids=lambda case: case["id"])
def test_another_shape_of_a_neighbour_has_the_same_class(case: dict[str, t.Any], shape: t.Callable[[list[str]], list[str]]) -> None:
    found = diagnose(shape(case["log"]), case["context"])
    assert found.class_ in case["want"], found


def test_a_long_log_is_answered_at_once() -> None:
    many = ["[2026-11-29 12:02:00 TP0] Decode batch. #running-req: 4, #token: 900, token usage: 0.01"] * 200_000
    begin = time.process_time()
    found = diagnose([*START, *many, *CRASH], FACTS)
    assert "ZeroDivisionError" in found.cause and time.process_time() - begin < 3


def test_a_fatal_line_is_answered_within_half_a_second() -> None:
    begin = time.process_time()
    diagnose([*START, *START[:8] * 100, *CRASH], FACTS)
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [""],
        ["\x00\x01\x7fELF\x02" * 50],
        ["Nov 29 12:00:00 ct1 sshd[1]: Accepted publickey for root from 10.0.0.1 port 4 ssh2"],
        ["{" * 5000 + '"log"}'],
        ["\ud800 x"],
    ],
)
def test_what_is_no_log_of_an_engine_is_answered_in_a_sentence(lines: list[str]) -> None:
    found = diagnose(lines)
    assert found.class_ == "unknown" and found.cause and not found.remedy
