# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role gpu_node on nodes of Proxmox VE 8 and 9, from every state in which it may find one.

Each case: the plan that ``--check --diff`` prints is what the run does and the second run has nothing to do, or the run stops with cause and
remedy, in check mode too, and has changed nothing. Without KPRO_TEST_EVERYTHING only the most telling ones, on one node. GPUs, kernel side
of the driver, firmware and package repository are stand-ins; systemd, apt with its signatures, device nodes and reboots are real.

The tests run in the order of this file: each of the first part leaves the driver installed, those of the second begin with a new disk.
"""

from __future__ import annotations

import os
import re
import typing as t
from collections.abc import Iterator

import gpu_node as states
import pytest
from foretold import MOST_ROUND_TRIPS
from gpu_node import NEWER, VERSION, GpuNode

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all has the whole matrix")

NEXT_KERNEL = "99.1.1-1-pve"
# Lines of a true failure: Debian's nvidia-open-kernel-dkms 550.163.01-2 on 6.12.117+deb13-amd64.
MAKE_LOG = """\
  CC [M]  /var/lib/dkms/nvidia/550.163.01/build/nvidia/nv-pci.o
/var/lib/dkms/nvidia/550.163.01/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
  237 |     if (pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size) != 0)
make[3]: *** [nvidia/nv-pci.o] Error 1
make[1]: *** [modules] Error 2"""


@pytest.fixture(scope="module", params=os.environ.get("KPRO_TEST_SUITES", "trixie").split(","))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    started = states.start("gpunode", request.param, tmp_path_factory.mktemp("inventory"))
    yield started
    states.stop(started)


@pytest.fixture
def fresh(node: GpuNode) -> GpuNode:
    """The node with a new disk."""
    node.reset()
    return node


@pytest.fixture
def ready(node: GpuNode) -> GpuNode:
    """The node with the driver as wanted, by the role itself."""
    made = node.converge(replace_driver=True)
    assert made.rc == 0, made.output
    return node


def install_deb(node: GpuNode, name: str, maintainer: str) -> None:
    """Have an empty package of this name and maintainer installed."""
    control = f"Package: {name}\nVersion: 550.163.01-2\nArchitecture: all\nMaintainer: {maintainer}\nDescription: empty, for a test of the sandbox\n"
    node.write("/root/deb/DEBIAN/control", control)
    node.run("dpkg-deb -b /root/deb /root/package.deb >/dev/null && dpkg -i /root/package.deb >/dev/null && rm -r /root/deb /root/package.deb")


# --- the most telling ------------------------------------------------------------------------------------------------------------------


def test_clean_node_and_then_the_right_driver_is_there(node: GpuNode) -> None:
    made = node.as_foretold()
    assert made.plan[:2] == [made.plan[0], "Install the NVIDIA driver"] and made.plan[0].startswith("Install the packages ")
    assert "Install the NVIDIA driver: 580.173.02 (open)" in made.diff
    seen = node.info()
    assert (seen["driver"]["loaded"], seen["driver"]["flavour"], seen["source"], len(seen["gpus"])) == (VERSION, "open", "nvml", 2)
    assert seen["findings"] == [] and {entry["mode"] for entry in seen["nodes"]} == {"0666"}
    print(f"\nround trips of the node phase without changes: {node.round_trips[-1]} (promised: at most {MOST_ROUND_TRIPS})")


def test_mixed_installs_are_refused_with_the_way_out(ready: GpuNode) -> None:
    ready.refused(
        f"{VERSION} is installed by the vendor package",
        "mixed installs",
        "set runfile as gpu_node__driver_source; else remove it (nvidia-uninstall --silent)",
        driver_source="cuda_repo",
        cuda_repository_key_fingerprint=ready.fingerprint(),
    )
    install_deb(ready, "libcuda1", "Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>")
    ready.refused("from Debian packages (libcuda1 550.163.01-2)", "mixed installs", "apt-get purge libcuda1")
    ready.run("dpkg --purge libcuda1")
    assert ready.converge().plan == []


# --- a driver is there -----------------------------------------------------------------------------------------------------------------


@everything
def test_reboot_moves_uvms_major_and_leaves_nothing_to_do(ready: GpuNode) -> None:
    before = ready.info()["majors"]["nvidia-uvm"]
    ready.reboot()
    again = ready.converge()
    assert (again.rc, again.plan) == (0, []), again.output
    seen = ready.info()
    assert seen["majors"]["nvidia-uvm"] != before and seen["problems"] == []
    assert ready.run("systemctl --failed --no-legend").strip() == ""


@everything
def test_nodes_of_another_boot_and_files_in_their_place(ready: GpuNode) -> None:
    ready.run("rm /dev/nvidia1; rm /dev/nvidia-uvm; mknod -m 666 /dev/nvidia-uvm c 77 0; rm /dev/nvidia0; touch /dev/nvidia0")
    problems = {(finding["what"], finding["kind"]) for finding in ready.info()["findings"]}
    assert {("/dev/nvidia0", "not_a_device"), ("/dev/nvidia-uvm", "wrong_major"), ("/dev/nvidia1", "node_missing")} <= problems
    assert ready.as_foretold().plan == ["Enable and start kpro-nvidia-devnodes.service"]
    assert ready.info()["problems"] == []


@everything
def test_nodes_missing_at_boot(ready: GpuNode) -> None:
    ready.run("systemctl disable --quiet kpro-nvidia-devnodes.service nvidia-persistenced.service; rm /etc/modules-load.d/kpro-nvidia.conf")
    ready.run("modprobe nvidia-uvm")
    assert [finding["kind"] for finding in ready.info()["findings"]] == ["not_at_boot"]
    ready.reboot()
    assert "/dev/nvidia0" not in ready.run("ls /dev")
    assert ready.as_foretold().plan == [
        "Load the kernel modules",
        "Write /etc/modules-load.d/kpro-nvidia.conf",
        "Enable and start kpro-nvidia-devnodes.service",
        "Enable and start nvidia-persistenced.service",
    ]
    ready.reboot()
    assert ready.converge().plan == [] and ready.info()["problems"] == []


@everything
def test_module_absent_for_the_next_kernel(ready: GpuNode) -> None:
    ready.run(f"touch /boot/vmlinuz-{NEXT_KERNEL}; mkdir -p /lib/modules/{NEXT_KERNEL}/build")
    assert [finding["kind"] for finding in ready.info()["findings"]] == ["next_kernel_without_module"]
    # What apt runs when it installs a kernel.
    said = ready.run(f"/etc/kernel/postinst.d/zz-kpro-nvidia {NEXT_KERNEL} /boot/vmlinuz-{NEXT_KERNEL} 2>&1")
    assert f"kernel {NEXT_KERNEL} has no NVIDIA module: after a reboot into it no container has a GPU" in said
    assert ready.as_foretold().plan == [f"Build the kernel module for {NEXT_KERNEL}"]
    assert ready.run(f"/etc/kernel/postinst.d/zz-kpro-nvidia {NEXT_KERNEL} 2>&1") == ""
    assert ready.info()["findings"] == []

    ready.run(f"rm -r /lib/modules/{NEXT_KERNEL}")
    ready.run(f"dkms remove -m nvidia -v {VERSION} --all; dkms add -m nvidia -v {VERSION}; dkms install -m nvidia -v {VERSION} -k $(uname -r)")
    ready.run(f"rm /boot/vmlinuz-{NEXT_KERNEL}")


@everything
def test_one_gpu_gone(ready: GpuNode) -> None:
    ready.configure(gpus=ready.gpus(lost=True))
    ready.refused("2 GPUs are wanted", "1 on its PCI bus (0000:61:00.0)", gpus=2)
    unit = ["Write /etc/systemd/system/kpro-nvidia-devnodes.service", "Enable and start kpro-nvidia-devnodes.service"]
    assert ready.as_foretold().plan == unit, "its boot unit makes no node for a GPU that is not there"
    ready.configure(gpus=ready.gpus(lost=False))
    assert ready.as_foretold(gpus=2).plan == unit


@everything
def test_older_driver(ready: GpuNode) -> None:
    ready.refused(f"{VERSION} (loaded, on disk, its libraries) is there, {NEWER} is wanted", "gpu_node__replace_driver: true", version=NEWER)

    # A server started by hand, with memory on a GPU.
    pid = int(ready.run("setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"))
    ready.configure(gpus=ready.gpus(processes=[{"pid": pid, "mib": 41200}]))
    ready.refused(f"sleep (pid {pid}", "uid 0, 41200 MiB of GPU memory) of the node", f"Stop them (kill {pid})", version=NEWER, replace_driver=True)
    ready.run(f"kill {pid}")
    ready.configure(gpus=ready.gpus(processes=[]))

    # A container that runs with the GPUs and uses none.
    ready.run(
        "pvesh create /nodes/localhost/lxc --vmid 205 --hostname notes --unprivileged 1 --features nesting=1 --memory 256 --rootfs local-zfs:2"
        " --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --dev0 /dev/nvidia0,mode=0666 --start 1 >/dev/null"
    )
    swapped = ready.as_foretold(version=NEWER, replace_driver=True)
    assert swapped.plan == [
        "Install the NVIDIA driver",
        f"Remove driver {VERSION} from DKMS",
        "Load the kernel modules",
        "Enable and start nvidia-persistenced.service",
    ]
    assert "container 205 (notes) runs with these GPUs and uses none now" in re.sub(r"\s+", " ", swapped.output)
    assert swapped.result["loaded"] == NEWER and f"nvidia/{VERSION}" not in ready.run("dkms status")
    assert "Enabled" in ready.run("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader")
    ready.run("pct stop 205; pct destroy 205")

    # A version of ours that something left in DKMS.
    ready.run(f"mkdir -p /usr/src/nvidia-{VERSION}; echo open > /usr/src/nvidia-{VERSION}/kpro-standin-flavour; dkms add -m nvidia -v {VERSION}")
    assert [finding["kind"] for finding in ready.info()["findings"]] == ["dkms_leftover"]
    assert ready.as_foretold(version=NEWER).plan == [f"Remove driver {VERSION} from DKMS"]
    assert ready.run(f"ls -d /usr/src/nvidia-{VERSION} 2>/dev/null", check=False) == ""


@everything
def test_a_replacement_that_does_not_build_says_that_the_former_driver_is_gone(ready: GpuNode) -> None:
    """The vendor's installer takes it away first; what was there comes back by the command that the message names."""
    ready.configure(dkms_error=MAKE_LOG)
    assert "Install the NVIDIA driver" in ready.foretold(version=NEWER, replace_driver=True).plan
    stopped = ready.converge(version=NEWER, replace_driver=True)
    assert stopped.rc == 2 and "it does not compile" in stopped.message, stopped.output
    assert f"Driver {VERSION}, which was there, is gone: no container of this node has a GPU" in stopped.message
    assert f"gpu_node__driver_version: {VERSION} and gpu_node__replace_driver: true" in stopped.message
    ready.configure(dkms_error="")
    back = ready.as_foretold(version=VERSION, replace_driver=True)
    assert back.result["loaded"] == VERSION and ready.info()["findings"] == []


