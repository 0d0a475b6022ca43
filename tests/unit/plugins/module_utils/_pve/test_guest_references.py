# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that a guest's configuration names in unusual ways."""

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.mount_table import read_mounts
from ansible_collections.kpro.llm.plugins.module_utils._pve.config import read_config_file
from ansible_collections.kpro.llm.plugins.module_utils._pve.guest_references import references

FSTAB = "lxc.mount.fstab: /etc/x.fstab"


@pytest.mark.parametrize(
    ("line", "more", "paths"),
    [
        ("lxc.mount.entry: /srv/models m none bind 0 0", "", ["/srv/models"]),
        ("lxc.mount.entry: overlay m overlay lowerdir=/srv/models:/b,upperdir=/c,workdir=/d 0 0", "", ["/srv/models", "/b", "/c", "/d"]),
        ("lxc.mount.entry: overlay m overlay ro,lowerdir+=/srv/models 0 0", "", ["/srv/models"]),
        ("lxc.mount.entry: overlay m overlay lowerdir=/a\\:b:/c 0 0", "", ["/a:b", "/c"]),
        ("lxc.mount.entry: tmpfs /run/x tmpfs size=1g 0 0", "", []),
        (FSTAB, "overlay /m overlay lowerdir=/srv/models,upperdir=/c 0 0\n", ["/srv/models", "/c"]),
        (FSTAB, "/srv/models\\040b /m none bind 0 0\n", ["/srv/models b"]),
    ],
)
def test_every_way_to_mount_a_folder_is_a_reference(line: str, more: str, paths: list[str]) -> None:
    found = [each.path for each in references("container", 300, f"{line}\n", {}, {"/etc/x.fstab": more})]
    assert [path for path in found if path != "/etc/x.fstab"] == paths


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_a_line_break_ends_a_line(character: str) -> None:
    assert "tags" not in read_config_file(f"#x{character}tags: kpro-llm\nhostname: a\n").keys
    (row,) = read_mounts(f"36 35 98:0 / /mnt/a{character}b rw - ext4 /dev/x rw\n") or [None]
    assert row is not None and row.device == "98:0"
