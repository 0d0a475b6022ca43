# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, device nodes and CUDA on a node and in its container, against the GPU stand-in in all its states.

The tests of a node run in the order of this file: each leaves the driver installed, the last ones take a new node.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanes
from conftest import ROOT, SANDBOX, inventory_of, port_of

pytestmark = pytest.mark.sandbox

VERSION, NEWER = "580.173.02", "580.178.04"
URL = "http://10.77.0.1:8090/files/driver/NVIDIA-Linux-x86_64-{version}.run"
VMID = 201
NEXT_KERNEL = "99.1.1-1-pve"
CONFIG = "/etc/kpro-standin/gpu.json"


@dataclasses.dataclass(frozen=True)
class GpuNode:
    """A sandbox node and the way to run modules on it."""

    name: str
    inventory: Path
    ansible: Path

    def run(self, command: str) -> str:
        return subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=True).stdout

    def module(self, name: str, host: str = "node", check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        """Run a module and return its result; ``failed`` is set in it if it failed."""
        argv = [self.ansible, host, "-i", self.inventory, "-m", f"kpro.llm.{name}", *(["--check"] if check else [])]
        argv += ["-a", json.dumps(arguments)] if arguments else []
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_HOST_KEY_CHECKING": "1"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd="/")
        found = re.search(rf"^{host} \| (\w+)!? => (\{{.*)", done.stdout, re.MULTILINE | re.DOTALL)
        assert found, done.stdout + done.stderr
        return {**json.loads(found[2]), "failed": found[1] == "FAILED"}

    def driver(self, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        return self.module("nvidia_driver", check=check, **{"scope": "node", "version": VERSION, "url": URL, **arguments})

    def info(self, host: str = "node") -> dict[str, t.Any]:
        found = self.module("gpu_info", host)
        assert not found["failed"], found
        return found

    def configure(self, **changes: t.Any) -> None:
        """Change the choices of the stand-in; what is loaded shows them at once."""
        choices = {**json.loads(self.run(f"cat {CONFIG}")), **changes}
        subprocess.run([SANDBOX, "ssh", self.name, "--", f"cat > {CONFIG} && /usr/lib/kpro-standin/gpu/kernel.py refresh"],
                       input=json.dumps(choices), text=True, check=True)  # fmt: skip

    def gpus(self, **changes: t.Any) -> list[dict[str, t.Any]]:
        """Return the stand-in's GPUs, the first one with changes."""
        first, *rest = json.loads(self.run(f"cat {CONFIG}"))["gpus"]
        return [{**first, **changes}, *rest]

    def reboot(self) -> None:
        before = self.run("cat /proc/sys/kernel/random/boot_id").strip()
        subprocess.run([SANDBOX, "ssh", self.name, "--", "systemctl reboot"], capture_output=True, check=False)
        for _unused in range(300):
            time.sleep(0.2)
            asked = [SANDBOX, "ssh", self.name, "--", "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.stdout.strip() and done.stdout.split()[0] != before:
                return
        raise AssertionError("the node did not come back")


def start(suite: str, folder: Path) -> GpuNode:
    name = f"gpu-{suite}"
    subprocess.run([SANDBOX, "up", name, "--suite", suite], check=True)
    status = json.loads(subprocess.run([SANDBOX, "status", name, "--json"], capture_output=True, text=True, check=True).stdout)
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps(inventory_of(port_of(status))), encoding="utf-8")
    return GpuNode(name, inventory, lanes.environment(lanes.available()[-1], "dev") / "bin" / "ansible")


@pytest.fixture(scope="module", params=os.environ.get("KPRO_TEST_SUITES", "trixie").split(","))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    started = start(request.param, tmp_path_factory.mktemp("gpu"))
    yield started
    subprocess.run([SANDBOX, "down", started.name], check=True)


@pytest.fixture(autouse=True)
def choices(node: GpuNode) -> Iterator[None]:
    """Undo what a test chose."""
    before = json.loads(node.run(f"cat {CONFIG}"))
    yield
    node.run(f"cat > {CONFIG} <<'END'\n{json.dumps(before)}\nEND\n/usr/lib/kpro-standin/gpu/kernel.py refresh")


def refused(result: dict[str, t.Any], *words: str) -> None:
    assert result["failed"] and not result.get("changed"), result
    for word in words:
        assert word in result["msg"], (word, result["msg"])


# --- a node ----------------------------------------------------------------------------------------------------------------------------


def test_headers_that_apt_does_not_have(node: GpuNode) -> None:
    node.run("mv /etc/apt/sources.list.d/kpro-standin.sources /root/ && apt-get update -qq")
    result = node.driver()
    node.run("mv /root/kpro-standin.sources /etc/apt/sources.list.d/")
    assert result["failed"]
    assert "Unable to locate package proxmox-headers-" in result["msg"] and "repository" in result["msg"]


def test_build_that_fails_names_the_compiler_error(node: GpuNode) -> None:
    node.configure(dkms_error="/var/lib/dkms/nvidia/x/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'")
    result = node.driver()
    assert result["failed"]
    assert "does not compile" in result["msg"] and "too few arguments to function 'pci_resize_resource'" in result["msg"]
    assert node.info()["driver"]["loaded"] is None


def test_fresh_node_gets_what_check_mode_said_and_then_nothing(node: GpuNode) -> None:
    planned = node.driver(check=True)
    assert planned["changed"] and node.info()["driver"]["loaded"] is None
    done = node.driver()
    assert not done["failed"], done
    assert done["plan"] == planned["plan"]
    assert re.fullmatch(r"[0-9a-f]{64}", done["sha256"])
    again = node.driver()
    assert (again["changed"], again["plan"], again["sha256"]) == (False, [], done["sha256"])
    seen = node.info()
    assert [gpu["name"] for gpu in seen["gpus"]] == ["NVIDIA RTX A6000"] * 2
    assert {gpu["persistence"] for gpu in seen["gpus"]} == {True}
    assert (seen["place"], seen["source"], seen["problems"], seen["driver"]["flavour"]) == ("node", "nvml", [], "open")
    assert [link["level"] for link in seen["topology"]] == ["NODE"]


def test_wrong_hash_installs_nothing(node: GpuNode) -> None:
    refused(node.driver(version=NEWER, replace=True, sha256="0" * 64) | {"changed": False}, "its SHA-256 is", "the given hash says 000")
    assert node.info()["driver"]["nvml_library"] == VERSION


def test_reboot_moves_uvms_major_and_leaves_nothing_to_do(node: GpuNode) -> None:
    before = node.info()["majors"]["nvidia-uvm"]
    node.reboot()
    result = node.driver()
    assert (result["failed"], result["changed"], result["plan"]) == (False, False, [])
    seen = node.info()
    assert seen["majors"]["nvidia-uvm"] != before and seen["problems"] == []
    assert node.run("systemctl --failed --no-legend").strip() == ""


def test_missing_and_stale_nodes_are_made_again(node: GpuNode) -> None:
    node.run("rm /dev/nvidia1; rm /dev/nvidia-uvm; mknod -m 666 /dev/nvidia-uvm c 77 0; rm /dev/nvidia0; touch /dev/nvidia0")
    problems = {(finding["what"], finding["kind"]) for finding in node.info()["findings"]}
    assert {("/dev/nvidia0", "not_a_device"), ("/dev/nvidia-uvm", "wrong_major")} <= problems
    assert node.driver()["plan"] == ["Enable and start kpro-nvidia-devnodes.service"]
    assert node.info()["problems"] == []
    assert node.driver()["changed"] is False


def test_module_for_the_next_kernel(node: GpuNode) -> None:
    node.run(f"touch /boot/vmlinuz-{NEXT_KERNEL}; mkdir -p /lib/modules/{NEXT_KERNEL}/build")
    assert node.driver()["plan"] == [f"Build the kernel module for {NEXT_KERNEL}"]
    assert f"nvidia/{VERSION}, {NEXT_KERNEL}, x86_64: installed" in node.run("dkms status")
    assert node.driver()["changed"] is False
    node.run(f"rm -r /boot/vmlinuz-{NEXT_KERNEL} /lib/modules/{NEXT_KERNEL}")


def test_power_limit_is_set_and_read_back(node: GpuNode) -> None:
    result = node.driver(power_limit_w=250)
    assert result["changed"] and not result["failed"], result
    assert {gpu["power_limit_w"] for gpu in node.info()["gpus"]} == {250.0}
    assert node.driver(power_limit_w=250)["changed"] is False
    node.reboot()
    assert node.driver(power_limit_w=250)["changed"] is False
    node.driver()


def test_driver_packages_of_debian_are_refused(node: GpuNode) -> None:
    make = (
        "import sys; sys.path.insert(0, '/root'); from repository import *; "
        "open('/root/libcuda1.deb', 'wb').write(deb(Package('libcuda1', '', 'a driver package')))"
    )
    script = (ROOT / "tests/sandbox/apt/repository.py").read_text(encoding="utf-8")
    subprocess.run([SANDBOX, "ssh", node.name, "--", "cat > /root/repository.py"], input=script, text=True, check=True)
    node.run(f'python3 -c "{make}" && dpkg -i /root/libcuda1.deb')
    refused(node.driver(), "libcuda1 1.0+standin", "mixed installs", "apt-get purge libcuda1")
    node.run("dpkg --purge libcuda1")


def test_another_version_needs_consent_and_idle_gpus(node: GpuNode) -> None:
    refused(node.driver(version=NEWER), f"{VERSION} (loaded, on disk, its libraries)", "gpu_node__replace_driver")
    pid = int(node.run("systemd-run --quiet --unit=kpro-test-user sleep 600; systemctl show -P MainPID kpro-test-user"))
    node.configure(gpus=node.gpus(processes=[{"pid": pid, "mib": 41200}]))
    refused(node.driver(version=NEWER, replace=True), f"pid {pid}, kpro-test-user.service", "of the node", "Stop them")
    seen = node.info()
    assert [(each["pid"], each["used_mib"], each["unit"]) for each in seen["processes"]] == [(pid, 41200, "kpro-test-user.service")]
    node.run("systemctl stop kpro-test-user")


def test_another_version_is_swapped_live(node: GpuNode) -> None:
    planned = node.driver(version=NEWER, replace=True, check=True)
    done = node.driver(version=NEWER, replace=True)
    assert not done["failed"] and done["plan"] == planned["plan"] and done["loaded"] == NEWER
    assert node.driver(version=NEWER)["changed"] is False
    assert "Enabled" in node.run("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader")


# --- its container ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def container(node: GpuNode) -> GpuNode:
    """A container with both GPUs and a user of a service in it."""
    devices = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    passed = " ".join(f"--dev{number} /dev/{name},mode=0666" for number, name in enumerate(devices))
    node.run(
        f"pvesh create /nodes/localhost/lxc --vmid {VMID} --hostname gpu-ct --unprivileged 1 --features nesting=1 --memory 512"
        " --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --rootfs local-zfs:2"
        f" --net0 name=eth0,bridge=vmbr0,ip=10.77.0.201/24,gw=10.77.0.1 --nameserver 10.0.2.3 {passed} --start 1"
    )
    running(node)
    enter = f"lxc-attach -n {VMID} --clear-env -- sh -c"
    node.run(f"{enter} 'apt-get update -qq && apt-get install -y -qq python3 >/dev/null; useradd --system svc'")
    return node


def running(node: GpuNode) -> None:
    node.run(f"for i in $(seq 100); do lxc-attach -n {VMID} -- systemctl is-system-running >/dev/null 2>&1 && break; sleep 0.2; done")


def restart(node: GpuNode) -> None:
    node.run(f"pct stop {VMID}; pct start {VMID}")
    running(node)


def userland(node: GpuNode) -> dict[str, t.Any]:
    return node.module("nvidia_driver", "container", scope="userland", url=URL)


def cuda(node: GpuNode, **arguments: t.Any) -> dict[str, t.Any]:
    return node.module("cuda_info", "container", user="svc", **arguments)


def test_no_userland_yet(container: GpuNode) -> None:
    result = cuda(container)
    assert not result["usable"] and "libcuda.so.1 can't be loaded" in result["error"]


def test_userland_is_the_nodes_version(container: GpuNode) -> None:
    result = userland(container)
    assert result["plan"] == ["Write /etc/apt/preferences.d/kpro-nvidia", "Install the driver's userland"] and result["version"] == NEWER
    assert userland(container)["changed"] is False
    seen = container.info("container")
    assert (seen["place"], len(seen["gpus"]), seen["problems"]) == ("container", 2, [])
    assert seen["not_visible"]["xids"] == "the kernel log belongs to the node"


@pytest.mark.parametrize(("choice", "p2p", "disable"), [("ok", "ok", False), ("none", "none", True), ("corrupt", "corrupt", True), ("hang", "hangs", True)])
def test_copies_between_gpus(container: GpuNode, choice: str, p2p: str, disable: bool) -> None:
    container.configure(p2p=choice)
    result = cuda(container, timeout_s=10.0 if choice == "hang" else 120.0)
    assert result["usable"], result
    assert (result["p2p"], result["p2p_disable"]) == (p2p, disable)
    assert [device["compute_capability"] for device in result["devices"]] == ["8.6", "8.6"]


def test_mode_that_shuts_the_service_user_out(container: GpuNode) -> None:
    container.run(f"pct set {VMID} --dev3 /dev/nvidia-uvm,mode=0660")
    restart(container)
    result = cuda(container)
    assert not result["usable"] and "/dev/nvidia-uvm: opening it fails with EACCES (mode 0660" in result["error"]
    assert container.module("cuda_info", "container")["usable"], "root gets in, which is the trap"
    container.run(f"pct set {VMID} --dev3 /dev/nvidia-uvm,mode=0666")
    restart(container)
    assert cuda(container)["usable"]


def test_uvm_that_is_not_passed(container: GpuNode) -> None:
    container.run(f"pct set {VMID} --delete dev3")
    restart(container)
    assert "/dev/nvidia-uvm: the device node is missing" in cuda(container)["error"]
    assert container.info("container")["source"] == "nvml", "nvidia-smi works, which is the trap"
    container.run(f"pct set {VMID} --dev3 /dev/nvidia-uvm,mode=0666")


def test_uvm_with_a_major_of_another_boot(container: GpuNode) -> None:
    container.run("rm /dev/nvidia-uvm; mknod -m 666 /dev/nvidia-uvm c 77 0")
    restart(container)
    assert re.search(r"/dev/nvidia-uvm: the node is 77:0, the kernel's device is \d+:0", cuda(container)["error"])
    container.driver(version=NEWER)
    restart(container)
    assert cuda(container)["usable"]


def test_container_follows_the_nodes_driver(container: GpuNode) -> None:
    assert container.driver(replace=True)["loaded"] == VERSION
    result = cuda(container)
    assert "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)" in result["error"] and f"the kernel runs {VERSION}" in result["error"]
    assert "Driver/library version mismatch" in container.info("container")["driver"]["nvml_error"]
    assert userland(container)["version"] == VERSION
    assert cuda(container)["usable"]


def test_one_gpu_gone(container: GpuNode) -> None:
    container.configure(gpus=container.gpus(lost=True))
    assert len(container.info()["gpus"]) == 1
    assert [device["bus_id"] for device in cuda(container)["devices"]] == ["0000:61:00.0"]


# --- nodes that are not empty when we come ---------------------------------------------------------------------------------------------


def test_node_with_nouveau_loaded(node: GpuNode) -> None:
    subprocess.run([SANDBOX, "reset", node.name], check=True)
    node.configure(nouveau=True)
    node.reboot()
    assert node.info()["pci"][0]["driver"] == "nouveau"
    result = node.driver()
    assert result["changed"] and result["reboot_needed"] and "nouveau holds 0000:41:00.0, 0000:61:00.0" in result["reboot_reason"]
    assert "/dev/nvidia0" not in node.run("ls /dev")
    again = node.driver()
    assert (again["changed"], again["reboot_needed"]) == (False, True)
    node.reboot()
    done = node.driver()
    assert not done["failed"] and done["loaded"] == VERSION and not done["reboot_needed"]


def test_gpus_that_a_vm_has(node: GpuNode) -> None:
    node.configure(gpus=[{**gpu, "binding": "vfio-pci"} for gpu in node.gpus()], nouveau=False)
    node.reboot()
    refused(node.driver(), "GPU 0000:41:00.0, 0000:61:00.0: it is bound to vfio-pci", "hostpci")


def test_module_that_secure_boot_rejects(node: GpuNode) -> None:
    node.configure(secure_boot=True)
    node.reboot()
    result = node.driver()
    assert result["failed"] and "Secure Boot rejects the module" in result["msg"] and "mokutil --import" in result["msg"]
