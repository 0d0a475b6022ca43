# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One list names the failures: rules, waiting and ladder use it, and nobody spells a name again."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.case import Diagnosis
from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose import diagnose
from ansible_collections.kpro.llm.plugins.module_utils._engine.failures import Failure
from ansible_collections.kpro.llm.plugins.module_utils._service.ladder import CURABLE, KERNELS

HOUSE = next(parent for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists()) / "plugins" / "module_utils"
USERS = sorted(path for package in ("_diagnosis", "_ready", "_start", "_service") for path in (HOUSE / package).glob("*.py"))
# Also words of systemd and of our own states.
ORDINARY = {Failure.STOPPED, Failure.TIMEOUT, Failure.UNKNOWN}


def spelled(source: str) -> list[str]:
    """Return the failures that a source names by a text of its own."""
    tree = ast.parse(source)
    classes = [call.args[0] for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == "Diagnosis" and call.args]
    classes += [word.value for word in ast.walk(tree) if isinstance(word, ast.keyword) and word.arg == "class_"]
    given = [part for node in classes for part in ((node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,))]
    texts = [node.value for node in given if isinstance(node, ast.Constant)]
    names = set(Failure) - ORDINARY
    return [*texts, *(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names)]


@pytest.mark.parametrize("path", USERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_failure_is_spelled_anew(path: Path) -> None:
    assert not spelled(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source", ['Diagnosis("made_up", "x")', 'Diagnosis("a" if b else Failure.UNKNOWN, "x")', 'x = "load_oom"', 'replace(d, class_="timeout")']
)
def test_a_spelled_one_would_be_found(source: str) -> None:
    assert spelled(source)


def test_each_failure_is_found_by_somebody() -> None:
    used = {
        node.attr
        for path in USERS
        if path.name != "ladder.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Failure"
    }
    assert set(Failure.__members__) == used - {"of"}


def test_the_ladder_acts_on_failures_only() -> None:
    assert set(Failure) > CURABLE | KERNELS and not CURABLE & KERNELS


def test_a_result_holds_plain_text() -> None:
    # A value of another type than str would be a surprise for whoever writes results down.
    assert Diagnosis(Failure.LOAD_OOM, "x").as_dict()["class"].__class__ is str
    assert json.dumps(diagnose([], {"loss": ["hang", "no progress"]}).as_dict()["class"]) == '"hang"'


def test_a_loss_that_nobody_named_keeps_its_words() -> None:
    found = diagnose([], {"loss": ["made_up", "it was odd"]})
    assert found.class_ == Failure.UNKNOWN and found.cause == "it was odd"
