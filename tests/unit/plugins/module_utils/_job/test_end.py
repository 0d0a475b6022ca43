# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends of units as systemd 252 and 257 tell them; the messages were seen there."""

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._job.end import silent_end
from ansible_collections.kpro.llm.plugins.module_utils._linux.unit_state import UnitState

UNIT = "kpro-hf-model-0123456789ab.service"
TRACEBACK = [
    "Started kpro-hf-model-0123456789ab.service - kpro.llm: model org/model.",
    "Traceback (most recent call last):",
    '  File "<frozen os>", line 225, in makedirs',
    "FileNotFoundError: [Errno 2] No such file or directory: '/srv/models/.incoming'",
    f"{UNIT}: Main process exited, code=exited, status=1/FAILURE",
    f"{UNIT}: Failed with result 'exit-code'.",
]


def test_an_exit_code_is_told_with_the_last_words_and_no_advice_to_run_again() -> None:
    error = silent_end(UNIT, UnitState(exec_code="1", exec_status=1, result="exit-code"), TRACEBACK, "Checking")
    assert "exit code 1" in error.reason and "No such file or directory: '/srv/models/.incoming'" in error.reason
    assert "as far as: Checking" in error.reason and "Main process exited" not in error.reason
    assert "run again" not in error.remedy.lower() and "the same command would end the same way" in error.remedy


@pytest.mark.parametrize(
    ("state", "lines", "reason", "remedy"),
    [
        (UnitState(exec_code="2", exec_status=9, result="oom-kill"), [], "the memory was used up", "gpu_container__memory_mib"),
        (
            UnitState(exec_code="2", exec_status=9, result="signal"),
            [f"{UNIT}: A process of this unit has been killed by the OOM killer."],
            "the memory was used up",
            "more memory",
        ),
        (UnitState(exec_code="2", exec_status=9, result="signal"), [], "ended by signal 9", "Run again: what has arrived is kept. If it is ended once more"),
        (UnitState(exec_code="1", exec_status=1, result="exit-code"), ["OSError: [Errno 28] No space left on device"], "exit code 1", "Free space"),
        (UnitState(result="timeout", exec_code="2", exec_status=15), [], "time limit", "Run again"),
        (UnitState(), [], "systemd knows the unit no more", "If the system was restarted meanwhile, run again"),
        (UnitState(result="success"), ["the last word"], "Its last words: the last word", "look at what ended it"),
    ],
)
def test_each_end_has_its_own_remedy(state: UnitState, lines: list[str], reason: str, remedy: str) -> None:
    error = silent_end(UNIT, state, lines, "")
    assert reason in error.reason and remedy in error.remedy and UNIT in error.remedy


def test_endless_lines_are_bounded() -> None:
    error = silent_end(UNIT, UnitState(exec_code="1", exec_status=3), ["x" * 10_000] * 60, "")
    assert len(error.reason) < 1200
