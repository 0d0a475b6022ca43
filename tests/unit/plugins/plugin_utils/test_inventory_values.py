# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError

from ansible_collections.kpro.llm.plugins.plugin_utils import _inventory_values as inventory_values

ROOT = Path(__file__).resolve().parents[4]
KNOWN = inventory_values.specs((*inventory_values.OF_CONTAINER, *inventory_values.OF_NODE))


def problems(**values: t.Any) -> str:
    def value_of(name: str) -> t.Any:
        if isinstance(values[name], Exception):
            raise values[name]
        return values[name]

    return " | ".join(inventory_values.problems(KNOWN, values, value_of))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sglang_server__port": "many"}, "sglang_server__port"),
        ({"sglang_server__port": "30000", "gpu_container__cores": 4, "unknown": object()}, ""),
        ({"gpu_node__driver_source": "somewhere"}, "runfile"),
        ({"gpu_container__mounts": [{"source": "/srv/models"}]}, "target"),
        ({"sglang_server__options": AnsibleError("'nothing' is undefined")}, "sglang_server__options: 'nothing' is undefined"),
        ({"sglang_server__bind_address": AnsibleError("'gpu_container__result' is undefined")}, ""),
    ],
)
def test_a_value_that_a_role_would_refuse_is_told(values: dict[str, t.Any], words: str) -> None:
    found = problems(**values)
    assert words in found and bool(words) == bool(found)


def test_a_secret_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, "sglang_server__api_key", {"type": "int", "no_log": True})
    found = problems(sglang_server__api_key="the secret")
    assert "sglang_server__api_key" in found and "the secret" not in found


def test_what_only_a_person_can_give_is_asked_for() -> None:
    required = {name for name, option in KNOWN.items() if option.get("required")}
    play = (ROOT / "playbooks/deploy_qwen.yml").read_text(encoding="utf-8")
    assert set(inventory_values.NEEDED) == {name for name in required if f"{name}: " not in play}
    assert len(inventory_values.missing({})) == len(inventory_values.NEEDED)


def test_every_default_passes() -> None:
    for path in inventory_values.defaults_files((*inventory_values.OF_CONTAINER, *inventory_values.OF_NODE)):
        values = {name: value for name, value in yaml.safe_load(path.read_text(encoding="utf-8")).items() if "{{" not in str(value)}
        assert problems(**values) == "", path
