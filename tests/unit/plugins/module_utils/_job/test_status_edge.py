# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from pathlib import Path

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._job.status_edge import JobStatus


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
