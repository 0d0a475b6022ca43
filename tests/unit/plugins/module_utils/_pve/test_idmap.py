# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve.idmap import FileState, can_use, custom_map, granted_ranges, map_gaps, map_problem, root_ids


def test_an_unprivileged_containers_root_is_mapped() -> None:
    assert root_ids(True) == (100000, 100000)
    assert root_ids(False) == (0, 0)


DEFAULT = [("lxc.idmap", "u 0 100000 65536"), ("lxc.idmap", "g 0 100000 65536")]


@pytest.mark.parametrize("unprivileged", [True, False])
def test_a_map_of_its_own_counts_whatever_the_privilege_level(unprivileged: bool) -> None:
    """Proxmox takes custom lines in place of the default map, and does not ask for the level then (PVE::LXC, parse_id_maps)."""
    raw = [("lxc.idmap", "u 0 200000 1000"), ("lxc.idmap", "g 0 300000 1000"), ("lxc.idmap", "u 1000 1000 1")]
    assert root_ids(unprivileged, raw) == (200000, 300000)


@pytest.mark.parametrize(
    ("lines", "ids"), [(["g 0 100000 65536"], (0, 100000)), (["u 0 100000 65536"], (100000, 0)), (["u 1 100001 9", "g 1 100001 9"], (0, 0))]
)
def test_without_a_line_for_id_0_proxmox_takes_0(lines: list[str], ids: tuple[int, int]) -> None:
    assert root_ids(True, [("lxc.idmap", line) for line in lines]) == ids


@pytest.mark.parametrize("line", ["b 0 400000 65536", "u 0 100000", "x 0 1 2", "u 0 100000 65536 9", "u a 100000 1", ""])
def test_a_line_that_proxmox_does_not_read_is_refused(line: str) -> None:
    with pytest.raises(KproError, match="Proxmox reads only lines"):
        root_ids(True, [*DEFAULT, ("lxc.idmap", line)])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["g 0 100000 65536"], "no uid for the container's root"),
        (["u 0 100000 65536"], "no gid for the container's root"),
        (["u 1 100001 65535", "g 0 100000 65536"], "no uid for the container's root"),
        (["u 0 100000 0", "g 0 100000 65536"], "no uid for the container's root"),
        (["u 0 100000 1000", "u 999 200000 2", "g 0 100000 65536"], "overlap"),
        (["u 0 100000 1000", "u 1000 100500 1000", "g 0 100000 65536"], "overlap"),
        (["u 0 4294967000 1000", "g 0 100000 65536"], "ids that do not exist"),
        (["u 0 100000 1000", "u 1000 1000 1", "g 0 100000 65536"], "/etc/subuid of the node lacks the line 'root:1000:1'"),
        (["u 0 100000 65536", "g 0 200000 65536"], "/etc/subgid of the node lacks the line 'root:200000:65536'"),
    ],
)
def test_a_map_with_which_no_start_is_possible_is_told(lines: list[str], words: str) -> None:
    granted = {"u": ((100000, 65536),), "g": ((100000, 65536),)}
    assert words in map_problem(custom_map([("lxc.idmap", line) for line in lines]), granted)


def test_a_map_of_the_manual_is_fine_with_its_lines_in_subuid() -> None:
    lines = ["u 0 100000 1000", "g 0 100000 1000", "u 1000 1000 1", "g 1000 1000 1", "u 1001 101001 64535", "g 1001 101001 64535"]
    granted = granted_ranges("root:100000:65536\nroot:1000:1\nalice:300000:65536\n")
    extents = custom_map([("lxc.idmap", line) for line in lines])
    assert (map_problem(extents, {"u": granted, "g": granted}), map_gaps(extents)) == ("", "")
    assert map_gaps(extents[:2] + extents[4:]) == "uid 1000, gid 1000"


def test_neighbouring_ranges_are_one_and_0_is_always_roots_own() -> None:
    extents = custom_map([("lxc.idmap", "u 0 100000 2000"), ("lxc.idmap", "g 0 0 1")])
    assert map_problem(extents, {"u": ((101000, 1000), (100000, 1000)), "g": ()}) == ""


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
