# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role declares is what it defaults to, uses and ships."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ansible_collections.kpro.llm.plugins.filter.sglang_environment import sglang_environment
from ansible_collections.kpro.llm.plugins.filter.sglang_lane import sglang_lane
from ansible_collections.kpro.llm.plugins.module_utils._engine.gpu_settings import FLASH_ATTN_VERSION
from ansible_collections.kpro.llm.plugins.module_utils._engine.lanes import LANES
from ansible_collections.kpro.llm.plugins.module_utils._environment.ensure import ARGUMENTS
from ansible_collections.kpro.llm.plugins.module_utils._environment.source_package import SourcePackage

ROLE = Path(__file__).resolve().parents[3] / "roles/sglang_runtime"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
OPTIONS = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]


def test_defaults_and_contract_name_the_same_variables_with_the_same_values() -> None:
    # A default with a template can't be repeated in the contract.
    written = {name: None if "{{" in str(value) else value for name, value in DEFAULTS.items()}
    assert {name: option.get("default") for name, option in OPTIONS.items()} == written


def test_every_variable_is_used_and_every_used_one_declared() -> None:
    text = "".join(path.read_text() for folder in ("tasks", "vars") for path in (ROLE / folder).iterdir())
    used = set(re.findall(r"(?<!\w)sglang_runtime__\w+", text)) - {"sglang_runtime__result"}
    assert used == set(DEFAULTS)


def test_the_lanes_to_choose_from_are_those_that_exist() -> None:
    assert OPTIONS["sglang_runtime__lane"]["choices"] == ["auto", *LANES]


def test_every_lane_ships_a_lock_file_for_each_of_its_pythons() -> None:
    files = {path.name for path in (ROLE / "files/locks").iterdir()}
    expected = {lane.lock_file(python) for lane in LANES.values() for python in lane.pythons}
    assert files == expected | {f"uv-{DEFAULTS['sglang_runtime__uv_version']}.txt", f"flash-attn-{FLASH_ATTN_VERSION}.txt"}


def test_a_lane_fits_debian_12_and_13() -> None:
    lane = sglang_lane("auto", "580.173.02")
    assert (lane["name"], lane["engine_version"], lane["pythons"]) == ("cu13", "0.5.23", ["3.12", "3.11"])
    bookworm = {"python": "3.11", "glibc": "2.36", "architecture": "x86_64", "toolkits": ["13.0"]}
    trixie = {"python": "3.13", "glibc": "2.41", "architecture": "x86_64", "toolkits": ["13.0"]}
    assert sglang_environment("cu13", bookworm, driver_version="580.173.02", toolkit=True) == {
        "python": "3.11",
        "lock_file": "cu13-cp311.txt",
        "source_package": {},
    }
    assert sglang_environment("cu13", trixie, driver_version="580.173.02", toolkit=True) == {
        "python": "3.12",
        "lock_file": "cu13-cp312.txt",
        "source_package": {},
    }


def test_the_classic_flash_attn_is_what_the_module_asks_for_and_its_lock_file_pins_it() -> None:
    system = {"python": "3.11", "glibc": "2.36", "architecture": "x86_64"}
    fit = sglang_environment("cu13", system, driver_version="580.173.02", flash_attn="build", wheelhouse="/srv/wheels", capabilities=["8.6"])
    values = dict(fit["source_package"])
    lock = (ROLE / "files/locks" / values.pop("lock_file")).read_text()
    assert values.keys() | {"lock"} == ARGUMENTS["source_package"]["options"].keys()
    package = SourcePackage(lock=lock, **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    assert package.wheel_folder == f"/srv/wheels/flash-attn-{FLASH_ATTN_VERSION}+torch2.14.1-CUDA13.0-Python3.11-sm80"
    own, tools = package.split_lock()
    assert own.startswith(f"flash-attn=={FLASH_ATTN_VERSION} ") and all(tool in tools for tool in ("ninja==", "setuptools==", "wheel=="))
