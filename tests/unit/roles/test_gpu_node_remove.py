# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role takes away is what the module puts there."""

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.module_utils._driver import files
from ansible_collections.kpro.llm.plugins.module_utils._driver.repository import repository_of
from ansible_collections.kpro.llm.plugins.module_utils._removal import driver_converge as cleanup


def test_every_file_of_the_driver_is_taken_away() -> None:
    repository = repository_of("https://example.org/", "", "", "debian13")
    put = {*files.node_files([0], persistence=True, power_limit_w=0, repository=repository, version="580.173.02"), repository.key_path}
    assert set(cleanup.PATHS) == put


def test_every_file_says_whose_it_is_or_has_a_name_of_ours() -> None:
    repository = repository_of("https://example.org/", "", "", "debian13")
    texts = files.node_files([0], persistence=True, power_limit_w=300, repository=repository, version="580.173.02")
    assert {path for path, text in texts.items() if cleanup.MARK not in text} | {repository.key_path} == cleanup.UNMARKED


def test_every_unit_is_stopped_before_the_one_it_needs() -> None:
    assert list(cleanup.UNITS) == list(reversed(files.node_units(persistence=True)))
