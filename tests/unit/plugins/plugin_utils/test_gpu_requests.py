# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import collections.abc
import typing as t

import pytest
from ansible.errors import AnsibleUndefinedVariable

from ansible_collections.kpro.llm.plugins.plugin_utils._gpu_requests import needed_on, requests_on


class Vars(collections.abc.Mapping[str, t.Any]):
    """Variables of a host, of which one can't be told when it is asked for."""

    def __init__(self, values: dict[str, t.Any], undefined: str = "") -> None:
        self._values = {**values, **({undefined: None} if undefined else {})}
        self._undefined = undefined

    def __getitem__(self, name: str) -> t.Any:
        if name == self._undefined:
            raise AnsibleUndefinedVariable(f"'{name}' is undefined")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> t.Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def container(vmid: t.Any, node: str = "kpro5", **more: t.Any) -> dict[str, t.Any]:
    return {"gpu_container__vmid": vmid, "pct_node": node, **{f"gpu_container__{name}": value for name, value in more.items()}}


HOSTVARS: dict[str, t.Mapping[str, t.Any]] = {
    "kpro5": {"ansible_host": "10.0.0.5"},
    "kpro5-again": {"ansible_host": "10.0.0.5"},
    "kpro6": {},
    "one": container("129", gpus="1"),
    "far": container(140, "kpro6", gpus=1),
    "alias": container(130, "kpro5-again", gpus=["GPU-a", 1], share_gpus="yes"),
    "silent": container(131),
    "going": container(132, gpus=2, state="absent"),
    "unknown": Vars(container(133), "gpu_container__gpus"),
    "nameless": Vars({"pct_node": "kpro5"}, "gpu_container__vmid"),
    "nowhere": {"gpu_container__vmid": 134, "gpu_container__gpus": 1},
}


def test_what_the_containers_of_a_node_ask_for() -> None:
    rows = requests_on([host for host in HOSTVARS if not host.startswith("kpro")], HOSTVARS, "kpro5", ["one", "alias"])
    assert [(row["vmid"], row["name"], row["gpus"], row["share_gpus"], row["in_run"]) for row in rows] == [
        (129, "one", "1", False, True),
        (130, "alias", ["GPU-a", 1], True, True),
        (131, "silent", "all", False, False),
        (132, "going", "none", False, False),
    ]
    assert [row["name"] for row in requests_on(HOSTVARS, HOSTVARS, "kpro6")] == ["far"]


@pytest.mark.parametrize(
    ("wishes", "needed"),
    [
        ([], "all"),
        ([(1, False)], 1),
        ([(1, False), ("1", False)], 2),
        ([(1, False), ("all", False)], "all"),
        ([(["GPU-a"], False), ("GPU-b GPU-a", False)], ["GPU-a", "GPU-b"]),
        ([(["GPU-a"], False), (1, False)], 2),
        ([(2, True), (1, True)], 2),
        ([(2, True), (1, False)], 2),
        ([("none", False), (0, False)], 0),
        ([(["GPU-a"], False), (None, False)], ["GPU-a"]),
        ([(-3, False), (1, False)], 1),
    ],
)
def test_what_they_need_together(wishes: list[tuple[t.Any, bool]], needed: t.Any) -> None:
    assert needed_on([{"gpus": gpus, "share_gpus": share} for gpus, share in wishes]) == needed


def test_nodes_behind_one_address_are_told_apart_by_their_ports() -> None:
    hosts: dict[str, t.Mapping[str, t.Any]] = {
        "kpro5": {"ansible_host": "jump", "ansible_port": 2205},
        "kpro6": {"ansible_host": "jump", "ansible_port": 2206},
        "again": {"ansible_host": "jump", "ansible_port": "2205"},
        "one": container(129, "kpro5", gpus=1),
        "two": container(130, "kpro6", gpus=1),
        "three": container(131, "again", gpus=1),
    }
    assert [row["name"] for row in requests_on(["one", "two", "three"], hosts, "kpro5")] == ["one", "three"]
