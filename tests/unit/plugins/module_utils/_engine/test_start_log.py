# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._engine.start_log import StartLog, rank_of, read_start_log

LOGS = Path(__file__).parents[1] / "fixtures" / "sglang_logs"


def test_a_real_start_is_read_as_phases() -> None:
    log = StartLog()
    for second, line in enumerate((LOGS / "ready.log").read_text(encoding="utf-8").splitlines()):
        log.feed(line, float(second))
    assert list(log.begun_s) == ["gate", "launch", "options", "distributed", "weights", "pools", "scheduler", "warmup", "serving"]
    assert log.fatal == ""
    assert log.words == "serves"
    durations = log.durations_s(200.0)
    assert sum(durations.values()) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("name", "fatal"),
    [
        ("port_taken", "address already in use"),
        ("weights_truncated", "Scheduler hit an exception"),
        ("tokenizer_absent", "Initialization failed. warmup error"),
        ("scheduler_killed", "Subprocess scheduler_0"),
        ("unknown_option", "sglang serve: error:"),
        ("model_path_absent", "Main process exited"),
    ],
)
def test_a_lost_start_is_seen_in_its_lines(name: str, fatal: str) -> None:
    assert fatal in read_start_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()).fatal


def test_shards_are_the_detail_of_the_weights() -> None:
    log = read_start_log(["Load weight begin. avail mem=46.9 GB", "Multi-thread loading shards:   0% Completed\rMulti-thread loading shards:  38% Completed"])
    assert log.words == "weights are loaded (38 %)" and log.next_words == "memory pools are allocated"


def test_access_lines_are_no_progress() -> None:
    log = StartLog()
    log.feed("INFO:     Uvicorn running on http://0.0.0.0:30000", 10.0)
    log.feed('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', 1000.0)
    assert log.last_progress_s == 10.0
    assert "990 s" in log.hang(1000.0, {"warmup": 900})
    assert log.hang(500.0) == ""


def test_phases_never_go_back() -> None:
    log = read_start_log(["The server is fired up and ready to roll!", "Load weight begin. avail mem=1 GB"])
    assert log.phase == "serving"


def test_a_served_log_never_hangs() -> None:
    log = StartLog()
    log.feed("The server is fired up and ready to roll!", 0.0)
    assert log.hang(1e9) == ""


@pytest.mark.parametrize(("line", "rank"), [("[2026-11-29 12:00:00 TP1] x", 1), ("[2026-11-29 12:00:00 DP0 TP0] x", 0), ("RuntimeError: TPU", None)])
def test_the_rank_of_a_line(line: str, rank: int | None) -> None:
    assert rank_of(line) == rank
