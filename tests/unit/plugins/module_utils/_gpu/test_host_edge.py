# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.findings import vm_words
from ansible_collections.kpro.llm.plugins.module_utils._gpu.host_edge import GpuHost
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import Gpu, PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._gpu.secure_boot import SecureBoot
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import DriverVersion
from ansible_collections.kpro.llm.plugins.module_utils._linux.command_edge import Command


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    return tmp_path


def program(root: pathlib.Path, name: str, script: str) -> None:
    path = root / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def host(root: pathlib.Path) -> GpuHost:
    return GpuHost(Command(), str(root))


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"etc/pve/.version": "", "run/systemd/container": "systemd-nspawn"}, "node"),
        ({"usr/bin/pveversion": ""}, "node"),
        ({"run/systemd/container": "lxc\n"}, "container"),
        ({"proc/1/environ": "TERM=linux\0container=lxc\0"}, "container"),
        ({"run/systemd/container": "docker\n"}, "host"),
        ({}, "host"),
    ],
)
def test_place(root: pathlib.Path, files: dict[str, str], place: str) -> None:
    for name, text in files.items():
        write(root / name, text)
    assert host(root).place() == place


def test_driver_on_disk(root: pathlib.Path) -> None:
    program(root, "modinfo", "printf 'filename:       /lib/modules/x/nvidia.ko\\nversion:        580.173.02\\nlicense:        Dual MIT/GPL\\n'")
    assert host(root).on_disk() == DriverVersion("580.173.02", "open")


def test_programs_that_are_not_there_mean_nothing_is_installed(root: pathlib.Path) -> None:
    found = host(root)
    assert (found.on_disk(), found.dkms(), found.modules(), found.pve_version()) == (None, (), frozenset(), None)


def test_failing_program_is_not_read(root: pathlib.Path) -> None:
    program(root, "modinfo", "echo 'version: 580.173.02'; exit 1")
    assert host(root).on_disk() is None


def test_library_version_is_that_of_the_file_behind_the_links(root: pathlib.Path) -> None:
    folder = root / "usr/lib/x86_64-linux-gnu"
    write(folder / "libcuda.so.580.173.02", "")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.173.02")
    assert host(root).library("libcuda.so.1") == "580.173.02"
    assert host(root).library("libnvidia-ml.so.1") is None
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.148.08")
    assert host(root).library("libnvidia-ml.so.1") == "570.148.08", "a dangling link still says what was installed"