# --- nodes that are not empty when we come ---------------------------------------------------------------------------------------------


@everything
def test_what_keeps_the_driver_off_is_found_before_anything_changes(fresh: GpuNode) -> None:
    """Each of these is put there by a guide for passing a GPU to a VM."""
    fresh.write("/etc/modprobe.d/blacklist-nvidia.conf", "blacklist nouveau\nblacklist nvidia\n")
    fresh.refused("/etc/modprobe.d/blacklist-nvidia.conf keeps it from loading (blacklist nvidia)", "update-initramfs -u -k all")
    fresh.run("rm /etc/modprobe.d/blacklist-nvidia.conf")

    fresh.write("/etc/modprobe.d/vfio.conf", "options vfio-pci ids=10de:2230,10de:1aef disable_vga=1\n")
    fresh.refused("vfio-pci takes it at the next boot (/etc/modprobe.d/vfio.conf: options vfio-pci ids=10de:2230")
    fresh.reboot()
    assert {gpu["driver"] for gpu in fresh.info()["pci"]} == {"vfio-pci"}
    fresh.write("/etc/pve/qemu-server/100.conf", "name: games\nhostpci0: 0000:41:00,pcie=1\nhostpci1: mapping=card\n")
    fresh.write("/etc/pve/mapping/pci.cfg", f"card\n\tmap id=10de:2230,node={fresh.run('hostname').strip()},path=0000:61:00.0\n")
    fresh.refused("GPU 0000:41:00.0 (hostpci of VM 100 'games'), 0000:61:00.0 (hostpci of VM 100 'games')", "bound to vfio-pci", "vfio.conf")
    fresh.run("rm /etc/modprobe.d/vfio.conf")

    fresh.configure(cmdline="intel_iommu=on vfio-pci.ids=10de:2230")
    fresh.reboot()
    fresh.refused("bound to vfio-pci", "the kernel command line: vfio-pci.ids=10de:2230")
    fresh.configure(cmdline="")
    fresh.reboot()
    fresh.refused("GPU 0000:41:00.0 (hostpci of VM 100 'games')", "taken away as soon as that VM starts", "qm set VMID --delete hostpciN")

    # One of the two is left for us.
    fresh.write("/etc/pve/qemu-server/100.conf", "name: games\nhostpci0: 0000:41:00,pcie=1\n")
    shared = fresh.as_foretold(gpus=1)
    assert shared.result["loaded"] == VERSION


