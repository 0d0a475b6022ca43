# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fallback ladder of the shipped inventory: each rung fits two RTX A6000, and the engine's own parser accepts it."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from wheels import PINNED, fetch

from ansible_collections.kpro.llm.plugins.module_utils._engine.options import rung_texts
from ansible_collections.kpro.llm.plugins.module_utils._vram.ladder import planned_ladder
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request
from ansible_collections.kpro.llm.plugins.module_utils._vram.target_edge import cards_of

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists())
VERSION = "0.5.23"
INVENTORY = yaml.safe_load((ROOT / "inventories" / "kpro5").read_text(encoding="utf-8"))["llm_container"]["vars"]
PROFILES = INVENTORY["sglang_server__profiles"]


@pytest.fixture(scope="module")
def plan() -> dict[str, t.Any]:
    """The plan as the deployment makes it, for idle cards."""
    args = {**INVENTORY["sglang_server__options"], "tp_size": INVENTORY["sglang_server__tp_size"]}
    model = INVENTORY["hf_model__repository"]
    return planned_ladder(Request(config_of(model), model, [], cards_of(None, "a6000", 2), VERSION, args), PROFILES)


def parse(tmp_path: Path, texts: t.Sequence[str]) -> subprocess.CompletedProcess[str]:
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(text, encoding="utf-8")
    wheel = fetch(VERSION, PINNED[VERSION]).path
    program = Path(__file__).with_name("engine_parser.py")
    return subprocess.run([sys.executable, str(program), str(wheel), *map(str, paths)], capture_output=True, text=True, check=False)


def config_texts(plan: dict[str, t.Any]) -> list[str]:
    head = "model-path: /srv/models/x\nserved-model-name: x\nhost: 0.0.0.0\nport: 30000\ntp-size: 2\napi-key: k\n@KPRO_OPTIONS@\n"
    return rung_texts(head, plan["rungs"], {}, VERSION)


def test_the_rungs_are_the_three_that_were_asked_for() -> None:
    options = [{**INVENTORY["sglang_server__options"], **profile["options"]} for profile in PROFILES]
    assert [each["context_length"] for each in options] == [65536, 65536, 32768]
    assert [each.get("speculative_algorithm") for each in options] == ["NEXTN", None, None]
    first = options[0]
    assert (first["speculative_num_steps"], first["speculative_eagle_topk"], first["speculative_num_draft_tokens"]) == (3, 1, 4)
    assert all("max_running_requests" in each and "mem_fraction_static" in each and "mamba_ssm_dtype" in each for each in options)


def test_every_rung_is_planned_to_be_ok_and_none_lowers_its_own_limit(plan: dict[str, t.Any]) -> None:
    assert plan["rung"] == 0
    for row, requests in zip(plan["rungs"], (8, 8, 4), strict=True):
        assert (row["verdict"], row["max_running_requests"], row["passed_over"]) == ("OK", requests, ""), row
    # Each rung leaves at least as much room as the one above it.
    room = [row["low_point_gib"] for row in plan["rungs"]]
    assert room == sorted(room)


def test_every_rung_is_accepted_by_the_engines_own_parser(plan: dict[str, t.Any], tmp_path: Path) -> None:
    done = parse(tmp_path, config_texts(plan))
    assert done.returncode == 0, done.stderr[-2000:]
    parsed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["context_length"] for each in parsed] == [65536, 65536, 32768]
    assert [each["speculative_algorithm"] for each in parsed] == ["NEXTN", None, None]
    assert all(each["reasoning_parser"] == "qwen3" and each["tp_size"] == 2 for each in parsed)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no-such-option: 1", "no-such-option"),
        ("mamba-ssm-dtype: float8", "invalid choice"),
        ("tool-call-parser: qwen9", "invalid choice"),
        ("max-mamba-cache-size: many", "invalid int value"),
    ],
)
def test_the_parser_would_refuse_a_wrong_one(plan: dict[str, t.Any], tmp_path: Path, line: str, words: str) -> None:
    name = line.partition(":")[0]
    text = "\n".join(kept for kept in config_texts(plan)[0].splitlines() if not kept.startswith(name)) + f"\n{line}\n"
    done = parse(tmp_path, [text])
    assert done.returncode != 0 and words in done.stderr, done.stderr[-500:]
