# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight, plan, the check before the download, the service and the comparison after a start get one answer to one question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLERS = ("preflight", "plan", "before the download", "service", "comparison")


def asked(folder: Path, count: int, *nameless: str) -> list[dict[str, t.Any]]:
    argv = [sys.executable, str(ROOT / "tests/tools/launch_callers.py"), str(folder), str(count), *nameless]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_one_answer(row: dict[str, t.Any]) -> bool:
    return len({json.dumps(answer, sort_keys=True) for answer in row["answers"].values()}) == 1


def test_all_callers_get_the_same_numbers_for_200_deployments(tmp_path: Path) -> None:
    rows = asked(tmp_path, 200)
    assert len(rows) == 200 and all(tuple(row["answers"]) == CALLERS for row in rows)
    for number, row in enumerate(rows):
        assert is_one_answer(row), f"deployment {number}: {json.dumps(row)}"
    planned = [row for row in rows if "rungs" in row["answers"]["service"] and row["answers"]["service"]["verdict"]]
    assert len(planned) > 80, "most deployments are planned"
    small = [row for row in rows if "would not start" in row["answers"]["service"]]
    assert small, "and some can't start"
    shared = [row for row in rows if row["gpus"] == ["NVIDIA GB10"]]
    assert shared and all("shares its memory" in answer.get("refused", "") for row in shared for answer in row["answers"].values())


@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_that_drops_the_names_is_noticed(tmp_path: Path, caller: str) -> None:
    rows = asked(tmp_path, 12, caller)
    odd = [row for row in rows if not is_one_answer(row)]
    assert odd
    for row in odd:
        assert is_one_answer({"answers": {name: answer for name, answer in row["answers"].items() if name != caller}})