@everything
def test_the_right_driver_that_a_person_has_installed_is_kept(fresh: GpuNode) -> None:
    """Its module is loaded and a program has it open; nvidia-uvm, device nodes and what keeps it all at boot are missing."""
    fresh.run("apt-get update -qq && apt-get install -y -qq proxmox-default-headers >/dev/null")
    fresh.run(f"sh /srv/kpro-standin/files/driver/NVIDIA-Linux-x86_64-{VERSION}.run --silent --dkms && modprobe nvidia")
    pid = int(fresh.run("setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"))
    fresh.configure(gpus=fresh.gpus(processes=[{"pid": pid, "mib": 300}]))
    installed = fresh.run("stat -c %Y /usr/bin/nvidia-smi /var/lib/dkms/nvidia/*/build/make.log")
    kept = fresh.as_foretold()
    assert "Load the kernel modules" in kept.plan and not [step for step in kept.plan if step.startswith(("Install ", "Build "))]
    assert fresh.run("stat -c %Y /usr/bin/nvidia-smi /var/lib/dkms/nvidia/*/build/make.log") == installed
    assert fresh.run(f"cat /proc/{pid}/comm").strip() == "sleep" and fresh.info()["findings"] == []
    fresh.run(f"kill {pid}")


@everything
def test_nouveau_loaded(fresh: GpuNode) -> None:
    fresh.configure(nouveau=True)
    fresh.reboot()
    assert fresh.info()["pci"][0]["driver"] == "nouveau"
    asked = fresh.as_foretold(rc=2)
    assert "Write /etc/modprobe.d/kpro-nvidia.conf" in asked.plan and "Install the NVIDIA driver" not in asked.plan
    assert "needs a reboot: nouveau holds 0000:41:00.0, 0000:61:00.0 until the next boot" in asked.message
    assert "would need a reboot: nouveau holds" in re.sub(r"\s+", " ", fresh.converge("--check").output)
    assert "/dev/nvidia0" not in fresh.run("ls /dev")
    booted = fresh.run("cat /proc/sys/kernel/random/boot_id")
    done = fresh.converge(reboot="allowed")
    assert done.rc == 0 and done.result["loaded"] == VERSION, done.output
    assert fresh.run("cat /proc/sys/kernel/random/boot_id") != booted and fresh.converge().plan == []


