# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module on a log as text, in a file, and in the journal of a stand-in unit."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml
from sglang_standins import Ended, StandinUnit, run_module

from ansible_collections.kpro.llm.plugins.modules import sglang_diagnose

LOG = "gate: ok\nLoad weight begin. avail mem=46.90 GB\nAssertionError: max_running_request is zero\n"


def diagnose(**options: t.Any) -> Ended:
    return run_module(sglang_diagnose.main, **options)


def test_a_log_as_text_with_facts_that_nobody_knows() -> None:
    result = diagnose(log=LOG, context={"args": {"tp_size": 2}, "colour": "green"}).result
    assert (result["class"], result["phase"], result["direction"], result["changed"]) == ("state_slots_too_few", "weights", "raise", False)
    assert result["evidence"] == ["AssertionError: max_running_request is zero"] and result["remedy"]
    documented = set(yaml.safe_load(sglang_diagnose.RETURN))
    assert documented <= set(result)


def test_a_log_in_a_file_and_one_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(LOG, encoding="utf-8")
    assert diagnose(log=str(file)).result["class"] == "state_slots_too_few"
    ended = diagnose(log=str(tmp_path / "none.log"))
    assert ended.rc == 1 and "there is no such file" in ended.result["msg"]


def test_the_last_start_of_the_unit_and_no_other(unit: StandinUnit) -> None:
    unit.say("RuntimeError: an older start", _SYSTEMD_INVOCATION_ID="before")
    unit.say("AssertionError: max_running_request is zero", _SYSTEMD_INVOCATION_ID="now")
    unit.set(InvocationID="now", ActiveState="failed", Result="exit-code")
    result = diagnose().result
    assert result["class"] == "state_slots_too_few" and "older" not in str(result)


def test_a_unit_that_was_never_started(unit: StandinUnit) -> None:
    ended = diagnose()
    assert ended.rc == 1 and "it was never started here" in ended.result["msg"]


@pytest.mark.parametrize("line", ["something nobody has seen", "[TP0] loading"])
def test_unknown_is_said(line: str) -> None:
    result = diagnose(log=f"gate: ok\n{line}\n").result
    assert (result["class"], result["confidence"]) == ("unknown", "none") and line in result["evidence"]


def test_secrets_in_the_deciding_lines_are_hidden() -> None:
    result = diagnose(log="gate: ok\nsglang serve: error: argument --api-key: kpro-1234567890abcdef\nHF_TOKEN=hf_abcdefgh\n").result
    result.pop("invocation", None)  # older releases of ansible-core repeat there what they were given
    assert "hf_abcdefgh" not in str(result)
