# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.processes import Process, process_words
from ansible_collections.kpro.llm.plugins.module_utils._service.ownership import Owner, foreign_holders, in_unit, leftovers

UNIT = "kpro-sglang.service"
GROUP = f"/system.slice/{UNIT}"
ROOT = "/opt/kpro-llm"
OWNER = Owner(UNIT, GROUP, uid=999, roots=(ROOT,))
TORCH = f"{ROOT}/sglang/venv/lib/torch.so"
GPU = ("/dev/nvidia0",)


def chosen(*processes: Process, owner: Owner = OWNER, spared: set[int] | None = None, listeners: set[int] | None = None) -> set[int]:
    return {left.process.pid for left in leftovers(processes, owner, spared or set(), listeners or set())}


def test_what_is_in_the_group_of_a_stopped_unit_is_ours() -> None:
    assert chosen(Process(7, uid=0, cgroup=GROUP), Process(8, uid=0, cgroup=f"{GROUP}/child")) == {7, 8}


def test_what_is_in_the_group_of_a_running_unit_is_the_service() -> None:
    assert chosen(Process(7, cgroup=GROUP), owner=Owner(UNIT, GROUP, uid=999, roots=(ROOT,), unit_runs=True)) == set()


def test_a_stray_is_ours_by_user_environment_and_device_together() -> None:
    stray = {"cgroup": "/user.slice", "uid": 999, "mapped": (TORCH,), "devices": GPU}
    assert chosen(Process(7, **stray)) == {7}  # type: ignore[arg-type]  # fields by name
    for missing in ({"uid": 1000}, {"mapped": ("/usr/lib/torch.so",)}, {"devices": ()}, {"uid": 0}):
        assert chosen(Process(7, **{**stray, **missing})) == set()  # type: ignore[arg-type]  # fields by name


def test_a_worker_without_gpu_is_ours_by_the_port() -> None:
    worker = Process(3920, uid=999, mapped=(TORCH,), command="sglang::detokenizer", cgroup="/user.slice")
    assert chosen(worker) == set()
    assert chosen(worker, listeners={3920}) == {3920}


def test_a_name_never_counts() -> None:
    assert chosen(Process(7, uid=1000, command="sglang::scheduler", devices=GPU, cgroup="/lxc/305")) == set()


def test_a_group_that_is_not_the_units_makes_nobody_ours() -> None:
    for group in ("/", "", "/system.slice"):
        assert chosen(Process(7, uid=5, cgroup="/system.slice/ssh.service"), owner=Owner(UNIT, group, uid=999, roots=(ROOT,))) == set()


def test_a_root_is_a_folder_and_not_a_beginning() -> None:
    assert chosen(Process(7, uid=999, mapped=("/opt/kpro-llm-of-another/x.so",), devices=GPU)) == set()


def test_root_is_no_mark_of_ours() -> None:
    assert chosen(Process(7, uid=0, mapped=(TORCH,), devices=GPU), owner=Owner(UNIT, GROUP, uid=0, roots=(ROOT,))) == set()


def test_from_the_node_only_the_unit_of_our_container_is_ours() -> None:
    node = Owner(UNIT, container=129)
    assert in_unit(Process(7, cgroup=f"/lxc/129/ns/system.slice/{UNIT}"), node)
    for group in (f"/lxc/1290/ns/system.slice/{UNIT}", f"/lxc/305/ns/system.slice/{UNIT}", GROUP, "/lxc/129/ns/system.slice/ollama.service"):
        assert not in_unit(Process(7, cgroup=group), node)


def test_zombies_and_ourselves_are_never_chosen() -> None:
    assert chosen(Process(7, state="Z", cgroup=GROUP), Process(8, cgroup=GROUP), Process(1, cgroup=GROUP), spared={8}) == set()


def test_foreign_holders_are_those_with_a_gpu_that_are_not_ours() -> None:
    ours, other, idle = Process(7, cgroup=GROUP, devices=GPU), Process(8, uid=5, devices=GPU, cgroup="/user.slice"), Process(9, uid=5)
    assert [process.pid for process in foreign_holders([ours, other, idle], OWNER, {7})] == [8]


def test_in_random_process_tables_nothing_foreign_is_ever_chosen() -> None:
    """1,000 tables of processes made from parts that differ from ours in at least one mark."""
    dice = random.Random(129)
    groups = ["/", "/user.slice/user-1000.slice", "/system.slice/ollama.service", "/system.slice/kpro-sglang.service.d", f"/lxc/305/ns{GROUP}", "/system.slice"]
    for _table in range(1000):
        foreign = []
        for pid in range(2, 40):
            marks = {"uid": 999, "mapped": (TORCH,), "devices": GPU}
            for name, other in (
                ("uid", dice.choice([0, 1, 33, 998, 1000, 100999])),
                ("mapped", dice.choice([(), ("/usr/lib/x.so",), ("/home/u/opt/kpro-llm/x.so",)])),
                ("devices", ()),
            ):
                if dice.random() < 0.6:
                    marks[name] = other
            if marks == {"uid": 999, "mapped": (TORCH,), "devices": GPU}:
                marks["uid"] = 1000
            command = dice.choice(["python3", "sglang::scheduler", f"{ROOT}/venv/bin/python"])
            foreign.append(Process(pid, command=command, cgroup=dice.choice(groups), **marks))  # type: ignore[arg-type]  # fields by name
        listeners = {dice.randrange(2, 40)}
        expected = {p.pid for p in foreign if p.pid in listeners and p.uid == 999 and p.mapped == (TORCH,)}
        assert chosen(*foreign, listeners=listeners) == expected


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        ("/lxc/202/ns/system.slice/big.service", 202),
        ("/lxc.payload.202/system.slice/big.service", 202),
        ("/machine.slice/x.scope/lxc/7", 7),
        ("/system.slice/ollama.service", 0),
        ("/lxcfs/1", 0),
    ],
)
def test_a_holder_is_named_with_its_container(cgroup: str, container: int) -> None:
    process = Process(9, uid=100998, command="ollama", cgroup=cgroup)
    assert process.container == container
    assert (f"container {container}" in process_words(process)) == bool(container)
