# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, device nodes and CUDA on a node and in its container, against the GPU stand-in in all its states, module by module.

The node's own states, through the role, are in test_gpu_node.py. The tests run in the order of this file: each leaves the driver installed.
"""

from __future__ import annotations

import os
import re
import typing as t
from collections.abc import Iterator

import gpu_node as states
import pytest
from foretold import difference
from gpu_node import NEWER, URL, VERSION, GpuNode

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all has the whole matrix")

VMID = 201
REMEMBERED = "/var/lib/kpro-llm/peer_copies.json"


@pytest.fixture(scope="module", params=os.environ.get("KPRO_TEST_SUITES", "trixie").split(","))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    started = states.start("gpu", request.param, tmp_path_factory.mktemp("gpu"))
    made = started.driver()
    assert not made["failed"] and made["loaded"] == VERSION, made
    yield started
    states.stop(started)


@pytest.fixture(autouse=True)
def choices(node: GpuNode) -> Iterator[None]:
    """Undo what a test chose."""
    before = node.run(f"cat {states.CONFIG}")
    yield
    node.write(states.CONFIG, before)
    node.run("/usr/lib/kpro-standin/gpu/kernel.py refresh")


def refused(result: dict[str, t.Any], *words: str) -> None:
    assert result["failed"] and not result.get("changed"), result
    for word in words:
        assert word in result["msg"], (word, result["msg"])


# --- a node ----------------------------------------------------------------------------------------------------------------------------


@everything
def test_wrong_hash_installs_nothing(node: GpuNode) -> None:
    before = node.state()
    wrong = node.driver(version=NEWER, replace=True, sha256="0" * 64) | {"changed": False}
    refused(wrong, "its SHA-256 is", "the given hash says 000", f"Driver {VERSION} is there as before")
    assert difference(before, node.state()) == ""


@everything
def test_power_limit_is_set_and_read_back(node: GpuNode) -> None:
    foretold = node.driver(check=True, power_limit_w=250)
    assert {gpu["power_limit_w"] for gpu in node.info()["gpus"]} == {300.0}
    result = node.driver(power_limit_w=250)
    assert result["changed"] and not result["failed"], result
    assert result["plan"] == foretold["plan"] and any(sentence.startswith("Set the power limit of GPU-") for sentence in result["plan"])
    assert {gpu["power_limit_w"] for gpu in node.info()["gpus"]} == {250.0}
    assert node.driver(power_limit_w=250)["changed"] is False
    node.reboot()
    assert node.driver(power_limit_w=250)["changed"] is False
    node.driver()


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
    assert result["plan"] == ["Write /etc/apt/preferences.d/kpro-nvidia", "Install the driver's userland"] and result["version"] == VERSION
    assert userland(container)["changed"] is False
    seen = container.info("container")
    assert (seen["place"], len(seen["gpus"]), seen["problems"]) == ("container", 2, [])
    assert seen["not_visible"]["xids"] == "the kernel log belongs to the node"


@pytest.mark.parametrize(
    ("choice", "p2p", "disable"),
    [
        ("ok", "ok", False),
        pytest.param("none", "none", True, marks=everything),
        ("corrupt", "corrupt", True),
        pytest.param("hang", "hangs", True, marks=everything),
    ],
)
def test_copies_between_gpus(container: GpuNode, choice: str, p2p: str, disable: bool) -> None:
    container.configure(p2p=choice)
    result = cuda(container, timeout_s=10.0 if choice == "hang" else 120.0)
    assert result["usable"], result
    assert (result["p2p"], result["p2p_disable"]) == (p2p, disable)
    assert [device["compute_capability"] for device in result["devices"]] == ["8.6", "8.6"]


@everything
def test_a_verdict_on_copies_outlives_the_memory_that_it_took(container: GpuNode) -> None:
    """An engine that runs without peer access may leave too little for a check, which must not switch it on again."""
    container.configure(p2p="corrupt")
    assert cuda(container, remember=REMEMBERED)["p2p"] == "corrupt"
    container.configure(gpus=container.gpus(used_mib=48000))
    assert cuda(container)["p2p"] == "unknown"
    full = cuda(container, remember=REMEMBERED)
    assert (full["p2p"], full["p2p_disable"]) == ("corrupt", True) and "found earlier" in full["p2p_reason"], full
    container.configure(p2p="ok", gpus=container.gpus(used_mib=0))
    assert cuda(container, remember=REMEMBERED)["p2p_disable"] is False


def test_mode_that_shuts_the_service_user_out(container: GpuNode) -> None:
    container.run(f"pct set {VMID} --dev3 /dev/nvidia-uvm,mode=0660")
    restart(container)
    result = cuda(container)
    assert not result["usable"] and "/dev/nvidia-uvm: opening it fails with EACCES (mode 0660" in result["error"]
    assert container.module("cuda_info", "container")["usable"], "root gets in, which is the trap"
    container.run(f"pct set {VMID} --dev3 /dev/nvidia-uvm,mode=0666")
    restart(container)
    assert cuda(container)["usable"]


@everything
def test_uvm_that_is_not_passed(container: GpuNode) -> None:
    container.run(f"pct set {VMID} --delete dev3")
    restart(container)
    assert "/dev/nvidia-uvm: the device node is missing" in cuda(container)["error"]
    assert container.info("container")["source"] == "nvml", "nvidia-smi works, which is the trap"
    container.run(f"pct set {VMID} --dev3 /dev/nvidia-uvm,mode=0666")


@everything
def test_uvm_with_a_major_of_another_boot(container: GpuNode) -> None:
    container.run("rm /dev/nvidia-uvm; mknod -m 666 /dev/nvidia-uvm c 77 0")
    restart(container)
    assert re.search(r"/dev/nvidia-uvm: the node is 77:0, the kernel's device is \d+:0", cuda(container)["error"])
    container.driver()
    restart(container)
    assert cuda(container)["usable"]


def test_container_follows_the_nodes_driver(container: GpuNode) -> None:
    assert container.driver(version=NEWER, replace=True)["loaded"] == NEWER
    result = cuda(container)
    assert "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)" in result["error"] and f"the kernel runs {NEWER}" in result["error"]
    assert "Driver/library version mismatch" in container.info("container")["driver"]["nvml_error"]
    assert userland(container)["version"] == NEWER
    assert cuda(container)["usable"]


@everything
def test_one_gpu_gone(container: GpuNode) -> None:
    container.configure(gpus=container.gpus(lost=True))
    assert len(container.info()["gpus"]) == 1
    assert [device["bus_id"] for device in cuda(container)["devices"]] == ["0000:61:00.0"]
