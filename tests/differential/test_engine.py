# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner is held to the engine's own sizing and default-choosing functions, taken out of the published wheels."""

from __future__ import annotations

import random
import types
import typing as t

import pytest
import stubs
from cases import Answer, Case, random_case
from compare import compare
from engine_fraction import FractionEngine
from planner import answer
from wheels import BETWEEN, PINNED, fetch_pinned

from ansible_collections.kpro.llm.plugins.module_utils._engine.option_names import BY_VERSION
from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import release_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.model import model_of

STARTS = 4000
FRACTIONS = 1000


@pytest.mark.parametrize("version", sorted(PINNED))
def test_slots_requests_and_tokens_are_those_of_the_engine(version: str) -> None:
    result = compare(fetch_pinned(version), STARTS)
    print(result.sentence(version))
    assert result.booting == STARTS and not result.differences, result.sentence(version)


@pytest.mark.parametrize("version", sorted(BETWEEN))
def test_the_automatic_fraction_is_that_of_the_engine(version: str) -> None:
    engine, dice = FractionEngine(fetch_pinned(version)), random.Random(version)
    compared = 0
    while compared < FRACTIONS:
        case = random_case(dice, version)
        case.args.pop("mem_fraction_static", None)
        plan = answer(case, version)
        if plan.stage != "options":
            assert engine.answer(case) == (plan.fraction, plan.chunk, plan.graph_batch), (case.model.architecture, case.args, case.card_mib)
            compared += 1


@pytest.mark.parametrize("version", sorted(PINNED))
def test_a_changed_rule_would_be_noticed(version: str) -> None:
    def one_slot_off(case: Case, of_version: str) -> Answer:
        plan = answer(case, of_version)
        # One page less in one start of three hundred: the size of a padding rule.
        return plan if plan.tokens is None or plan.tokens % 300 else Answer(**{**plan.__dict__, "tokens": plan.tokens - 1})

    assert compare(fetch_pinned(version), 600, one_slot_off).differences


@pytest.mark.parametrize("version", sorted(PINNED))
def test_the_longest_context_is_the_one_that_the_engine_derives(version: str) -> None:
    path = "utils/hf_transformers/common.py" if release_of(version) >= (0, 5, 19) else "utils/hf_transformers_utils.py"
    names = stubs.define(stubs.namespace(), fetch_pinned(version).nodes(path, ["CONTEXT_LENGTH_KEYS", "get_context_length"]))
    dice = random.Random(version)
    for _number in range(500):
        config = {**_DENSE, "max_position_embeddings": dice.choice((2048, 32768, 131072))}
        if dice.random() < 0.3:
            config[dice.choice(("max_sequence_length", "seq_length", "max_seq_len", "model_max_length"))] = dice.choice((None, 1024, 65536))
        if dice.random() < 0.7:
            rope: dict[str, t.Any] = {"factor": dice.choice((1.0, 2.0, 4.0)), "rope_type": dice.choice(("yarn", "linear", "llama3"))}
            config["rope_scaling"] = rope | ({"original_max_position_embeddings": 8192} if dice.random() < 0.3 else {})
        assert model_of(config).max_position == names["get_context_length"](types.SimpleNamespace(**config)), config


_DENSE: dict[str, t.Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 32000,
}


@pytest.mark.parametrize(("version", "family"), [("0.5.9", "0.5.9"), ("0.5.10.post1", "0.5.10"), ("0.5.23", "0.5.23")])
def test_option_names_are_those_of_the_engine(version: str, family: str) -> None:
    wheel = fetch_pinned(version)
    if family == "0.5.23":
        fields = {name for path in wheel.files("arg_groups/fields") for name in wheel.fields(path)}
    else:
        fields = wheel.fields("server_args.py", "ServerArgs")
    fields = {name for name in fields if not name.startswith("_")}
    assert len(fields) > 300
    assert fields - BY_VERSION[family] == set()
    # Names that the command line has besides its record of arguments: aliases of old releases and of the config file.
    assert len(BY_VERSION[family] - fields) <= 8
