# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._linux.run_identity import RunIdentity, identity_change, identity_from_dict, start_ticks_of
from ansible_collections.kpro.llm.plugins.module_utils._linux.systemd_edge import journal_line
from ansible_collections.kpro.llm.plugins.module_utils._linux.unit_state import unit_state_from_show

RUN = RunIdentity("kpro-sglang.service", "a" * 32, "boot-1", 412, 91823, 0, "0.5.23", "/srv/models/x", "qwen")


def test_an_identity_survives_the_way_through_a_result() -> None:
    assert identity_from_dict(RUN.as_dict()) == RUN
    assert identity_from_dict({**RUN.as_dict(), "more": 1, "n_restarts": "0"}) == RUN


@pytest.mark.parametrize("values", [{}, {"unit": ""}, {"unit": "x", "main_pid": "four"}])
def test_what_is_no_identity_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(KproError):
        identity_from_dict(values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"main_pid": 0, "main_start_ticks": 0}, ""),
        ({"boot_id": "boot-2"}, "booted again"),
        ({"invocation_id": "b" * 32}, "started anew"),
        ({"invocation_id": "b" * 32, "n_restarts": 2}, "restarted 2 times by systemd (NRestarts 0 -> 2)"),
        ({"main_start_ticks": 91824}, "main process of kpro-sglang.service changed"),
    ],
)
def test_how_another_start_differs(change: dict[str, object], words: str) -> None:
    found = identity_change(RUN, dataclasses.replace(RUN, **change))  # type: ignore[arg-type]  # fields by name
    assert (words in found) if words else found == ""


def test_the_start_time_of_a_process_with_an_odd_name() -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    assert start_ticks_of(f"412 (odd ) name)) S {fields}") == 22
    assert start_ticks_of(Path("/proc/self/stat").read_text(encoding="ascii")) > 0


# The answer of systemd 252 in a container, shortened.
SHOWN = """TimeoutStartUSec=5min
ExecMainStartTimestampMonotonic=1879450000
ExecMainPID=101
ExecMainCode=2
ExecMainStatus=9
MainPID=0
NRestarts=1
Result=signal
LoadState=loaded
ActiveState=activating
SubState=auto-restart
FragmentPath=/etc/systemd/system/kpro-sglang.service
UnitFileState=enabled
NeedDaemonReload=no
ControlGroup=/system.slice/kpro-sglang.service
InvocationID=42ee8ab6722543e79db6e61f12797bee
"""


def test_a_unit_between_crash_and_restart() -> None:
    unit = unit_state_from_show(SHOWN)
    assert unit.waiting_for_restart and not unit.running
    assert unit.exit_words == "ended by signal 9"
    assert (unit.n_restarts, unit.exec_main_pid, unit.need_daemon_reload) == (1, 101, False)


def test_a_unit_that_systemd_does_not_know() -> None:
    unit = unit_state_from_show("LoadState=not-found\nActiveState=inactive\nMainPID=0\nExecMainCode=0\nInvocationID=\n")
    assert not unit.running and unit.exit_words == "" and unit.invocation_id == ""


def test_messages_of_the_journal() -> None:
    line = journal_line('{"__REALTIME_TIMESTAMP":"1764438405000000","_PID":"101","MESSAGE":"gate: ok"}')
    assert line is not None and (line.time_s, line.pid, line.text) == (1764438405.0, 101, "gate: ok")
    coloured = journal_line('{"__REALTIME_TIMESTAMP":"1","MESSAGE":[27,91,51,50,109,79,75]}')
    assert coloured is not None and coloured.text == "\x1b[32mOK"
    assert journal_line("-- No entries --") is None and journal_line('{"MESSAGE":null}') is None


def test_a_process_that_has_just_gone_is_not_another_one() -> None:
    expected = RunIdentity("kpro-sglang.service", "a" * 32, "boot", main_pid=812, main_start_ticks=77)
    assert identity_change(expected, dataclasses.replace(expected, main_start_ticks=0)) == ""
    assert "main process" in identity_change(expected, dataclasses.replace(expected, main_start_ticks=99))
