# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._model import plan as plans
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_protocol import RemoteFile
from ansible_collections.kpro.llm.plugins.module_utils._model.manifest import FileState
from ansible_collections.kpro.llm.plugins.module_utils._model.plan import Present

GB = 10**9


def present(*states: str, parts: int = 0, leftovers: int = 0, free: int = 1000 * GB, inodes: int | None = None) -> Present:
    files = [FileState(RemoteFile(f"shard-{number}", 4 * GB, str(number) * 64), state) for number, state in enumerate(states)]
    return Present(tuple(files), {"shard-0": parts}, {"/s/.incoming/old": leftovers} if leftovers else {}, free, inodes)


def sentences(found: Present, verify_all: bool = False) -> list[str]:
    return [change.sentence for change in plans.plan_changes("o/m", "/s/m", found, verify_all=verify_all)]


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert sentences(present("ok", "ok")) == []
    assert plans.files_to_check(present("ok", "ok"), verify_all=False) == []


def test_reading_files_is_work_but_no_change() -> None:
    assert sentences(present("ok", "unknown")) == []
    assert [file.path for file in plans.files_to_check(present("ok", "unknown"), verify_all=False)] == ["shard-1"]
    assert len(plans.files_to_check(present("ok", "unknown"), verify_all=True)) == 2


def test_each_change_is_said() -> None:
    found = present("missing", "ok", "size", parts=GB, leftovers=5 * GB)
    assert sentences(found) == ["Remove the abandoned download /s/.incoming/old", "Download o/m to /s/m", "Fetch shard-2 again"]
    assert plans.plan_changes("o/m", "/s/m", found, verify_all=False)[1].after == "1 files, 4 GB, 1 GB of it already here"


def test_space_counts_what_is_missing_what_has_arrived_and_what_will_be_removed() -> None:
    # 8 GB missing, 3 of them here, 1 to be kept free: 6 needed.
    plans.check_space("/s", present("missing", "missing", "ok", parts=3 * GB, free=6 * GB), GB)
    plans.check_space("/s", present("missing", "missing", parts=3 * GB, leftovers=2 * GB, free=4 * GB), GB)
    with pytest.raises(KproError, match=r"5 GB are still to be fetched and 1 GB shall stay free, but only 5.9 GB are free.*Free 100 MB there"):
        plans.check_space("/s", present("missing", "missing", parts=3 * GB, free=59 * GB // 10), GB)
    plans.check_space("/s", present("ok", free=0), GB)


def test_inodes_are_counted_where_the_file_system_has_a_limit() -> None:
    with pytest.raises(KproError, match="only 3 inodes are free"):
        plans.check_space("/s", present("missing", inodes=3), 0)
    plans.check_space("/s", present("missing", inodes=None), 0)
