# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve.raw_declared import RawEdit, add_lines, edit_for, read_line

MEMLOCK = ("lxc.prlimit.memlock", "unlimited")


@pytest.mark.parametrize("text", ["lxc.prlimit.memlock: unlimited", "lxc.prlimit.memlock = unlimited", "  lxc.prlimit.memlock:unlimited  "])
def test_a_line_is_read_in_every_spelling_that_proxmox_reads(text: str) -> None:
    assert read_line(text) == MEMLOCK


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memlock", "not of the form"),
        ("lxc.prlimit.memlock:", "not of the form"),
        ("lxc.cap.drop: a\nlxc.cap.drop: b", "not of the form"),
        ("lxc.cgroup.devices.allow: c 10:200 rwm", "lxc.cgroup2"),
        ("lxc.rootfs.path: /srv/other", "drops it at the next change"),
        ("lxc.uts.name: x", "use hostname"),
        ("lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file", "use gpus"),
        ("lxc.cgroup2.devices.allow: c 195:* rwm", "use gpus"),
        ("lxc.mount.entry: /usr/bin/nvidia-smi usr/bin/nvidia-smi none bind,create=file", "installed in the container"),
        ("lxc.environment: NVIDIA_VISIBLE_DEVICES=all", "use gpus"),
        ("lxc.hook.pre-mount: /usr/share/lxc/hooks/nvidia", "use gpus"),
    ],
)
def test_a_line_that_may_not_be_declared_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(KproError) as error:
        read_line(text)
    assert words in error.value.sentence and text.split("\n")[0] in error.value.sentence


def test_of_a_declared_key_only_the_declared_lines_stay() -> None:
    stored = (("lxc.prlimit.memlock", "65536"), ("lxc.cap.drop", "mac_admin"), ("lxc.prlimit.nofile", "1024"))
    assert edit_for(stored, (MEMLOCK,)) == RawEdit((stored[0],), (MEMLOCK,))


def test_spacing_is_no_difference_and_nothing_declared_leaves_all() -> None:
    stored = (("lxc.mount.entry", "/dev/net/tun   dev/net/tun none bind"),)
    assert edit_for(stored, (("lxc.mount.entry", "/dev/net/tun dev/net/tun none bind"),)) == RawEdit()
    assert edit_for(stored, ()) == edit_for(stored, None) == RawEdit()


def test_lines_come_before_snapshots_and_all_else_stays_byte_for_byte() -> None:
    text = "#note\narch: amd64\nlxc.cap.drop: mac_admin\n\n[snap1]\narch: amd64\n"
    assert add_lines(text, [MEMLOCK]) == "#note\narch: amd64\nlxc.cap.drop: mac_admin\nlxc.prlimit.memlock: unlimited\n\n[snap1]\narch: amd64\n"
    assert add_lines("arch: amd64", [MEMLOCK]) == "arch: amd64\nlxc.prlimit.memlock: unlimited\n"
    assert add_lines(text, []) == text
