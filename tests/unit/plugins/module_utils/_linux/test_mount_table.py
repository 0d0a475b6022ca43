# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A store whose folder is gone, by what the kernel says of it; the lines of mounts were seen in a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._model.store_edge import check_mount

ROOT = "100 90 0:48 /subvol / rw,relatime - overlay overlay rw\n"


@pytest.mark.parametrize("folder", ["", "/below/it"])
def test_a_store_behind_a_mount_whose_folder_is_gone_is_refused_with_the_way_out(tmp_path: Path, folder: str) -> None:
    text = f"{ROOT}200 100 0:50 /srv/models//deleted {tmp_path} rw - ext4 /dev/sda1 rw\n"
    (tmp_path / "mountinfo").write_text(text)
    with pytest.raises(KproError, match="was removed from the node") as caught:
        check_mount(f"{tmp_path}{folder}", str(tmp_path / "mountinfo"))
    assert "gpu_container__restart: true" in caught.value.remedy


@pytest.mark.parametrize("text", ["", "odd\n", ROOT, f"{ROOT}200 100 0:50 /x//deleted /elsewhere rw - ext4 x rw\n"])
def test_a_sound_store_passes(tmp_path: Path, text: str) -> None:
    (tmp_path / "mountinfo").write_text(text)
    check_mount(str(tmp_path / "store"), str(tmp_path / "mountinfo"))
    check_mount(str(tmp_path), str(tmp_path / "not there"))


def test_a_folder_that_was_removed_under_its_mount_is_met_whatever_the_kernel_calls_it(tmp_path: Path) -> None:
    gone = tmp_path / "store"
    gone.mkdir()
    (tmp_path / "mountinfo").write_text(ROOT)
    descriptor = os.open(gone, os.O_RDONLY | os.O_DIRECTORY)
    gone.rmdir()
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            pytest.skip("this kernel shows no removed folder")
        assert os.stat(f"/proc/self/fd/{descriptor}").st_nlink == 0
    finally:
        os.close(descriptor)
