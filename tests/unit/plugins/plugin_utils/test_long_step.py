# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.playbook.task import Task

from ansible_collections.kpro.llm.plugins.action import sglang_service
from ansible_collections.kpro.llm.plugins.plugin_utils import _long_step as long_step


class Target:
    """Answers of a module, one for each call."""

    def __init__(self, *answers: dict[str, t.Any] | Exception) -> None:
        self.answers = list(answers)
        self.lines: list[str] = []

    def answer(self) -> dict[str, t.Any]:
        """Return the next answer, or fail as the connection does."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> t.Callable[[Target], dict[str, t.Any]]:
    def call(target: Target) -> dict[str, t.Any]:
        task = Task.load({"name": "x", "kpro.llm.hf_model": {}})
        action = long_step.LongStep(task, None, None, None, None, None)
        monkeypatch.setattr(action, "_execute_module", lambda **_options: target.answer())
        monkeypatch.setattr(long_step, "_PAUSE_S", 0.0)
        monkeypatch.setattr(long_step.ActionBase, "run", lambda *_arguments: {})
        monkeypatch.setattr(long_step.display, "display", lambda text, **_options: target.lines.append(text))
        return action.run(task_vars={"inventory_hostname": "qwen"})

    return call


def test_a_module_that_knows_nothing_of_progress_is_called_once(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    assert run(Target({"changed": False, "x": 1})) == {"changed": False, "x": 1}


def test_progress_is_printed_and_changes_are_kept(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    target = Target(
        {"changed": True, "finished": False, "progress": "10 %", "diff": {"before": "a", "after": "b"}, "plan": ["Get it"]},
        {"changed": False, "finished": False, "progress": "10 %"},
        {"changed": False, "finished": False, "progress": "90 %"},
        {"changed": False, "finished": True, "path": "/x", "diff": {"before": "", "after": ""}},
    )
    assert run(target) == {"changed": True, "path": "/x", "diff": {"before": "a", "after": "b"}, "plan": ["Get it"]}
    assert target.lines == ["  qwen: 10 %", "  qwen: 90 %"]


def test_a_failure_ends_it(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    result = run(Target({"changed": True, "finished": False, "progress": "1 %"}, {"failed": True, "msg": "no", "finished": False}))
    assert result["failed"] is True
    assert result["changed"] is True


WAITS = {"changed": False, "finished": False, "progress": "x"}
CUT = {"failed": True, "msg": "MODULE FAILURE", "rc": 137, "module_stdout": "", "module_stderr": ""}
GONE = AnsibleConnectionFailure("Failed to connect to the host via ssh: Connection refused")
STOPPED = AnsibleConnectionFailure("Container 129 is not running on kpro5. Start it there with 'pct start 129'")


def test_a_dropped_connection_is_sought_again(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    """A rebooted node refuses for a while, then its container is not up yet; then the module says what became of its start."""
    target = Target(WAITS, GONE, GONE, STOPPED, {"failed": True, "msg": "the container was booted again", "reason": "x"})
    assert run(target)["msg"] == "the container was booted again"


@pytest.mark.parametrize("answers", [(WAITS, STOPPED), (WAITS, CUT, STOPPED)])
def test_a_stopped_container_is_not_waited_for(run: t.Callable[[Target], dict[str, t.Any]], answers: tuple[t.Any, ...]) -> None:
    with pytest.raises(AnsibleConnectionFailure, match=r"while this step waited for it\. Container 129 is not running"):
        run(Target(*answers, {"finished": True}))


def test_without_contact_nothing_is_sought(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    with pytest.raises(AnsibleConnectionFailure, match="Connection refused"):
        run(Target(GONE, {"finished": True}))


def test_a_module_that_is_ended_twice_has_failed(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    assert run(Target(WAITS, CUT, CUT))["rc"] == 137


def test_the_search_for_contact_ends(run: t.Callable[[Target], dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_step, "_RECONNECT_S", 0.0)
    with pytest.raises(AnsibleConnectionFailure, match=r"did not come back within 0 s\. The work of this step goes on there"):
        run(Target(WAITS, GONE, {"finished": True}))


def test_work_that_is_ended_from_outside_each_time_is_not_started_for_ever(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    starts = [{"changed": True, "finished": False, "progress": f"{number} s", "started": True} for number in range(10)]
    result = run(Target(*starts))
    assert result["failed"] and "started 4 times" in result["msg"] and "Last: 2 s" in result["msg"]
    again = run(Target(*starts[:3], {"changed": False, "finished": True}))
    assert "failed" not in again and "started" not in again


def test_a_module_that_asks_for_it_knows_which_calls_are_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was cut off is made again under its number: it may not have begun anything."""
    given: list[dict[str, t.Any]] = []
    answers = [CUT, WAITS, {"changed": True, "finished": True, "diff": [{"after": "b"}], "plan": ["b"]}]

    def execute(module_args: dict[str, t.Any], **_options: t.Any) -> dict[str, t.Any]:
        given.append(module_args)
        return {**answers.pop(0)}

    action = sglang_service.ActionModule(Task.load({"name": "x", "kpro.llm.sglang_service": {"port": 1}}), None, None, None, None, None)
    monkeypatch.setattr(action, "_execute_module", execute)
    monkeypatch.setattr(long_step.ActionBase, "run", lambda *_arguments: {})
    monkeypatch.setattr(long_step.display, "display", lambda *_arguments, **_options: None)
    action.run(task_vars={"inventory_hostname": "qwen"})
    assert [row["call"] for row in given] == [1, 1, 2] and all(row["port"] == 1 for row in given)
    assert len({row["run_id"] for row in given}) == 1 and given[0]["run_id"]


def test_what_several_calls_did_is_told_whole(run: t.Callable[[Target], dict[str, t.Any]]) -> None:
    target = Target(
        {"changed": True, "finished": False, "diff": [{"after": "a"}], "plan": ["Start a"]},
        {"changed": True, "finished": False, "diff": [{"after": "b"}], "plan": ["Start b"]},
        {"changed": False, "finished": True, "diff": [], "plan": []},
    )
    result = run(target)
    assert result["diff"] == [{"after": "a"}, {"after": "b"}] and result["plan"] == ["Start a", "Start b"]
