# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._pve.idmap import FileState, can_use, root_ids


def test_an_unprivileged_containers_root_is_mapped() -> None:
    assert root_ids(True) == (100000, 100000)
    assert root_ids(False) == (0, 0)


def test_a_map_of_its_own_counts() -> None:
    raw = [("lxc.idmap", "u 0 200000 1000"), ("lxc.idmap", "g 0 300000 1000"), ("lxc.idmap", "u 1000 1000 1")]
    assert root_ids(True, raw) == (200000, 300000)
    assert root_ids(True, [("lxc.idmap", "b 0 400000 65536")]) == (400000, 400000)


@pytest.mark.parametrize(
    ("mode", "owner", "group", "reads", "writes"),
    [
        (0o755, 0, 0, True, False),
        (0o700, 0, 0, False, False),
        (0o755, 100000, 100000, True, True),
        (0o770, 0, 100000, True, True),
        (0o577, 100000, 0, True, False),
        (0o777, 0, 0, True, True),
    ],
)
def test_only_the_permission_bits_count(mode: int, owner: int, group: int, reads: bool, writes: bool) -> None:
    state = FileState("/srv/models", "folder", mode, owner, group)
    assert can_use(state, 100000, 100000, write=False) is reads
    assert can_use(state, 100000, 100000, write=True) is writes


def test_root_of_the_node_may_everything() -> None:
    assert can_use(FileState("/srv", "folder", 0o700, 1000, 1000), 0, 0, write=True)