@everything
def test_headers_missing(fresh: GpuNode) -> None:
    fresh.run("mv /etc/apt/sources.list.d/kpro-standin.sources /root/ && apt-get update -qq")
    kernel = fresh.run("uname -r").strip()
    fresh.failed_at(
        f"Install the packages proxmox-default-headers, proxmox-headers-{kernel}", f"Unable to locate package proxmox-headers-{kernel}", "repository"
    )

    # The running kernel is not the newest one any more, and the package sources only have the newest one's headers.
    fresh.run(f"touch /boot/vmlinuz-{NEXT_KERNEL}; mkdir -p /lib/modules/{NEXT_KERNEL}/build")
    words = (f"headers of the running kernel {kernel}", f"the newest installed kernel is {NEXT_KERNEL}", f"Reboot the node into {NEXT_KERNEL}")
    fresh.failed_at(f"proxmox-headers-{kernel}", *words, packages=["gcc"])
    fresh.run(f"rm -r /boot/vmlinuz-{NEXT_KERNEL} /lib/modules/{NEXT_KERNEL}; mv /root/kpro-standin.sources /etc/apt/sources.list.d/ && apt-get update -qq")
    fresh.as_foretold()


@everything
def test_build_that_fails(fresh: GpuNode) -> None:
    fresh.run("apt-get update -qq && apt-get install -y -qq proxmox-default-headers >/dev/null")
    fresh.configure(dkms_error=MAKE_LOG)
    kernel = fresh.run("uname -r").strip()
    # Nothing is left that a kernel upgrade would try to build.
    reason = f"kernel module of driver {VERSION} for kernel {kernel}: it does not compile"
    fresh.failed_at("Install the NVIDIA driver", reason, "nv-pci.c:237:9: error: too few arguments", "kernel pin")
    assert "too few arguments" in fresh.run(f"cat /var/lib/kpro-llm/driver/make-{VERSION}.log")
    fresh.configure(dkms_error="")
    fresh.as_foretold()


