# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role takes away is what the module puts there."""

from __future__ import annotations

from pathlib import Path

import yaml

from ansible_collections.kpro.llm.plugins.module_utils._driver import files
from ansible_collections.kpro.llm.plugins.module_utils._driver.repository import repository_of

VARIABLES = yaml.safe_load((Path(__file__).parents[3] / "roles" / "gpu_node" / "vars" / "main.yml").read_text(encoding="utf-8"))


def test_every_file_of_the_driver_is_taken_away() -> None:
    repository = repository_of("https://example.org/", "", "", "debian13")
    put = {*files.node_files([0], persistence=True, power_limit_w=0, repository=repository, version="580.173.02"), repository.key_path}
    assert set(VARIABLES["__gpu_node_files"]) == put


def test_every_unit_is_stopped_before_the_one_it_needs() -> None:
    assert VARIABLES["__gpu_node_units"] == list(reversed(files.node_units(persistence=True)))
