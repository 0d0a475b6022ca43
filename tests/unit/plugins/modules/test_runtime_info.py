# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a whole runtime: this machine's system, and an environment that the module uv_environment has built."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from test_uv_environment import World

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES
from ansible_collections.kpro.llm.plugins.modules import runtime_info

LANE = LANES["cpu"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch)
    if made.python not in LANE.pythons:
        pytest.skip(f"the lane has no lock file for this machine's Python {made.python}")
    made.lock("sglang", LANE.engine_version)
    return made


def look(world: World, **changes: t.Any) -> dict[str, t.Any]:
    params = {name: spec.get("default") for name, spec in runtime_info.ARGUMENTS.items()}
    uv_lock = f"uv==0.13.9 --hash=sha256:{'0' * 64}\n"
    params |= {
        "lane": "cpu",
        "user": "root",
        "base": {"packages": []},
        "locks": {world.python: "".join(world.locked.values())},
        "environment": {"root": str(world.root), "uv_lock": uv_lock, "package": "sglang"},
        # The Python of the tests need not be the one of the distribution.
        "python": world.python,
    }
    return runtime_info.main({**params, **changes}, False)


def test_nothing_differs_and_what_the_steps_would_say_is_said(world: World) -> None:
    built = world.run(package="sglang", package_version=LANE.engine_version)
    found = look(world)
    assert (found["same"], found["differs"], found["changed"]) == (True, "", False)
    assert found["environment"]["venv"] == built["venv"] and found["base"]["system"]["architecture"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "Install uv 0.13.9"),
        ({"base": {"packages": ["no-such-package-of-debian"]}}, "Install no-such-package-of-debian"),
        ({"python": "3.9"}, "no lock file for it"),
        ({"driver_version": "580.173.02"}, "NVIDIA driver"),
        ({"toolkit": True, "lane": "cu12"}, "CUDA 12.8"),
    ],
)
def test_the_first_difference_is_told_and_nothing_is_done(world: World, changes: dict[str, t.Any], says: str) -> None:
    (world.root / "tools/uv-0.13.9/bin/uv").unlink()
    found = look(world, **changes)
    assert not found["same"] and says in found["differs"]
    assert world.environments == [] and world.starts == 0


def test_an_option_of_no_module_is_refused(world: World) -> None:
    with pytest.raises(KproError, match="environment: colour is none of its options"):
        look(world, environment={"colour": "red"})
