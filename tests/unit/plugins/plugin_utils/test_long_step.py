# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from ansible.playbook.task import Task

from ansible_collections.kpro.llm.plugins.plugin_utils import _long_step as long_step


class Target:
    """Answers of a module, one for each call."""

    def __init__(self, *answers: dict[str, t.Any]) -> None:
        self.answers = list(answers)
        self.lines: list[str] = []


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> t.Callable[[Target], dict[str, t.Any]]:
    def call(target: Target) -> dict[str, t.Any]:
        task = Task.load({"name": "x", "kpro.llm.hf_model": {}})
        action = long_step.LongStep(task, None, None, None, None, None)
        monkeypatch.setattr(action, "_execute_module", lambda **_options: target.answers.pop(0))
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
