# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.plugin_utils._migration import Seen, choose_way

ABSENT = {"vmid": 129, "exists": False, "here": False, "kind": "", "node": "", "running": False, "ours": False, "onboot": False, "address": ""}


def on(node: str, asked: str, **changes: t.Any) -> dict[str, t.Any]:
    """Return what a node tells of a container that is on ``node``."""
    here = node == asked
    return {
        **ABSENT,
        "exists": True,
        "here": here,
        "kind": "lxc",
        "node": node,
        "running": True,
        "ours": here,
        "onboot": here,
        "queried_node": asked,
        **changes,
    }


def none_on(asked: str) -> dict[str, t.Any]:
    return {**ABSENT, "queried_node": asked}


def seen(there: dict[str, t.Any], here: dict[str, t.Any], **changes: t.Any) -> Seen:
    return Seen("kpro6", "kpro5", there, here, **changes)


@pytest.mark.parametrize(
    "there, here, way, peer",
    [
        (on("kpro6", "kpro6"), on("kpro6", "kpro5"), "cluster", True),
        (on("kpro6", "kpro6"), none_on("kpro5"), "separate", True),
        (on("kpro6", "kpro6"), on("kpro5", "kpro5"), "separate", True),
        (on("kpro6", "kpro6", running=False), on("kpro5", "kpro5"), "separate", True),
        (on("kpro6", "kpro6", running=False, onboot=False), on("kpro5", "kpro5"), "done", True),
        (none_on("kpro6"), on("kpro5", "kpro5"), "done", True),
        (on("kpro5", "kpro6"), on("kpro5", "kpro5"), "done", True),
        ({}, on("kpro5", "kpro5"), "done", False),
        (none_on("kpro6"), none_on("kpro5"), "fresh", True),
        ({}, none_on("kpro5"), "gone", False),
    ],
)
def test_the_way_follows_from_where_the_container_is(there: dict[str, t.Any], here: dict[str, t.Any], way: str, peer: bool) -> None:
    chosen = choose_way(seen(there, here))
    assert (chosen.name, chosen.peer) == (way, peer)


@pytest.mark.parametrize(
    "there, here, changes, words",
    [
        ({}, on("kpro6", "kpro5"), {}, ["kpro6 does not answer", "pvecm delnode kpro6"]),
        (none_on("kpro6"), on("kpro7", "kpro5"), {}, ["it is on kpro7", "migrate_from=kpro7"]),
        (none_on("kpro6"), on("kpro5", "kpro5", kind="qemu"), {}, ["virtual machine", "pct_vmid"]),
        (on("kpro6", "kpro6", ours=False), none_on("kpro5"), {}, ["not ours", "gpu_container__adopt"]),
        (on("kpro6", "kpro6", address="10.0.0.9"), none_on("kpro5"), {"declared_address": "10.0.0.9"}, ["10.0.0.9", "side by side", "dhcp"]),
    ],
)
def test_where_there_is_no_way_the_reason_and_the_remedy_are_told(
    there: dict[str, t.Any], here: dict[str, t.Any], changes: dict[str, t.Any], words: list[str]
) -> None:
    with pytest.raises(KproError) as refused:
        choose_way(seen(there, here, **changes))
    assert all(word in refused.value.sentence for word in words)


def test_a_hand_made_container_moves_with_consent() -> None:
    assert choose_way(seen(on("kpro6", "kpro6", ours=False), none_on("kpro5"), adopt=True)).name == "separate"
