# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._model import manifest as manifests
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_protocol import RemoteFile
from ansible_collections.kpro.llm.plugins.module_utils._model.manifest import Manifest, Stat

CONFIG = RemoteFile("config.json", 10, "", "1" * 40)
SHARD = RemoteFile("model-1.safetensors", 1000, "a" * 64, "2" * 40)
DEEP = RemoteFile("original/x.safetensors", 2000, "b" * 64, "3" * 40)


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest("o/m", "c" * 40, (CONFIG, SHARD, DEEP), {"config.json": Stat(10, 123456789012345678)})
    assert manifests.from_text(manifests.to_text(manifest)) == manifest


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 2, "files": {}}', '{"format": 1, "files": []}', '{"format": 1, "files": {"a": {}}}', "\0" * 40]
)
def test_a_damaged_manifest_counts_as_none(text: str) -> None:
    assert manifests.from_text(text) is None


GOOD = json.loads(manifests.to_text(Manifest("o/m", "c" * 40, (CONFIG, SHARD), {"config.json": Stat(10, 5)})))


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "../../../x"},
        {"commit": "c" * 39},
        {"commit": 7},
        {"repository": "../../etc"},
        {"repository": ["o/m"]},
        {"files": {"../../../etc/cron.d/x": GOOD["files"]["config.json"]}},
        {"files": {"/etc/x": GOOD["files"]["config.json"]}},
        {"files": {"a\x1b": GOOD["files"]["config.json"]}},
        {"files": {"a": {**GOOD["files"]["config.json"], "size": -1}}},
        {"files": {"a": {**GOOD["files"]["config.json"], "size": 10**40}}},
        {"files": {"a": {**GOOD["files"]["config.json"], "sha256": "../../x"}}},
        {"files": {"a": {**GOOD["files"]["config.json"], "sha256": None}}},
        {"files": {"a": {**GOOD["files"]["config.json"], "git_sha1": ""}}},
        {"files": {"a": {**GOOD["files"]["config.json"], "mtime_ns": "now"}}},
        {"files": {"a": GOOD["files"]["config.json"], "a/b": GOOD["files"]["config.json"]}},
        {"files": {"a": []}},
    ],
    ids=str,
)
def test_a_manifest_of_a_stranger_is_held_to_the_rules_of_a_hub(change: dict[str, t.Any]) -> None:
    assert manifests.from_text(json.dumps(GOOD)) is not None
    assert manifests.from_text(json.dumps({**GOOD, **change})) is None


@pytest.mark.parametrize("text", ["[" * 200_000, '{"files":' * 60_000, b"\xff\xfe{", '{"format": NaN}'], ids=["deep", "deep too", "bytes", "no number"])
def test_a_manifest_that_would_break_the_reader_counts_as_none(text: str | bytes) -> None:
    assert manifests.from_text(text) is None


@pytest.mark.parametrize(
    ("present", "state"),
    [(None, "missing"), (Stat(999, 5), "size"), (Stat(1000, 5), "ok"), (Stat(1000, 6), "unknown")],
)
def test_a_file_is_ok_only_with_the_size_and_time_of_its_check(present: Stat | None, state: str) -> None:
    found = manifests.states([SHARD], {SHARD.path: present} if present else {}, {SHARD.path: Stat(1000, 5)})
    assert [one.state for one in found] == [state]
    assert manifests.complete(found) == (state == "ok")


def test_small_files_come_first_and_patterns_choose() -> None:
    everything = [SHARD, DEEP, CONFIG]
    assert manifests.select(everything, [], []) == [CONFIG, SHARD, DEEP]
    assert manifests.select(everything, ["*.safetensors"], ["original/*"]) == [SHARD]
    assert manifests.select(everything, ["*.gguf"], []) == []


def test_a_web_page_in_the_place_of_a_shard_is_recognised() -> None:
    lines = (Path(__file__).parents[1] / "fixtures" / "model_download_cases.jsonl").read_text().splitlines()
    case = next(one for one in map(json.loads, lines) if one["id"] == "LLMX-046")
    shard = case["repro"]["shards"][0]
    words = manifests.damage_words(shard["name"], shard["bytes"], case["repro"]["manifest_bytes"], bytes.fromhex(shard["head_hex"]))
    assert "0x3c21444f looks like HTML" in words
    assert all(word in words for word in case["expect"]["must_mention"])
    assert not any(word in words for word in case["expect"]["must_not_claim"])


def test_other_damage_is_told_apart() -> None:
    assert "begins with zeros" in manifests.damage_words("x", 10, 10, bytes(64))
    assert "9 bytes instead of 10" in manifests.damage_words("x", 9, 10, b"abc")
    assert "not that of the commit" in manifests.damage_words("x", 10, 10, b"abc")
