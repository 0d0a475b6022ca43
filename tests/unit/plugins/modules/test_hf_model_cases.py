# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded failures of downloads, met by the module itself: what it does, and what it says. Sizes are a thousandth and less."""

from __future__ import annotations

import hashlib
import json
import os
import typing as t
from pathlib import Path

import pytest
from hub_world import MIB, World

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parents[1] / "module_utils/fixtures/model_download_cases.jsonl").read_text(encoding="utf-8").splitlines())
}
SHARD = "model-00005-of-00015.safetensors"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: t.Any, capsys: t.Any) -> t.Iterator[World]:
    made = World(tmp_path, monkeypatch, capsys)
    yield made
    made.close()


def half_way(world: World, data: bytes, part: bytes, journal: dict[str, t.Any] | None) -> None:
    """Leave a partial file as an earlier download would have."""
    parts = world.store / ".incoming" / Path(world.call(check_mode=True)["path"]).name / "parts"
    parts.mkdir(parents=True)
    key = hashlib.sha256(data).hexdigest()
    (parts / key).write_bytes(part)
    if journal:
        (parts / f"{key}.json").write_text(json.dumps(journal))


def said(world: World, case: dict[str, t.Any], *mention: str) -> None:
    """One warning that names what has to be named and claims nothing wrong."""
    assert len(world.warned) == 1, world.warned
    assert all(word in world.warned[0] for word in mention), world.warned
    assert not any(word in world.warned[0].lower() for word in case["expect"]["must_not_claim"])


def test_all_recorded_cases_are_met() -> None:
    assert set(CASES) == {"LLMX-005", "LLMX-006", "LLMX-046", "LLMX-091"}


def test_a_resume_that_cannot_use_what_is_there_says_how_much_and_goes_on(world: World) -> None:
    """LLMX-005, warn_and_continue."""
    data = world.put("model.safetensors", 80 * MIB)
    half_way(world, data, data[: 70 * MIB] + b"x", None)
    assert world.same_as_hub(world.run()["path"])
    said(world, CASES["LLMX-005"], "Resume cannot reuse 73.4 MB of partial data of model.safetensors")


def test_a_partial_file_that_is_too_long_is_removed_alone(world: World) -> None:
    """LLMX-006, fix_and_continue."""
    data = world.put("model-00003.safetensors", 3 * MIB)
    other = world.put("model-00004.safetensors", 3 * MIB)
    half_way(world, data, b"x" * (4 * MIB), {"size": 3 * MIB, "written": [[0, 3 * MIB]]})
    parts = next(world.store.glob(".incoming/*/parts"))
    (parts / hashlib.sha256(other).hexdigest()).write_bytes(other)
    (parts / f"{hashlib.sha256(other).hexdigest()}.json").write_text(json.dumps({"size": 3 * MIB, "written": [[0, 2 * MIB]]}))
    assert world.same_as_hub(world.run()["path"])
    said(world, CASES["LLMX-006"], "model-00003.safetensors (4.19 MB)", "larger than the file (3.15 MB", "416")
    # The other one went on where it was.
    assert world.sent_bytes("model-00004.safetensors") == MIB


def test_a_shard_that_is_a_web_page_is_named_and_fetched_alone(world: World) -> None:
    """LLMX-046, fix_and_continue."""
    shard = CASES["LLMX-046"]["repro"]["shards"][0]
    world.put("config.json", 300)
    world.put(SHARD, 3 * MIB)
    world.put("model-00006-of-00015.safetensors", 3 * MIB)
    first = world.run()
    world.forget_requests()
    page = bytes.fromhex(shard["head_hex"]) + b"E html><html></html>"
    Path(first["path"], shard["name"]).write_bytes(page + b" " * (shard["bytes"] - len(page)))
    assert world.same_as_hub(world.run()["path"])
    assert world.fetched() == [SHARD]
    said(world, CASES["LLMX-046"], SHARD, "web page", "0x3c21444f looks like HTML", "1532 bytes instead of 3145728", "fetched again")


def test_zeros_in_place_of_a_shard_are_named_too(world: World) -> None:
    world.put("config.json", 300)
    world.put(SHARD, 3 * MIB)
    path = Path(world.run()["path"], SHARD)
    path.write_bytes(bytes(3 * MIB))
    os.utime(path)
    assert world.same_as_hub(world.run()["path"])
    said(world, CASES["LLMX-046"], SHARD, "begins with zeros")


def test_transfers_that_are_cut_at_one_length_go_on_in_shorter_ranges(world: World) -> None:
    """LLMX-091, fix_and_continue."""
    world.put("model.safetensors", 12 * MIB)
    world.faults({"kind": "cut", "match": "/cdn/*", "after_bytes": 3 * MIB, "times": 0})
    assert world.same_as_hub(world.run(connections=1)["path"])
    said(world, CASES["LLMX-091"], "cut 3 times at about 3.15 MB each: looks like a limit of a proxy", "ranges of 2.1 MB")
