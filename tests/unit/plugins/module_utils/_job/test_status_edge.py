# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._job.status_edge import JobStatus, run_worker


def test_an_end_stays_for_others_once_it_was_told_and_keeps_its_age(tmp_path: Path) -> None:
    status = JobStatus(str(tmp_path))
    status.failed(KproError("a", "b", "c", lines=["d"]))
    time.sleep(0.05)
    first = status.read()
    assert first and not first.get("reported")
    status.report(first)
    second = status.read()
    assert second and second["reported"] and second["age_s"] >= first["age_s"] >= 0.05
    assert {name: second[name] for name in ("state", "what", "reason", "remedy", "details")} == {
        "state": "failed",
        "what": "a",
        "reason": "b",
        "remedy": "c",
        "details": {"lines": ["d"]},
    }


def test_nothing_and_half_of_something_are_read_as_nothing(tmp_path: Path) -> None:
    status = JobStatus(str(tmp_path))
    assert status.read() is None
    (tmp_path / "status.json").write_text('{"state": "run')
    assert status.read() is None
    status.clear()
    status.clear()
    assert not (tmp_path / "status.json").exists()


@pytest.mark.parametrize(
    ("trouble", "reason", "remedy"),
    [
        (FileNotFoundError(2, "No such file or directory", "/srv/models/.incoming"), "/srv/models/.incoming: No such file or directory", "Correct that"),
        (OSError(28, "No space left on device"), "No space left on device", "Correct that"),
        (ValueError("odd"), "ValueError: odd (test_status_edge.py, line ", "Report this"),
        (KproError("model", "the disk is full", "Free space"), "the disk is full", "Free space"),
    ],
)
def test_a_worker_always_leaves_word_of_its_end(tmp_path: Path, trouble: Exception, reason: str, remedy: str) -> None:
    def work(_job: dict[str, t.Any], _status: JobStatus) -> dict[str, t.Any]:
        raise trouble

    (tmp_path / "job.json").write_text("{}")
    assert run_worker(str(tmp_path), work, "model") == 0
    found = JobStatus(str(tmp_path)).read()
    assert found and found["state"] == "failed" and found["reason"].startswith(reason) and remedy in found["remedy"]


def test_a_job_that_cannot_be_read_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{half")
    run_worker(str(tmp_path), lambda _job, _status: {}, "model")
    found = JobStatus(str(tmp_path)).read()
    assert found and found["state"] == "failed" and "JSONDecodeError" in found["reason"]
