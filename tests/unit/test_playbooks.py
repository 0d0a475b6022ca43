# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of playbooks and roles that no linter knows."""

from __future__ import annotations

import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")])
PLAYBOOKS = sorted(ROOT.glob("playbooks/*.yml"))
# Plays that change nothing need no preflight.
LOOK_ONLY = {"ask", "check_inventory", "doctor", "plan", "status"}
# Each demands that the thing to be taken away is named, and looks at it before.
OF_THEIR_OWN = {"decommission", "remove"}


def loaded(path: Path) -> t.Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def tasks_of(node: t.Any) -> Iterator[dict[str, t.Any]]:
    """Yield each task and block, at any depth."""
    if isinstance(node, list):
        for each in node:
            yield from tasks_of(each)
    elif isinstance(node, dict):
        yield node
        for key in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from tasks_of(node.get(key))


def plays_of(path: Path) -> list[dict[str, t.Any]]:
    return [play for play in loaded(path) if "hosts" in play]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_rescue_never_relies_on_a_reason(path: Path) -> None:
    """It has none where the host was drawn in by another's failure (any_errors_fatal, run_once), or where a file could not be included."""
    text = path.read_text(encoding="utf-8")
    for line in text.splitlines():
        assert "ansible_failed_result" not in line or "ansible_failed_result | default(" in line, line


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_host_is_drawn_into_the_failure_of_another(path: Path) -> None:
    """any_errors_fatal sends sound hosts into a rescue that has nothing to say; after an ignored unreachable host it ends the play without a word,
    and one that was unreachable is counted twice, so that the next play follows (ansible-core 2.19 to 2.21)."""
    rescues = [task for task in tasks_of(loaded(path)) if "rescue" in task]
    fatal = [play for play in (plays_of(path) if path in PLAYBOOKS else []) if play.get("any_errors_fatal")]
    assert not fatal or path.stem in OF_THEIR_OWN, path.stem
    for play in fatal:
        assert not [task for task in tasks_of(play) if task.get("ignore_unreachable") and task.get("any_errors_fatal") is not False]
    for block in rescues:
        inner = [task for task in tasks_of(block["block"]) if task.get("run_once")]
        assert not inner, f"{block.get('name')}: run_once inside a block with a rescue"


def test_every_play_that_changes_something_demands_the_preflight() -> None:
    for path in PLAYBOOKS:
        if path.stem in LOOK_ONLY | OF_THEIR_OWN:
            continue
        for play in plays_of(path):
            tasks = list(tasks_of(play["tasks"]))
            begins = tasks[0].get("kpro.llm.phase")
            only_prints = all("kpro.llm.outcome" in task for task in tasks)
            only_reads = all("ansible.builtin.slurp" in task for task in tasks)
            if only_prints or only_reads:
                continue
            assert begins, f"{path.name}: {play['name']}"
            assert not begins.get("looks_only") or any("preflight.yml" in str(task) for task in tasks), f"{path.name}: {play['name']}"
            assert play["any_errors_fatal"] is False and play["strategy"] == "ansible.builtin.linear", f"{path.name}: {play['name']}"


def test_every_playbook_is_known_here() -> None:
    known = LOOK_ONLY | OF_THEIR_OWN | {"deploy_qwen", "migrate_qwen"}
    assert {path.stem for path in PLAYBOOKS} == known, "say whether it changes something, and let it demand the preflight if so"


def test_a_play_that_begins_a_phase_stops_its_own_deployment() -> None:
    """Each phase of the deployment is one block with a rescue that notes the reason; only the gate stands before it."""
    for play in plays_of(ROOT / "playbooks/deploy_qwen.yml"):
        if play["name"] in ("Preflight", "Report"):
            continue
        gate, block = play["tasks"]
        assert gate["register"] == "kpro_llm__run"
        assert block["when"] == "kpro_llm__go"
        assert [task["ansible.builtin.import_tasks"] for task in block["rescue"]] == ["tasks/stopped.yml"]


def test_nobody_becomes_root_on_the_controller() -> None:
    """ansible_become for all hosts counts for localhost, too, with the node's password."""
    for path in FILES:
        for task in tasks_of(loaded(path)):
            modules = {"kpro.llm.sglang_plan", "kpro.llm.sglang_launch", "kpro.llm.sglang_probe", "ansible.builtin.copy", "ansible.builtin.lineinfile"} & set(
                task
            )
            on_controller = "localhost" in str(task.get("delegate_to", "")) or "probe_from" in str(task.get("delegate_to", ""))
            included = "ansible.builtin.include_tasks" in task and "localhost" in task.get("vars", {}).values()
            if (modules and on_controller) or included:
                assert "ansible_become" in task.get("vars", {}), f"{path.name}: {task['name']}"
