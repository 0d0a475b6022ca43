# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts that the rules' own patterns match, made from the patterns in their source."""

from __future__ import annotations

import ast
import re
import typing as t
from pathlib import Path

import ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose as diagnose_module
from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.families import FAMILIES

HOUSE = Path(diagnose_module.__file__).parent
_PARSE = re._parser  # type: ignore[attr-defined]


def texts_of_the_rules() -> list[str]:
    """Return one text for each alternative of each pattern that a rule or a family looks for."""
    return sorted({text for pattern in patterns() for text in made(pattern) if len(text) > 6 and not text.startswith("gate: ")})


def patterns() -> list[str]:
    """Return the patterns, as written in the rules' source and in the table of families."""
    found = [family.said for family in FAMILIES if family.said]
    for file in sorted(HOUSE.glob("rules_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        named = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("find", "line", "seen", "seen_line") and node.args:
                value = named.get(node.args[0].id) if isinstance(node.args[0], ast.Name) else node.args[0]
                if isinstance(value, ast.Constant):
                    found.append(str(value.value))
    assert len(found) > 60
    return found


def made(pattern: str) -> list[str]:
    """Return texts that a pattern matches: each alternative once."""
    texts = [text for text in _texts(_PARSE.parse(pattern)) if re.search(pattern, text, re.IGNORECASE)]
    assert texts, pattern
    return texts[:12]


def _texts(parsed: t.Any) -> list[str]:
    texts = [""]
    for code, value in parsed:
        options = _options(str(code), value)
        texts = [text + option for text in texts for option in options][:40]
    return texts


def _options(code: str, value: t.Any) -> list[str]:
    if code == "LITERAL":
        return [chr(value)]
    if code == "NOT_LITERAL":
        return ["x" if value != ord("x") else "y"]
    if code == "IN":
        return [_member(value)]
    if code == "BRANCH":
        return [text for branch in value[1] for text in _texts(branch)]
    if code == "SUBPATTERN":
        return _texts(value[3])
    if code in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = value
        return [text * max(least, 1 if least or most == 1 else 0) for text in _texts(inner)]
    return [" "] if code == "ANY" else [""]


def _member(items: t.Any) -> str:
    kind, value = items[0]
    if str(kind) == "NEGATE":
        return "x" if all(item != ("LITERAL", ord("x")) for item in items) else "y"
    if str(kind) == "CATEGORY":
        return {"CATEGORY_DIGIT": "7", "CATEGORY_WORD": "w", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "z"}.get(str(value), ".")
    return chr(value if isinstance(value, int) else value[0])
