# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sample inventories and the shipped ladder: each rung starts as planned, and is the best of its kind by the planner."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card
from ansible_collections.kpro.llm.plugins.module_utils._vram.core import Outcome, evaluate
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, inputs_of

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists())
CONFIGS = json.loads((ROOT / "tests/unit/plugins/module_utils/fixtures/plan/model_configs.json").read_text(encoding="utf-8"))
SAMPLES = {path.stem: path for path in sorted((ROOT / "inventories" / "samples").glob("*.yml"))}


def rungs_of(path: Path, card: str) -> list[tuple[str, Outcome]]:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))["llm_container"]["vars"]
    model, count = values["hf_model__repository"], values["gpu_container__gpus"]
    found = []
    for profile in values["sglang_server__profiles"]:
        args = {**values["sglang_server__options"], **profile["options"], "tp_size": values["sglang_server__tp_size"]}
        args = {name: value for name, value in args.items() if value is not None}
        found.append(
            (
                profile["name"],
                evaluate(
                    inputs_of(Request(CONFIGS.get(model.split("/")[1].lower()) or config_of(model), model, (), (idle_card(card),) * count, "0.5.23", args))[0]
                ),
            )
        )
    return found


def card_of_sample(name: str) -> str:
    return name.partition("x-")[2]


def test_there_is_one_for_what_people_have() -> None:
    cards = ("1x-rtx3090", "2x-rtx3090", "1x-rtx4090", "2x-rtx4090", "1x-rtx5090", "2x-a6000", "4x-a6000", "1x-rtxpro6000", "1x-h100")
    assert set(SAMPLES) == set(cards)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_sample_starts_as_its_head_says(name: str) -> None:
    text = SAMPLES[name].read_text(encoding="utf-8")
    for _rung, outcome in rungs_of(SAMPLES[name], card_of_sample(name)):
        assert outcome.verdict == "OK" and outcome.sizing.requests == outcome.resolved.limit
        assert f"{outcome.sizing.tokens:,} tokens, {outcome.resolved.limit} requests at once of up to {outcome.resolved.context:,} tokens" in text


def best_of_its_kind(outcome: Outcome) -> list[str]:
    """Return what would give more tokens with the same context, requests, speculation, precision and no less room after the pools."""
    options, better = outcome.inputs.options, []
    slots: list[t.Any] = (
        [None, *(outcome.resolved.limit * each for each in (1, 2, 3, 4, 5, 6))] if outcome.inputs.model.linear and outcome.resolved.limit else [None]
    )
    for number in slots:
        other = evaluate(dataclasses.replace(outcome.inputs, options=dataclasses.replace(options, max_mamba_cache_size=number)))
        same = other.verdict == "OK" and other.sizing.requests >= outcome.sizing.requests and other.low_point_gib >= outcome.low_point_gib - 0.01
        if same and other.sizing.tokens > outcome.sizing.tokens:
            better.append(f"max_mamba_cache_size {number}: {other.sizing.tokens} instead of {outcome.sizing.tokens} tokens")
    return better


@pytest.mark.parametrize(("name", "card"), [("kpro5", "a6000"), *((f"samples/{name}.yml", card_of_sample(name)) for name in sorted(SAMPLES))])
def test_no_rung_gives_tokens_away(name: str, card: str) -> None:
    for rung, outcome in rungs_of(ROOT / "inventories" / name, card):
        assert outcome.verdict == "OK", rung
        assert best_of_its_kind(outcome) == [], rung
