# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every failure case of the field, and where it is tested: nothing on the list may be left without a test."""

from __future__ import annotations

import ast
import functools
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists())
UNIT = ROOT / "tests" / "unit"

# The cases by kind; the ids are LLMX-NNN.
CASES = {
    "ansible-runtime": "019 042 057 104",
    "collection-idempotency": "010 012 064 095",
    "ct-permissions": "015 043 044",
    "device-nodes": "049 072 075 119 142",
    "driver-match": "016 038 084 156",
    "gpu-cleanup": "055 059 063 118",
    "host-driver": "008 033 121 128 140",
    "migration": "034 081 103",
    "model-download": "005 006 046 091",
    "multi-gpu": "017 032 115 134",
    "pve-api": "051 071 087 093 100 113",
    "python-env": "011 040 050 109 122 125 154",
    "readiness": "004 007 021 099",
    "sglang-arch": "045 094 101 159",
    "sglang-memory": "024 031 086 114 117 133",
    "silent-degradation": "062 097 131 141",
    "systemd": "065 090 102 136",
    "transport": "020 041 076 135 146",
}
# Fixtures whose cases one test goes through, one by one.
WHOLE = {"plugins/module_utils/fixtures/sglang_failure_cases.jsonl": ("plugins/module_utils/_diagnosis/test_diagnose.py", "test_recorded_case")}
# Cases whose test does not name the id: it holds the same input, or the collection has nothing that could fail so.
BY_ANOTHER_NAME = {
    "019": ("test_failure_cases.py", "test_what_runs_on_a_target_needs_nothing_but_its_python"),
    "042": ("test_failure_cases.py", "test_no_role_has_a_handler_that_could_meet_an_absent_service"),
    "057": ("test_failure_cases.py", "test_no_task_becomes_another_user"),
    "104": ("test_failure_cases.py", "test_nothing_is_ended_by_a_name"),
}
IDS = [(kind, number) for kind, numbers in CASES.items() for number in numbers.split()]


@functools.cache
def named_tests(file: Path) -> dict[str, str]:
    """Return the source of each test of a file, its decorators included."""
    lines = file.read_text(encoding="utf-8").splitlines()
    found = {}
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[begin - 1 : node.end_lineno])
    return found


@functools.cache
def cases_of(fixture: str) -> frozenset[str]:
    lines = (UNIT / fixture).read_text(encoding="utf-8").splitlines()
    return frozenset(json.loads(line)["id"] for line in lines)


def where(number: str) -> str:
    """Return the test of a case; empty if there is none."""
    case = f"LLMX-{number}"
    for fixture, (file, name) in WHOLE.items():
        if case in cases_of(fixture) and name in named_tests(UNIT / file):
            return f"{file}::{name}"
    if number in BY_ANOTHER_NAME:
        file, name = BY_ANOTHER_NAME[number]
        return f"{file}::{name}" if name in named_tests(UNIT / file) else ""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path != Path(__file__).resolve() and case in text and named_tests(path):
            return f"{path.relative_to(ROOT)}: {case}"
    return ""


@pytest.mark.parametrize(("kind", "number"), IDS, ids=lambda value: value)
def test_every_case_has_a_test(kind: str, number: str) -> None:
    assert where(number), f"LLMX-{number} ({kind}) is tested nowhere"


def test_the_list_is_whole() -> None:
    assert len(IDS) == len({number for _kind, number in IDS}) == 80 and len(CASES) == 18


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yml", ".j2"))


def tasks(node: object) -> list[dict[str, object]]:
    """Return all mappings in a YAML document: plays, blocks, tasks."""
    if isinstance(node, dict):
        return [node, *(found for value in node.values() for found in tasks(value))]
    return [found for value in node for found in tasks(value)] if isinstance(node, list) else []


def test_nothing_is_ended_by_a_name() -> None:
    """LLMX-104: a pattern matches the shell that looks for it, and everybody else's processes."""
    for path in sources("plugins", "roles", "playbooks"):
        words = re.findall(r"[\"'\s](pkill|killall|pgrep|fuser)[\"'\s]", path.read_text(encoding="utf-8"))
        assert not words, f"{path.relative_to(ROOT)} ends by name: {words}"


def test_no_task_becomes_another_user() -> None:
    """LLMX-057: that needs the package acl in the container; modules drop their rights by themselves."""
    for path in sources("roles", "playbooks"):
        if path.suffix == ".yml":
            found = [task for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8"))) if {"become", "become_user"} & set(task)]
            assert not found, path.relative_to(ROOT)


def test_no_role_has_a_handler_that_could_meet_an_absent_service() -> None:
    """LLMX-042: one module writes and starts the service, so nothing is restarted that was not installed."""
    assert not list((ROOT / "roles").glob("*/handlers"))
    for path in sources("roles", "playbooks"):
        if path.suffix == ".yml":
            assert not [task for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8"))) if {"notify", "handlers"} & set(task)], path.relative_to(ROOT)


# On the controller, for the Proxmox API over https (proxmoxer brings requests); their absence is told with the interpreter that lacks it.
ALLOWED = {("_pve/https_edge.py", "proxmoxer"), ("_pve/https_edge.py", "requests")}


def test_what_runs_on_a_target_needs_nothing_but_its_python() -> None:
    """LLMX-019: a library that was installed for another interpreter."""
    own = {*sys.stdlib_module_names, "ansible", "ansible_collections"}
    for path in sources("plugins/modules", "plugins/module_utils"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in own or (f"{path.parent.name}/{path.name}", top) in ALLOWED, f"{path.relative_to(ROOT)} imports {name}"
