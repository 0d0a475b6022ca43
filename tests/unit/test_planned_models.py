# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of planned models is what the planner says today, and parameters are the published ones."""

from __future__ import annotations

import importlib.util
import typing as t
from pathlib import Path

import pytest

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists())


def _tool() -> t.Any:
    spec = importlib.util.spec_from_file_location("planned_models", ROOT / "tests" / "tools" / "planned_models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
RECORDS = {record["model"]: record for record in TOOL.records()}
# Counts of the makers' own files, to the last parameter or to four digits; others round to billions.
EXACT = {"Qwen/Qwen3-VL-30B-A3B-Instruct": 31.07e9, "zai-org/GLM-4.6V-Flash": 10.29e9, "openai/gpt-oss-120b": 116.83e9, "openai/gpt-oss-20b": 20.91e9}


def test_the_page_is_what_the_planner_says() -> None:
    assert (ROOT / "docs" / "planned_models.md").read_text(encoding="utf-8") == TOOL.page()


@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if "shapes_sum" in record])
def test_parameters_are_those_that_were_summed_up_independently(name: str) -> None:
    record = RECORDS[name]
    try:
        model = TOOL.model_of(record["config"], name)
    except TOOL.KproError:
        return
    if model.by_headers:
        return
    # The independent sums leave small vectors out, and count vision towers roughly.
    slack = 0.025 if model.multimodal else 0.003 if "MiMo-V2" in name else 0.001
    slack = 0.01 if "Next-80B" in name else slack
    assert TOOL.parameters(model) == pytest.approx(record["shapes_sum"], rel=slack)


@pytest.mark.parametrize("name", sorted(set(EXACT) & set(RECORDS)))
def test_parameters_are_the_published_ones(name: str) -> None:
    count = TOOL.parameters(TOOL.model_of(RECORDS[name]["config"], name))
    assert count == pytest.approx(EXACT[name], rel=0.0005)
