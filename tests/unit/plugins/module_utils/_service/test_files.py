# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API key in the service's files: whole, hidden, and refused if nobody could use it."""

from __future__ import annotations

import typing as t

import pytest
import yaml

from ansible_collections.kpro.llm.plugins.module_utils._core.changes import Change
from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._service.files import TEXTS, api_key, given_texts, plan_diff, wanted_service
from ansible_collections.kpro.llm.plugins.module_utils._service.plan import ServicePresent
from ansible_collections.kpro.llm.plugins.module_utils._service.text import quoted_for_yaml, without_secret_names

CONFIG = 'model-path: "/m"\napi-key: "@KPRO_API_KEY@"\n'
GIVEN = {f"{role}_text": "" for role in TEXTS}
PATHS = dict.fromkeys((*TEXTS, "api_key"), "/x")


def config_with(key: str) -> str:
    return given_texts(GIVEN, CONFIG, key)["config"]


@pytest.mark.parametrize("key", ['a"b', "back\\slash", "\\n", "a: b # c", "{{ x }}", "'", "%TAG", "key with blanks", "null", "\x07\x85\u2028\U0001f600"])
def test_a_key_stands_whole_in_the_configuration(key: str) -> None:
    assert yaml.safe_load(config_with(key))["api-key"] == key
    assert quoted_for_yaml(key).isascii()


@pytest.mark.parametrize("key", ["plain-key", 'a"b\\c-d'])
def test_no_form_of_a_key_is_in_the_diff(key: str) -> None:
    texts = {**dict.fromkeys(TEXTS, ""), "config": config_with(key), "environment": f"X={key}\n"}
    wanted = wanted_service(texts, key, PATHS, "sglang")
    changes = [Change("Write", None, file.text, ("write", file.role)) for file in wanted.files]
    shown = "".join(entry["before"] + entry["after"] for entry in plan_diff(changes, wanted))
    assert "model-path" in shown
    assert key not in shown
    assert quoted_for_yaml(key) not in shown


@pytest.mark.parametrize("key", ["two\nlines", " blank", "blank ", "umlaut-\u00e4", "-dash", "bell\x07"])
def test_a_key_that_nobody_could_use_is_refused(key: str) -> None:
    params: dict[str, t.Any] = {"api_key_source": "given", "api_key": key}
    with pytest.raises(KproError, match="API key"):
        api_key(params, t.cast(ServicePresent, None))


def test_the_key_of_the_administration_is_filled_in_and_hidden() -> None:
    config = f'{CONFIG}admin-api-key: "@KPRO_ADMIN_API_KEY@"\n'
    texts = given_texts({**GIVEN, "admin_api_key": 'ad"min'}, config, "key")
    assert yaml.safe_load(texts["config"])["admin-api-key"] == 'ad"min'
    wanted = wanted_service(texts, "key", PATHS, "sglang")
    changes = [Change("Write", None, file.text, ("write", file.role)) for file in wanted.files]
    shown = "".join(entry["before"] + entry["after"] for entry in plan_diff(changes, wanted))
    assert "ad" not in shown.partition("admin-api-")[2] and 'ad"min' not in shown


def test_a_secret_of_the_environment_is_no_input_of_the_plan() -> None:
    secrets = {"HF_TOKEN": "hf_x", "MY_PASSWORD": "x", "OPENAI_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "HTTP_AUTH": "a:b"}
    plain = {"SGLANG_MAMBA_CONV_DTYPE": "float32", "SGLANG_CLIP_MAX_NEW_TOKENS": "4096", "CUTE_DSL_TOKEN_SWITCH": "true"}
    assert without_secret_names({**secrets, **plain}) == plain