@everything
def test_secure_boot(fresh: GpuNode) -> None:
    fresh.run("apt-get update -qq && apt-get install -y -qq proxmox-default-headers openssl >/dev/null")
    fresh.configure(secure_boot=True)
    stopped = fresh.refused("Secure Boot", "the firmware does not know DKMS's key /var/lib/dkms/mok.pub", "mokutil --import", "Enroll MOK")
    make = re.search(r"(install -d .*? -out /var/lib/dkms/mok\.pub)", stopped.message)
    assert make, stopped.message
    fresh.run(f"{make[1]} 2>/dev/null && mokutil --import /var/lib/dkms/mok.pub")
    fresh.refused("waits for a person at the console")
    fresh.configure(mok_console=True)
    fresh.reboot()
    assert fresh.info()["host"]["mok_enrolled"] is True
    assert fresh.as_foretold().result["loaded"] == VERSION


@everything
def test_package_repository(fresh: GpuNode) -> None:
    source: dict[str, t.Any] = {"driver_source": "cuda_repo", "cuda_repository_key_fingerprint": fresh.fingerprint()}
    fresh.run("apt-get update -qq && apt-get install -y -qq proxmox-default-headers >/dev/null")
    wrong = {**source, "cuda_repository_key_fingerprint": "A" * 40}
    expected = f"holds {source['cuda_repository_key_fingerprint']}, and {'A' * 40} alone is expected"
    fresh.failed_at("Fetch the key of NVIDIA's package repository", expected, **wrong)
    made = fresh.as_foretold(**source)
    assert made.result["loaded"] == VERSION and "Fetch the key of NVIDIA's package repository" in made.plan
    assert f"Candidate: {VERSION}-1" in fresh.run("apt-cache policy nvidia-driver-cuda"), "the newer one that is offered is not taken"
    unknown = fresh.converge(version="580.200.01", replace_driver=True, **source)
    assert unknown.rc == 2 and f"does not offer it: it has {NEWER}, {VERSION}" in unknown.message, unknown.output
    assert f"Driver {VERSION} is there as before" in unknown.message
    fresh.refused("from NVIDIA's package repository (libcuda1", "set cuda_repo as gpu_node__driver_source", driver_source="runfile")
    upgraded = fresh.as_foretold(version=NEWER, replace_driver=True, **source)
    assert upgraded.result["loaded"] == NEWER and f"nvidia/{VERSION}" not in fresh.run("dkms status")
    fresh.reboot()
    again = fresh.converge(version=NEWER, **source)
    assert (again.rc, again.plan) == (0, []), again.output
