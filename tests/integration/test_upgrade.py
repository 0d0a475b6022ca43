# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deployment of the first release is run again with today's code: with its own shipped inventory, and with every variable of then set.

The engine is the light one, a stand-in; see first_release.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import first_release
import light_deployment as light
from first_release import Run
from two_nodes import LinkedNode

from plain_node import ROOT

pytestmark = [
    pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all"),
    pytest.mark.skipif(not first_release.is_here(), reason=f"this clone has no history back to {first_release.COMMIT}"),
]
NAME = f"upgrade{os.environ.get('PYTEST_XDIST_WORKER', '')}"
ROLES = ("gpu_node", "gpu_container", "sglang_runtime", "hf_model", "sglang_server", "peer_access")
# Variables of then that have a new place: a value as it was passed, and the name that the line about it has to name.
REPLACED: dict[str, tuple[t.Any, str]] = {
    "sglang_server__gpu_memory_mib": ([49140, 49140], "sglang_server__gpus"),
    "sglang_server__attention": ({"options": {}, "fallback": {"attention_backend": "triton"}}, "sglang_server__options"),
    "sglang_server__hardware": ({"toolkit": False}, "sglang_server__toolkit"),
}


@dataclasses.dataclass(frozen=True)
class World:
    """A node that the first release deployed, that release, and a folder for inventories."""

    node: LinkedNode
    first: Path
    folder: Path

    def deploy(self, code: Path, *inventories: Path) -> Run:
        return first_release.deploy(code, self.node, self.folder, *inventories)

    def starts(self) -> int:
        """Return how often the engine was started, by systemd's own entries."""
        message = "39f53479d3a045ac8e11786248231fbf"  # "unit was started", of systemd's catalogue
        return int(self.node.inside(f"journalctl -q -o cat MESSAGE_ID={message} UNIT=kpro-sglang.service | wc -l"))

    def kept(self) -> dict[str, str]:
        """Return what an upgrade reuses: key, environment, snapshot, container and locked commit, each by its content or identity."""
        return {
            "key": self.node.inside("sha256sum /etc/kpro-llm/api_key"),
            "environment": self.node.inside("readlink -f /opt/kpro-llm/sglang/venv; stat -c %i /opt/kpro-llm/sglang/venv/bin/python"),
            "model": self.node.run("stat -Lc '%n %i %s %Y' /srv/models/*/*.safetensors"),
            "container": self.node.run("stat -c %W /rpool/data/subvol-129-disk-0"),
            "models.txt": (self.folder / "models.txt").read_text(encoding="utf-8"),
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    try:
        yield World(first_release.start(NAME, tmp_path), first_release.checked_out(tmp_path), tmp_path)
    finally:
        first_release.stop(NAME)


def upgraded(world: World, *inventories: Path) -> Run:
    """Deploy with today's code: all is reused, the engine restarts once, and the second run changes nothing."""
    before, starts = world.kept(), world.starts()
    run = world.deploy(ROOT, *inventories)
    assert world.kept() == before
    assert world.starts() - starts == 1 and light.ANSWER in run.words
    again = world.deploy(ROOT, *inventories)
    assert set(again.counts) == {"0"}, again.words[-4000:]
    assert world.starts() - starts == 1
    return run


def test_the_shipped_inventory_of_then(world: World) -> None:
    run = upgraded(world, world.first / "inventories/kpro5")
    assert run.changed == ["Run the service and wait until it answers"]


def test_every_variable_of_then(world: World) -> None:
    values: dict[str, t.Any] = {}
    for role in ROLES:
        path = world.first / "roles" / role / "defaults/main.yml"
        values.update(yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {})
    values.update({name: value for name, (value, _new) in REPLACED.items()})
    every = world.folder / "every"
    every.write_text(yaml.safe_dump({"all": {"vars": values}}), encoding="utf-8")
    shipped = world.first / "inventories/kpro5"
    world.deploy(world.first, every, shipped)
    run = upgraded(world, every, shipped)
    for old, (_value, new) in REPLACED.items():
        assert re.search(rf"\[WARNING\]: [^\[]*{old}\b[^\[]*{new}\b", run.words), f"no line names what replaces {old}"
