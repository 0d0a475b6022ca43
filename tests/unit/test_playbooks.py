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


def tasks_of(node: t.Any) -> Iterator[dict[str, t.Any]]:
    """Yield each task and block, at any depth."""
    if isinstance(node, list):
        for each in node:
            yield from tasks_of(each)
    elif isinstance(node, dict):
        yield node
        for key in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from tasks_of(node.get(key))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_unreachable_host_that_is_an_answer_does_not_end_the_play(path: Path) -> None:
    """In a play with any_errors_fatal, ansible-core ends the play without a word after a task whose unreachable host is ignored."""
    for task in tasks_of(yaml.safe_load(path.read_text(encoding="utf-8"))):
        if task.get("ignore_unreachable") and not task.get("hosts"):
            in_a_fatal_play = path.parent.name == "tasks" or "any_errors_fatal: true" in path.read_text(encoding="utf-8")
            assert not in_a_fatal_play or task.get("any_errors_fatal") is False, task["name"]
