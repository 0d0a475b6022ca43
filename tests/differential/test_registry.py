# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which architectures the engine has, where it keeps windows and states, and why others are refused: asked of the published wheels."""

from __future__ import annotations

import functools
import re
import types
import typing as t

import pytest
import stubs
from wheels import PINNED, fetch_pinned

from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import release_of, rules_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.families import EVERY_FOURTH, FAMILIES, KDA, REFUSED

NEWEST = "0.5.23"


@functools.cache
def classes(version: str) -> frozenset[str]:
    """The architectures that a release has a class for (EntryClass of its models)."""
    wheel = fetch_pinned(version)
    found: set[str] = set()
    for path in wheel.files("models"):
        source = wheel.source(path)
        for match in re.finditer(r"^EntryClass[^=\n]*=\s*(\[[^\]]*\]|\w+)", source, re.MULTILINE):
            found |= set(re.findall(r"\w+", match[1]))
    return frozenset(found)


@pytest.mark.parametrize("version", sorted(PINNED))
def test_each_row_is_a_class_of_the_releases_that_it_says(version: str) -> None:
    missing = {name for name, family in FAMILIES.items() if release_of(family.since) <= release_of(version)} - classes(version)
    # This one has no class under its own name in any release; the engine's Llava class is registered for it.
    assert missing <= {"LlavaForConditionalGeneration"} | ({"Qwen3_5ForCausalLM"} if release_of(version) < (0, 5, 17) else set())


def test_what_is_refused_for_want_of_a_class_has_none() -> None:
    without = {name for name, why in REFUSED.items() if "no class" in why}
    assert without and not without & classes(NEWEST)
    assert set(REFUSED) - without <= classes(NEWEST) | {"MiniMaxM3ForCausalLM"}


def test_what_is_refused_for_its_attention_has_an_index_beside_the_cache() -> None:
    source = fetch_pinned(NEWEST).source("configs/model_config.py")
    function = source[source.index("def is_deepseek_dsa(") :].split("\ndef ", 2)[0]
    assert "index_topk" in function
    configurator = fetch_pinned(NEWEST).source("model_executor/pool_configurator.py")
    for words in ("_compute_dsa_indexer_cell_size", "class DSV4PoolConfigurator", "is_minimax_sparse"):
        assert words in configurator


def _config_names() -> dict[str, t.Any]:
    wheel = fetch_pinned(NEWEST)
    names = stubs.namespace(PretrainedConfig=object)
    wanted = ["SWA_SINK_ARCHS", "MIMO_V2_MODEL_ARCHS", "is_hybrid_swa_model", "get_hybrid_layer_ids"]
    there = wheel.names("configs/model_config.py")
    return stubs.define(names, wheel.nodes("configs/model_config.py", [name for name in wanted if name in there]))


def test_windows_have_a_pool_of_their_own_where_the_engine_gives_them_one() -> None:
    names = _config_names()
    names.setdefault("MIMO_V2_MODEL_ARCHS", ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"))
    for name, family in FAMILIES.items():
        assert names["is_hybrid_swa_model"]([name], types.SimpleNamespace()) == bool(family.window), name
        if family.window != EVERY_FOURTH:
            continue
        windowed, full = names["get_hybrid_layer_ids"]([name], types.SimpleNamespace(num_hidden_layers=48))
        assert (len(windowed), len(full)) == (36, 12)


def test_states_are_those_that_the_engine_keeps_in_its_prefix_cache() -> None:
    wheel = fetch_pinned(NEWEST)
    names = stubs.define(stubs.namespace(), wheel.nodes("arg_groups/overrides.py", ["_MAMBA_RADIX_CACHE_ARCHS", "_MAMBA_EXTRA_BUFFER_ARCHS"]))
    with_state = {name for name, family in FAMILIES.items() if family.state}
    assert with_state - {"GraniteMoeHybridForCausalLM"} <= names["_MAMBA_RADIX_CACHE_ARCHS"]
    assert with_state <= names["_MAMBA_EXTRA_BUFFER_ARCHS"]
    assert not (set(FAMILIES) - with_state) & names["_MAMBA_RADIX_CACHE_ARCHS"]
    assert [name for name, family in FAMILIES.items() if family.state == KDA] == ["KimiLinearForCausalLM"]


def test_compressed_caches_are_those_of_the_engine() -> None:
    source = fetch_pinned(NEWEST).source("configs/model_config.py")
    for name, family in FAMILIES.items():
        near = re.search(rf'"{name}" in self\.hf_config\.architectures', source)
        assert bool(family.latent) <= bool(near), name


@pytest.mark.parametrize("version", [version for version in sorted(PINNED) if release_of(version) >= (0, 5, 19)])
def test_images_keep_prefill_graphs_for_these_only(version: str) -> None:
    name = "multimodal_breakable_cuda_graph_supported_model_archs"
    listed = set(stubs.define(stubs.namespace(), fetch_pinned(version).nodes("configs/model_config.py", [name]))[name])
    rules, _warnings = rules_of(version)
    assert rules.graphs_with_images == listed & set(FAMILIES)
