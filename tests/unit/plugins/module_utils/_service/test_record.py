# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose start it is, by the record of an unfinished run; and by what a kept configuration is judged."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.run_identity import RunIdentity
from ansible_collections.kpro.llm.plugins.module_utils._linux.unit_state import UnitState
from ansible_collections.kpro.llm.plugins.module_utils._service.record import Record, record_from, standing
from ansible_collections.kpro.llm.plugins.module_utils._start.check import Check, check_from, config_lines, valid_check

MADE = Record("r", "i", 0, "d", boot_id="b", before="old", identity=RunIdentity("u", "ours", "b", 7, 9))
TO_MAKE = Record("r", "i", 0, "d", boot_id="b", before="old")


def unit(invocation: str, *, pid: int = 7, state: str = "active", restarts: int = 0, result: str = "success") -> UnitState:
    sub = "auto-restart" if state == "activating" and not pid else "running"
    return UnitState(active_state=state, sub_state=sub, invocation_id=invocation, main_pid=pid, n_restarts=restarts, result=result)


@pytest.mark.parametrize(
    ("record", "present", "expected"),
    [
        (None, unit("ours"), "none"),
        (TO_MAKE, unit("old"), "to_make"),
        (TO_MAKE, unit("new"), "unnoted"),
        (TO_MAKE, unit("new", pid=0, state="inactive"), "to_make"),
        (MADE, unit("ours"), "runs"),
        (MADE, unit("theirs"), "none"),
        (MADE, unit("next", restarts=1), "again"),
        (MADE, unit("ours", pid=0, state="inactive"), "stopped"),
        (MADE, unit("ours", pid=0, state="failed", result="exit-code"), "ended"),
        (MADE, unit("ours", pid=0, state="activating", result="exit-code"), "ended"),
    ],
)
def test_the_record_says_whose_start_it_is(record: Record | None, present: UnitState, expected: str) -> None:
    assert standing(record, present, "b", "d") == expected
    assert standing(record, present, "another boot", "d") == "none"
    assert standing(record, present, "b", "another configuration") == "none"


def test_a_record_comes_back_whole() -> None:
    record = Record("r", "i", -1, "d", False, "b", "old", MADE.identity, Check().as_dict(), ({"name": "a"},), ({"pid": 3},))
    assert record_from(json.loads(json.dumps(record.as_dict()))) == record
    assert record_from(json.loads(json.dumps(TO_MAKE.as_dict()))) == TO_MAKE


@pytest.mark.parametrize(
    "change",
    [
        {"run": 1},
        {"rung": "0"},
        {"rung": True},
        {"owned": "yes"},
        {"digest": ""},
        {"check": []},
        {"identity": [1]},
        {"identity": {"unit": "u", "main_pid": "x"}},
    ],
)
def test_a_damaged_record_is_none(change: dict[str, t.Any]) -> None:
    assert record_from({**MADE.as_dict(), **change}) is None


CONFIG = 'model-path: "/m"\nserved-model-name: "n"\nhost: "10.0.0.1"\nport: 30001\napi-key: "k\\"y"\ncontext-length: 1\n'


def test_a_kept_check_wins_and_a_lost_one_is_read_from_the_configuration() -> None:
    mine, kept = Check(port=1, question="New?", level="tools"), Check(port=2, question="Old?", level="health")
    assert check_from(kept.as_dict(), {"config": CONFIG}, mine) == kept
    found = check_from(None, {"config": CONFIG}, mine)
    assert (found.address, found.port, found.level) == ("10.0.0.1", 30001, "model")
    assert config_lines(CONFIG)["api-key"] == 'k"y'
    assert check_from({}, {"config": "port: 99999999\n"}, mine).port == 1


@pytest.mark.parametrize(
    "change",
    [{"port": "1"}, {"port": 0}, {"port": True}, {"level": "none"}, {"answer_pattern": "("}, {"answer_timeout_s": -1}, {"question": None}, {"max_tokens": 0}],
)
def test_a_damaged_check_is_none(change: dict[str, t.Any]) -> None:
    assert valid_check({**Check().as_dict(), **change}) is None
