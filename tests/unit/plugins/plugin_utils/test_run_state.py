# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.plugin_utils import _run_state as run_state

NODES = {"qwen": "kpro5", "other": "kpro6"}
DONE: dict[str, t.Any] = {"hosts": ["qwen", "other"], "finished": True}


@pytest.mark.parametrize(
    ("preflights", "words"),
    [
        ({}, "no preflight was made in this run"),
        ({"qwen": {**DONE, "finished": False}, "other": {**DONE, "finished": False}}, "the preflight of qwen, other is not finished"),
        ({"qwen": DONE}, "the preflight of other is not finished"),
        ({"qwen": DONE, "other": {}}, "the preflight of other is not finished"),
        ({"qwen": {"failed": True, "msg": "x", "hosts": ["qwen"]}}, "the preflight of qwen is not finished"),
        ({"qwen": {"hosts": ["other"], "finished": True}, "other": {"hosts": ["other"], "finished": True}}, "qwen was not part of the preflight"),
    ],
)
def test_nothing_begins_without_the_finished_preflight_of_all(preflights: dict[str, t.Any], words: str) -> None:
    gate = run_state.gate("qwen", preflights, NODES)
    assert words in gate.refusal and gate.refusal.startswith("Nothing was changed")


def test_a_node_begins_if_a_deployment_of_the_run_is_on_it() -> None:
    both = {"qwen": DONE, "other": DONE}
    assert run_state.gate("kpro5", both, NODES) == run_state.gate("kpro6", both, NODES) == run_state.gate("qwen", both, NODES) == run_state.Gate()
    assert "no deployment of this run is on it" in run_state.gate("kpro7", both, NODES).left_alone
    assert "kpro5" in run_state.gate("kpro5", {}, NODES).refusal


def test_what_failed_first_stays() -> None:
    state = run_state.begun({}, "runtime", 1.0)
    first = run_state.stopped(state, "no space")
    assert first["stopped"] == {"phase": "runtime", "why": "no space"}
    assert run_state.stopped(run_state.begun(first, "model", 2.0), "later")["stopped"] == first["stopped"]


@pytest.mark.parametrize(
    ("state", "has_result", "words"),
    [
        ({}, False, ""),
        ({"phases": [{"name": "node"}]}, True, ""),
        ({"phases": [{"name": "node"}]}, False, "kpro5 can't be reached any more"),
        ({"phases": [{"name": "node"}], "stopped": {"phase": "node", "why": "no headers"}}, False, "kpro5: no headers"),
    ],
)
def test_a_node_takes_its_deployments_along(state: dict[str, t.Any], has_result: bool, words: str) -> None:
    found = run_state.stopped_by_node("kpro5", state, has_result)
    assert words in found.get("why", "") and bool(found) == bool(words)


def test_the_story_names_host_phase_and_reason() -> None:
    state = run_state.stopped(run_state.begun({}, "service", 1.0), "the engine would not start.")
    assert run_state.story("qwen", state, True) == "qwen stopped in the phase service: the engine would not start"
    assert "was lost in the phase service" in run_state.story("qwen", run_state.begun({}, "service", 1.0), False)
    assert run_state.story("qwen", run_state.begun({}, "service", 1.0), True) == ""


def test_in_a_second_preflight_only_those_that_go_on_are_judged() -> None:
    states: dict[str, dict[str, t.Any]] = {"a": {"stopped": {"phase": "move", "why": "x"}}, "b": {}, "c": {}, "d": {}}
    assert run_state.judges(["a", "b", "c", "d"], ["a", "b"], states, {"c": {"finished": True}}) == ["b", "d"]
