# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No failure case from the field about containers and the way to them is left without a test that names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
KINDS = {"ct-permissions", "pve-api", "collection-idempotency", "transport", "migration"}
CASES = [json.loads(line) for line in (HERE / "fixtures/pve_failure_cases.jsonl").read_text(encoding="utf-8").splitlines()]
TESTS = {path: path.read_text(encoding="utf-8") for path in HERE.parent.rglob("test_*.py") if path != Path(__file__)}


@pytest.mark.parametrize("case", [case["id"] for case in CASES if case["kind"] in KINDS])
def test_the_case_has_a_test(case: str) -> None:
    assert [path for path, text in TESTS.items() if case in text]


def test_every_kind_is_there() -> None:
    assert {case["kind"] for case in CASES} >= KINDS
