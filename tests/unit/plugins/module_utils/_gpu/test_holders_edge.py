# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.holders import Holder, container_of_cgroup, unit_of_cgroup
from ansible_collections.kpro.llm.plugins.module_utils._gpu.holders_edge import ProcessFiles


@pytest.mark.parametrize(
    ("cgroup", "container", "unit"),
    [
        ("0::/lxc/129/ns/system.slice/kpro-sglang.service\n", 129, "kpro-sglang.service"),
        ("0::/lxc.payload.101/user.slice/user-0.slice/session-1.scope\n", 101, "session-1.scope"),
        ("12:devices:/lxc/7\n0::/system.slice/nvidia-persistenced.service\n", None, "nvidia-persistenced.service"),
        ("0::/lxc.monitor.101\n", None, None),
        ("0::/qemu.slice/100.scope\n", None, "100.scope"),
        ("", None, None),
    ],
)
def test_owner_by_cgroup(cgroup: str, container: int | None, unit: str | None) -> None:
    assert (container_of_cgroup(cgroup), unit_of_cgroup(cgroup)) == (container, unit)


def process(root: pathlib.Path, pid: int, links: list[str], cgroup: str) -> None:
    place = root / str(pid)
    (place / "fd").mkdir(parents=True)
    for number, target in enumerate(links):
        (place / "fd" / str(number)).symlink_to(target)
    (place / "cgroup").write_text(cgroup)
    (place / "comm").write_text("python\n")
    (place / "status").write_text("Name:\tpython\nUid:\t100999\t100999\t100999\t100999\n")


def test_holders_are_those_with_a_gpu_open(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 20, ["/dev/null", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"], "0::/lxc/129/ns/system.slice/kpro-sglang.service\n")
    process(tmp_path, 3, ["/dev/nvidiactl"], "0::/system.slice/x.service\n")
    (tmp_path / "self").mkdir()
    assert ProcessFiles(str(tmp_path)).holders() == (Holder(20, 100999, "python", 129, "kpro-sglang.service", ("/dev/nvidia-uvm", "/dev/nvidia0")),)


def test_a_process_that_is_gone_has_no_name(tmp_path: pathlib.Path) -> None:
    assert ProcessFiles(str(tmp_path)).holder(4711) == Holder(4711, None, "", None, None, ())
