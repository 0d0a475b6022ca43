# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.options import config_text, named_for, release_of, rung_texts, service_rungs
from ansible_collections.kpro.llm.plugins.module_utils._service.text import effective_text, environment_of, quoted_for_systemd, texts_digest, without_secrets


def test_only_what_the_reader_obeys_counts() -> None:
    assert effective_text("# note\n\nA=1  \n; old\nB=2 # not a comment\n") == "A=1\nB=2 # not a comment"
    assert texts_digest({"a": "x\n", "b": "y"}) == texts_digest({"b": "# n\ny\n", "a": "x"})
    assert texts_digest({"a": "xy", "b": ""}) != texts_digest({"a": "x", "b": "y"})


@pytest.mark.parametrize(
    ("text", "kept", "hidden"),
    [
        ("HF_TOKEN=hf_abc", [], "hf_abc"),
        ('api-key: "kpro-1"', [], "kpro-1"),
        ("DB_PASSWORD = geheim", [], "geheim"),
        ("max-total-tokens: 8192", ["8192"], "*"),
        ("skip-tokenizer-init: true", ["true"], "*"),
        ("A=1", ["A=1"], "*"),
    ],
)
def test_secrets_are_hidden_and_counts_are_not(text: str, kept: list[str], hidden: str) -> None:
    shown = without_secrets(text)
    assert hidden not in shown and all(word in shown for word in kept)


def test_known_secrets_are_hidden_anywhere() -> None:
    assert without_secrets("a line with my-secret-1 in it", ["my-secret-1", ""]) == "a line with ******** in it"


@pytest.mark.parametrize("value", ["plain", 'with "quotes"', "back\\slash", "$HOME `id`", "", "  blanks  "])
def test_values_survive_systemds_quoting(value: str) -> None:
    assert environment_of(f"A={quoted_for_systemd(value)}\n") == {"A": value}


def test_a_line_break_is_refused() -> None:
    with pytest.raises(KproError, match="line break"):
        quoted_for_systemd("a\nb")


def test_renamed_options_follow_the_version() -> None:
    options = {"mamba_radix_cache_strategy": "extra_buffer", "context-length": 65536, "enable_metrics": True, "quantization": None}
    assert named_for(options, "0.5.23")["mamba_radix_cache_strategy"] == "extra_buffer"
    old = named_for(options, "0.5.10.post1")
    assert old["mamba_scheduler_strategy"] == "extra_buffer" and "mamba_radix_cache_strategy" not in old
    assert old["context_length"] == 65536 and "quantization" not in old
    assert named_for({"mamba_scheduler_strategy": "no_buffer"}, "0.5.23") == {"mamba_radix_cache_strategy": "no_buffer"}


def test_the_config_file_is_sorted_yaml_with_json_values() -> None:
    options = named_for(
        {"context_length": 65536, "enable_metrics": True, "chat_template": 'a "b"', "lora_paths": ["x", "y"], "json_model_override_args": {"a": 1}}, "0.5.23"
    )
    assert config_text(options).splitlines() == [
        r'chat-template: "a \"b\""',
        "context-length: 65536",
        "enable-metrics: true",
        r'json-model-override-args: "{\"a\": 1}"',
        'lora-paths: ["x", "y"]',
    ]


@pytest.mark.parametrize("options", [{"port": 1}, {"tp": 2}, {"model": "x"}, {"context_length": 1, "context-length": 2}, {"Bad Name": 1}, {"a": object()}])
def test_what_cannot_be_an_option_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(KproError):
        named_for(options, "0.5.23")


def test_versions() -> None:
    assert release_of("0.5.10.post1") == (0, 5, 10)
    with pytest.raises(KproError):
        release_of("newest")


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(KproError, match=r"engine option context_lenght: SGLang 0\.5\.23 does not know it\. Did you mean context_length"):
        named_for({"context_lenght": 1}, "0.5.23")
    assert named_for({"some_new_option": 1}, "0.9.0") == {"some_new_option": 1}


def test_each_rung_is_the_file_with_its_own_options() -> None:
    options = {"context_length": 65536, "speculative_algorithm": "NEXTN", "mamba_radix_cache_strategy": "extra_buffer"}
    profiles = [{"name": "full", "options": {}}, {"name": "plain", "options": {"speculative-algorithm": None, "mamba_scheduler_strategy": "no_buffer"}}]
    full, plain = rung_texts("port: 1\n@KPRO_OPTIONS@\n", profiles, options, "0.5.23")
    assert full == 'port: 1\ncontext-length: 65536\nmamba-radix-cache-strategy: "extra_buffer"\nspeculative-algorithm: "NEXTN"\n'
    assert plain == 'port: 1\ncontext-length: 65536\nmamba-radix-cache-strategy: "no_buffer"\n'
    assert rung_texts("@KPRO_OPTIONS@", [], {"context_length": 1}, "0.5.23") == ["context-length: 1"]
    with pytest.raises(KproError, match="profile a: it has no options"):
        rung_texts("", [{"name": "a"}], {}, "0.5.23")


def test_rungs_of_a_plan_are_put_into_the_template() -> None:
    rungs = [
        {"name": "long", "options": {"context_length": 65536}, "verdict": "OK"},
        {"name": "short", "options": {"context_length": 1}, "refused": "too short"},
    ]
    found = service_rungs(rungs, "tp-size: 2\n@KPRO_OPTIONS@\n", "0.5.23", 2)
    assert [rung["config_text"] for rung in found] == ["tp-size: 2\ncontext-length: 65536\n", "tp-size: 2\ncontext-length: 1\n"]
    assert [(rung["name"], rung["args"], rung["refused"]) for rung in found] == [
        ("long", {"context_length": 65536, "tp_size": 2}, ""),
        ("short", {"context_length": 1, "tp_size": 2}, "too short"),
    ]


@pytest.mark.parametrize(
    ("rung", "words"),
    [
        ({"name": "x"}, "rung x: it has no config_text"),
        ({"name": "x", "config_text": 7}, "rung x: config_text is no text"),
        ({"name": "x", "config_text": "a: 1\n", "args": [1]}, "args has no keys"),
    ],
)
def test_a_rung_that_is_none_is_named(rung: dict[str, t.Any], words: str) -> None:
    with pytest.raises(KproError, match=words):
        service_rungs([rung], "", "0.5.23", 0)
