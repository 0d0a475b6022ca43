# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._pve import remnant
from ansible_collections.kpro.llm.plugins.module_utils._pve.call_record import Record, work_of
from ansible_collections.kpro.llm.plugins.module_utils._pve.config import Config

BEGAN = 1_800_000_000.5
UPID = "UPID:kpro5:00003329:00084897:6B0C5695:vzcreate:129:root@pam:"
RECORD = Record("create-129", "create", 129, "kpro5", "boot", BEGAN, UPID, details={"volumes": ["local-zfs:subvol-129-disk-0"]})
OURS = {"type": "vzcreate", "upid": UPID, "starttime": int(BEGAN), "user": "root@pam", "status": "unexpected status"}
EARLIER = {"type": "vzdestroy", "upid": "UPID:older", "starttime": int(BEGAN) - 3, "user": "erika@pve"}
THEIRS = {"type": "vzcreate", "upid": "UPID:theirs", "starttime": int(BEGAN) + 60, "user": "root@pam"}


def doubt(record: Record | None = RECORD, rows: t.Sequence[t.Mapping[str, t.Any]] = (OURS, EARLIER), written_s: float = BEGAN + 1, lock: str = "create") -> str:
    return remnant.doubt_of(record, 129, "kpro5", lock, rows, written_s)


def test_what_our_record_shows_is_ours_also_before_its_task_had_a_name_or_if_no_list_has_it() -> None:
    unnamed = dataclasses.replace(RECORD, upid="")
    assert doubt() == doubt(rows=()) == doubt(unnamed) == doubt(unnamed, rows=()) == ""


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ({"record": None}, "no record"),
        ({"record": dataclasses.replace(RECORD, ended=True)}, "no record"),
        ({"record": dataclasses.replace(RECORD, node="kpro6")}, "no record"),
        ({"record": dataclasses.replace(RECORD, vmid=130)}, "no record"),
        ({"lock": "destroyed"}, "no record of a removal"),
        ({"written_s": BEGAN - 60}, "older than"),
        ({"rows": (THEIRS, OURS)}, "UPID:theirs"),
        ({"record": dataclasses.replace(RECORD, upid=""), "rows": (THEIRS, OURS)}, "after the creation"),
        ({"record": dataclasses.replace(RECORD, upid=""), "rows": ({**THEIRS, "user": "erika@pve"},)}, "UPID:theirs"),
        ({"rows": ({**THEIRS, "type": "vzrestore"},)}, "UPID:theirs"),
    ],
)
def test_what_anything_speaks_against_is_not(case: dict[str, t.Any], word: str) -> None:
    assert word in doubt(**case)


def test_only_what_the_work_made_or_was_to_remove_is_its() -> None:
    now = ["local-zfs:subvol-129-disk-0", "local-zfs:subvol-129-disk-1"]
    assert remnant.volumes_left(RECORD, now) == ("local-zfs:subvol-129-disk-1",)
    removal = dataclasses.replace(RECORD, kind="destroy")
    assert remnant.volumes_left(removal, now) == ("local-zfs:subvol-129-disk-0",)


def test_half_a_container_has_its_lock_and_nothing_else() -> None:
    assert remnant.is_half(Config({"lock": "create"}), "create") and remnant.is_half(Config({}), "destroyed")
    assert not remnant.is_half(Config({"lock": "create", "rootfs": "x"}), "create")
    assert not remnant.is_half(Config({"lock": "create"}, (("lxc.idmap", "u 0 1 1"),)), "create")
    assert not remnant.is_half(Config({"lock": "backup"}), "backup")


@pytest.mark.parametrize(
    ("call", "name", "vmid"),
    [
        (("create", "/nodes/kpro5/lxc", {"vmid": "129", "hostname": "x"}), "create-129", 129),
        (("delete", "/nodes/kpro5/lxc/129", {"purge": 1}), "destroy-129", 129),
        (("create", "/nodes/kpro5/lxc/129/status/start", {}), "start-129", 129),
        (("set", "/nodes/kpro5/lxc/129/resize", {"disk": "rootfs", "size": "8G"}), "resize-129-rootfs", 129),
        (("set", "/nodes/kpro5/lxc/129/config", {"memory": 1}), "set-129", 129),
        (("create", "/nodes/kpro5/aplinfo", {"storage": "local", "template": "../../etc/x y"}), "download-local-.._.._etc_x_y", 0),
        (("delete", "/nodes/kpro5/storage/local/content/local:129/vm-129-disk-0.raw", {}), "free-local_129-vm-129-disk-0.raw", 0),
    ],
)
def test_the_same_work_has_always_the_same_name(call: tuple[str, str, dict[str, t.Any]], name: str, vmid: int) -> None:
    work = work_of(*call)
    assert (work.name, work.vmid, work.node) == (name, vmid, "kpro5") and "/" not in work.name
