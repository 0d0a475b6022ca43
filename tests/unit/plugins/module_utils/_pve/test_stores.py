# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve import stores
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import step

ROWS = step("info-storage", 4)["response"]["body"]["data"]
STORED = step("info-storage", 12)["response"]["body"]["data"]
GIB = 1024**3


def test_a_recorded_storage_is_found() -> None:
    assert stores.check_storage("local", "rootdir", ROWS)["type"] == "dir"


@pytest.mark.parametrize(
    ("rows", "name", "reason"),
    [
        (ROWS, "local-zfs", "no such storage"),
        ([{**ROWS[0], "active": 0}], "local", "disabled or not reachable"),
        ([{**ROWS[0], "enabled": 0}], "local", "disabled or not reachable"),
        ([{**ROWS[0], "content": "iso,vztmpl"}], "local", "not for content 'rootdir'"),
    ],
)
def test_a_storage_that_will_not_do_is_named(rows: stores.Rows, name: str, reason: str) -> None:
    with pytest.raises(KproError, match=reason) as caught:
        stores.check_storage(name, "rootdir", rows)
    assert name in caught.value.sentence and "Storages of this node for rootdir" in caught.value.sentence


def test_no_space_is_an_error_with_the_numbers() -> None:
    with pytest.raises(KproError, match=r"0\.5 GiB free, 1\.2 GiB needed"):
        stores.check_space({**ROWS[0], "avail": GIB // 2}, 64, 65570127)
    with pytest.raises(KproError, match=r"40\.0 GiB free, 64\.0 GiB needed"):
        stores.check_space({"storage": "vg", "type": "lvm", "avail": 40 * GIB}, 64, 0)


def test_a_thin_storage_may_be_smaller_than_what_may_be_written_but_says_so() -> None:
    assert "40.0 GiB free, less than the 64 GiB" in stores.check_space({"storage": "z", "type": "zfspool", "avail": 40 * GIB}, 64, 0)
    assert stores.check_space({"storage": "z", "type": "zfspool", "avail": 80 * GIB}, 64, 0) == ""


def test_an_unknown_template_names_its_neighbours() -> None:
    offered = [{"template": "debian-12-standard_12.12-1_amd64.tar.zst"}, {"template": "alpine-3.22-default_amd64.tar.xz"}]
    with pytest.raises(KproError) as caught:
        stores.check_offer("local:vztmpl/debian-12-standard_12.99-1_amd64.tar.zst", STORED, offered)
    assert "12.7-1" in caught.value.remedy and "12.12-1" in caught.value.remedy and "alpine" not in caught.value.remedy


def test_without_an_index_the_stored_neighbours_are_named() -> None:
    with pytest.raises(KproError) as caught:
        stores.check_offer("local:vztmpl/debian-12-standart_12.12-1_amd64.tar.zst", STORED, ())
    assert "pveam update" in caught.value.remedy and "12.7-1" in caught.value.remedy


def test_file_name_and_volume_id_are_the_same_template() -> None:
    assert stores.template_volume("x.tar.zst", "local") == "local:vztmpl/x.tar.zst" == stores.template_volume("local:vztmpl/x.tar.zst", "other")
    assert stores.template_file("local:vztmpl/x.tar.zst") == "x.tar.zst"