def test_pci(root: pathlib.Path) -> None:
    devices = root / "sys/bus/pci/devices"
    for name, vendor, kind in (
        ("0000:41:00.0", "0x10de", "0x030000"),
        ("0000:41:00.1", "0x10de", "0x040300"),
        ("0000:61:00.0", "0x10de", "0x030200"),
        ("0000:01:00.0", "0x1a03", "0x030000"),
    ):
        write(devices / name / "vendor", f"{vendor}\n")
        write(devices / name / "class", f"{kind}\n")
        write(devices / name / "device", "0x2230\n")
    (devices / "0000:41:00.0/driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    write(root / "etc/pve/qemu-server/100.conf", "name: games\nhostpci0: 0000:41:00,pcie=1\n")
    write(root / "etc/pve/qemu-server/101.conf", "hostpci0: mapping=card,pcie=1\n[before]\nname: old\n")
    write(root / "etc/pve/qemu-server/102.conf", "template: 1\nhostpci0: 0000:61:00\n")
    write(root / "etc/pve/mapping/pci.cfg", f"card\n\tmap id=10de:2230,node={os.uname().nodename},path=0000:61:00.0\n\tmap node=far,path=0000:01:00.0\n")
    first, second = host(root).pci()
    assert first == PciGpu("0000:41:00.0", "0x2230", "vfio-pci", (100,), ("games",))
    assert second == PciGpu("0000:61:00.0", "0x2230", None, (101,), ("",))
    assert (vm_words(first), vm_words(second)) == (" (hostpci of VM 100 'games')", " (hostpci of VM 101)")


def test_proc_gpus(root: pathlib.Path) -> None:
    place = root / "proc/driver/nvidia/gpus"
    write(place / "0000:41:00.0/information", "Model: \t\t NVIDIA RTX A6000\nGPU UUID: \t GPU-1\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 3\n")
    write(place / "0000:61:00.0/information", "Model: \t\t NVIDIA RTX A6000\nGPU UUID: \t GPU-????????-????-????-????-????????????\n")
    assert host(root).proc_gpus() == (
        Gpu("GPU-1", "NVIDIA RTX A6000", "0000:41:00.0", 3),
        Gpu(None, "NVIDIA RTX A6000", "0000:61:00.0", None),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (device nodes)")
def test_nodes(root: pathlib.Path) -> None:
    (root / "dev").mkdir()
    os.mknod(root / "dev/nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 0))
    write(root / "dev/nvidia-uvm", "")
    write(root / "dev/nvidia-caps", "")
    uvm, gpu = host(root).nodes()
    assert (gpu.path, gpu.kind, gpu.major, gpu.minor, gpu.mode, gpu.opened) == ("/dev/nvidia0", "character", 195, 0, "0600", "ENXIO")
    assert (uvm.path, uvm.kind, uvm.major, uvm.opened) == ("/dev/nvidia-uvm", "file", None, "not a device")


def test_kernels(root: pathlib.Path) -> None:
    write(root / "boot/vmlinuz-6.14.8-2-pve", "")
    found = host(root)
    assert set(found.kernels()) == {"6.14.8-2-pve", os.uname().release}


@pytest.mark.parametrize(("last", "on"), [(1, True), (0, False)])
def test_secure_boot(root: pathlib.Path, last: int, on: bool) -> None:
    path = root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes([6, 0, 0, 0, last]))
    assert host(root).secure_boot().on is on


def test_what_is_not_visible_is_none(root: pathlib.Path) -> None:
    assert (host(root).secure_boot(), host(root).iommu()) == (SecureBoot(), None)


def test_iommu(root: pathlib.Path) -> None:
    (root / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert host(root).iommu() == "off"
    write(root / "sys/kernel/iommu_groups/0/type", "DMA-FQ\n")
    assert host(root).iommu() == "DMA-FQ"


def test_kernel_messages(root: pathlib.Path) -> None:
    program(root, "journalctl", "exit 1")
    assert host(root).kernel_messages() == ""
    program(root, "journalctl", "echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1")
    assert host(root).kernel_messages() is None


def test_secure_boot_and_the_key_of_dkms(root: pathlib.Path) -> None:
    program(root, "mokutil", '[ "$1" = --sb-state ] && echo "SecureBoot enabled" || { echo "$2 is already enrolled"; exit 1; }')
    assert host(root).secure_boot() == SecureBoot(True), "no key yet"
    write(root / "var/lib/dkms/mok.pub", "x")
    assert host(root).secure_boot() == SecureBoot(True, exists=True, enrolled=True)
    program(root, "mokutil", 'echo "SecureBoot disabled"')
    assert host(root).secure_boot() == SecureBoot(False)


def test_settings_of_modprobe_as_modprobe_reads_them(root: pathlib.Path) -> None:
    write(root / "etc/modprobe.d/vfio.conf", "# nothing\n")
    write(root / "usr/lib/modprobe.d/vfio.conf", "options vfio-pci ids=10de:2230\n")
    write(root / "usr/lib/modprobe.d/nv.conf", "blacklist nvidia\n")
    write(root / "proc/cmdline", "quiet vfio-pci.ids=10de:2231\n")
    found = [(each.kind, each.place) for each in host(root).settings()]
    assert found == [("blocked", "/usr/lib/modprobe.d/nv.conf"), ("vfio", "the kernel command line")], "a file in /etc hides the one of its name"


@pytest.mark.parametrize(
    ("path", "text", "ready"),
    [
        ("etc/modules-load.d/nvidia.conf", "nvidia\nnvidia-uvm\n", True),
        ("etc/systemd/system/multi-user.target.wants/nv.service", "[Service]\nExecStart=/usr/bin/nvidia-modprobe -c 0 -u\n", True),
        ("etc/modules-load.d/nvidia.conf", "nvidia\n# nvidia_uvm\n", False),
    ],
)
def test_what_makes_uvm_ready_at_boot(root: pathlib.Path, path: str, text: str, ready: bool) -> None:
    assert not host(root).loads_at_boot()
    write(root / path, text)
    assert host(root).loads_at_boot() is ready


def test_containers_with_gpus(root: pathlib.Path) -> None:
    write(root / "etc/pve/lxc/129.conf", "hostname: qwen\ndev0: /dev/nvidia0,mode=0666\n")
    write(root / "etc/pve/lxc/105.conf", "hostname: web\n")
    write(root / "etc/pve/lxc/106.conf", "dev0: /dev/nvidia1\n")
    write(root / "proc/net/unix", "0: 2 0 0 1 01 26371 @/var/lib/lxc/129/command\n")
    write(root / "etc/pve/lxc/107.conf", "lxc.include: /etc/lxc/hook\nlxc.environment: NVIDIA_VISIBLE_DEVICES=all\n")
    write(root / "etc/lxc/hook/gpu.conf", "lxc.hook.mount = /usr/share/lxc/hooks/nvidia\n")
    write(root / "etc/pve/lxc/108.conf", "lxc.mount.entry: /usr/bin/nvidia-smi usr/bin/nvidia-smi none bind 0 0\n")
    found = host(root).gpu_containers()
    assert [(each.words, each.running, each.has_gpus) for each in found] == [
        ("container 106", False, True),
        ("container 107", False, True),
        ("container 108", False, False),
        ("container 129 (qwen)", True, True),
    ]
    assert [mount.source for mount in found[2].driver_files] == ["/usr/bin/nvidia-smi"]
