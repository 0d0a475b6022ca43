# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import json
import pathlib
import typing as t

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
Step = dict[str, t.Any]


@functools.cache
def _all() -> tuple[Step, ...]:
    lines = (FIXTURES / "pve_exchanges.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def scenario(name: str) -> list[Step]:
    """Return the steps of one scenario recorded on a real Proxmox VE 9.2."""
    steps = [step for step in _all() if step["scenario"] == name]
    assert steps, name
    return steps


def step(name: str, number: int) -> Step:
    """Return one step of a scenario."""
    return next(item for item in scenario(name) if item["step"] == number)


def pvesh_steps() -> list[Step]:
    """Return all recorded calls of pvesh."""
    return [item for item in _all() if item["transport"] == "pvesh"]


def writes(name: str) -> t.Iterator[tuple[str, dict[str, str], str]]:
    """Return (file before, parameters, file after) for each accepted change of a configuration in a scenario."""
    before: str | None = None
    pending: dict[str, str] | None = None
    for item in scenario(name):
        if item["transport"] == "file":
            content = item["request"].get("content") or item["response"].get("content") or ""
            if pending is not None and before is not None:
                yield before, pending, content
            before, pending = content, None
        elif item["transport"] == "rest" and item["request"]["method"] == "PUT":
            pending = item["request"]["params"] if item["response"]["http_status"] == 200 else None


@functools.cache
def failure_case(case: str) -> dict[str, t.Any]:
    """Return one failure case from the field."""
    lines = (FIXTURES / "pve_failure_cases.jsonl").read_text(encoding="utf-8").splitlines()
    return next(row for row in map(json.loads, lines) if row["id"] == case)
