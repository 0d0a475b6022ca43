# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.blockers import Setting, blocker_findings, settings
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import PciGpu

A6000 = PciGpu("0000:41:00.0", "0x2230", "nvidia")
OTHER = PciGpu("0000:61:00.0", "0x2531", "vfio-pci")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("blacklist nvidia", "blocked"),
        ("  blacklist   nvidia-uvm  # of a guide", "blocked"),
        ("install nvidia /bin/false", "blocked"),
        ("install nvidia_uvm /usr/bin/true", "blocked"),
        ("options vfio-pci ids=10de:2230,10de:1aef disable_vga=1", "vfio"),
        ("blacklist nouveau", None),
        ("blacklist nvidiafb", None),
        ("# blacklist nvidia", None),
        ("install nvidia /sbin/modprobe --ignore-install nvidia", None),
        ("options vfio-pci disable_vga=1", None),
        ("blacklist", None),
    ],
)
def test_lines_of_modprobe_d(line: str, kind: str | None) -> None:
    found = settings({"/etc/modprobe.d/vfio.conf": f"{line}\n"}, "")
    assert [each.kind for each in found] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("quiet intel_iommu=on vfio-pci.ids=10de:2230,10de:1aef", "vfio"),
        ("modprobe.blacklist=nouveau,nvidia", "blocked"),
        ("module_blacklist=nvidia_uvm", "blocked"),
        ("root=ZFS=rpool/ROOT/pve-1 modprobe.blacklist=nouveau", None),
    ],
)
def test_words_of_the_kernel_command_line(words: str, kind: str | None) -> None:
    assert [each.kind for each in settings({}, f"{words}\n")] == ([kind] if kind else [])


def test_ids_take_the_gpus_of_that_kind_at_the_next_boot() -> None:
    found = blocker_findings(settings({"/etc/modprobe.d/vfio.conf": "options vfio-pci ids=10DE:2230:103c:*,10de:2531\n"}, ""), (A6000, OTHER))
    assert [(each.kind, each.what) for each in found] == [("vfio_ids", "GPU 0000:41:00.0")], "the other one is there already"
    assert "/etc/modprobe.d/vfio.conf: options vfio-pci ids=10DE:2230:103c:*,10de:2531" in found[0].reason and "update-initramfs" in found[0].remedy


def test_a_blacklist_is_named_with_its_file_and_the_way_to_remove_it() -> None:
    found = blocker_findings((Setting("blocked", "the kernel command line", "module_blacklist=nvidia"),), (A6000,))
    assert "the kernel command line keeps it from loading (module_blacklist=nvidia)" in found[0].reason
    assert "proxmox-boot-tool refresh" in found[0].remedy and "update-grub" in found[0].remedy
