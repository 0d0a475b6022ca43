# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The place of an attack: a store that a container's root owns, and beside it what must stay as it is."""

from __future__ import annotations

import os
import sys
import typing as t
from pathlib import Path

import pytest

if t.TYPE_CHECKING:
    from attack_place import Place

sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if "place" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="needs root, as the node's side has it"))


@pytest.fixture
def place(tmp_path: Path) -> t.Iterator[Place]:
    # Only when a test runs, the collection can be imported.
    from attack_place import Place

    made = Place(tmp_path)
    yield made
    made.end()
    # Whatever the test looked at: nothing outside has changed.
    assert made.outside_now() == made.outside_before
