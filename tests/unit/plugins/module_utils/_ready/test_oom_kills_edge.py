# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

from ansible_collections.kpro.llm.plugins.module_utils._ready.oom_kills_edge import memory_events, read_memory_events, since

RECORDED = "low 0\nhigh 0\nmax 1312\noom 3\noom_kill 2\noom_group_kill 0\n"


def test_the_kernels_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text(RECORDED, encoding="ascii")
    assert read_memory_events(str(tmp_path / "memory.events"))["oom_kill"] == 2
    assert read_memory_events(str(tmp_path / "absent")) == {}
    assert memory_events("max\nmax many\noom_kill 1 2\n") == {}


def test_what_was_counted_before_does_not_count() -> None:
    before = memory_events(RECORDED)
    assert since(before, before)["oom_kill"] == 0
    assert since(before, {**before, "oom_kill": 5})["oom_kill"] == 3
    assert since({}, before)["oom_kill"] == 2
    # A container that was started anew counts from zero.
    assert since(before, {"oom_kill": 1}) == {"oom_kill": 1}
