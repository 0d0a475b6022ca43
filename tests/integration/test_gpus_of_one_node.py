# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two containers of one inventory, or of two, on one node with two GPUs: each gets its own, and a conflict has both names."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import typing as t
from collections.abc import Iterator
from pathlib import Path

import container_node as states
import pytest
from container_node import TEMPLATE, World
from foretold import environment

from plain_node import ROOT

pytestmark = pytest.mark.sandbox
VMIDS = {"first": 211, "second": 212}
CLEAN = "for id in 211 212; do pct stop $id 2>/dev/null; pct destroy $id --purge 2>/dev/null; done; rm -rf /etc/pve/qemu-server/150.conf /etc/pve/mapping; true"


@dataclasses.dataclass(frozen=True)
class Shared:
    """The node, and a folder for inventories."""

    world: World
    folder: Path

    def inventory(self, name: str, **gpus: t.Any) -> Path:
        """Write an inventory with these containers and what each asks for."""
        base: t.Any = json.loads(self.world.inventory.read_text(encoding="utf-8"))["all"]["vars"]
        hosts = {
            host: {
                "pct_vmid": VMIDS[host],
                "gpu_container__hostname": host,
                "gpu_container__gpus": wanted,
                "gpu_container__network": {"bridge": "vmbr0", "ip": f"10.77.0.{VMIDS[host]}/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
            }
            for host, wanted in gpus.items()
        }
        common = {
            "pct_node": "node",
            "ansible_connection": "kpro.llm.pct",
            "gpu_container__vmid": "{{ pct_vmid }}",
            "gpu_container__template": TEMPLATE,
            "gpu_container__storage": "local-zfs",
            "gpu_container__rootfs_gib": 2,
            "gpu_container__cores": 1,
            "gpu_container__memory_mib": 512,
            "gpu_container__onboot": False,
            "gpu_container__restart": True,
            "hf_model__repository": "kpro/none",
            "sglang_server__plan": "off",
        }
        node = {"gpu_node__result": {"gpus": self.world.gpus}, "gpu_node__driver_source": "none"}
        whole = {"llm_node": {"hosts": {"node": node}}, "llm_container": {"hosts": hosts, "vars": common}, "all": {"vars": base}}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(whole), encoding="utf-8")
        return path

    def begin(self, inventory: Path, playbook: str, *arguments: str) -> subprocess.Popen[str]:
        argv = [self.world.tools / "ansible-playbook", playbook, "-i", inventory, *arguments]
        return subprocess.Popen(argv, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def keep(self, inventory: Path, *arguments: str, rc: int = 0) -> str:
        return ended(self.begin(inventory, str(ROOT / "tests/integration/container_states/keep_containers.yml"), *arguments), rc)

    def preflight(self, inventory: Path, *arguments: str) -> str:
        return ended(self.begin(inventory, "kpro.llm.deploy_qwen", "--tags", "preflight", *arguments), 2)

    def cards(self) -> dict[str, str]:
        """Return the GPU's device node of each container, as it is inside."""
        found = {}
        for host, vmid in VMIDS.items():
            nodes = re.findall(r"^dev\d+: (/dev/nvidia\d+)", self.world.run(f"cat /etc/pve/lxc/{vmid}.conf 2>/dev/null || true"), re.MULTILINE)
            found[host] = ",".join(nodes)
            inside = self.world.run(f"lxc-attach -n {vmid} --clear-env -- sh -c 'ls /dev/nvidia[0-9]' 2>/dev/null || true").split()
            assert not nodes or inside == nodes
        return found


def ended(process: subprocess.Popen[str], rc: int) -> str:
    output = process.communicate(timeout=300)[0]
    assert process.returncode == rc, output[-6000:]
    return output


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    world = states.start("trixie", folder)
    try:
        yield Shared(world, folder)
    finally:
        states.stop(world)


@pytest.fixture(autouse=True)
def empty(shared: Shared) -> None:
    shared.world.run(CLEAN)


def test_each_of_two_that_ask_for_one_gets_its_own(shared: Shared) -> None:
    inventory = shared.inventory("both", first=1, second=1)
    shared.keep(inventory)
    assert shared.cards() == {"first": "/dev/nvidia0", "second": "/dev/nvidia1"}
    assert len(re.findall(r"changed=0 .*failed=0", shared.keep(inventory))) == 2


def test_one_that_is_left_out_of_the_run_keeps_its_claim(shared: Shared) -> None:
    inventory = shared.inventory("both", first=1, second=1)
    shared.keep(inventory, "--limit", "second")
    assert shared.cards() == {"first": "", "second": "/dev/nvidia1"}
    shared.keep(inventory, "--limit", "first")
    assert shared.cards() == {"first": "/dev/nvidia0", "second": "/dev/nvidia1"}
    # An exchange needs both in the run; one alone is told so.
    swapped = shared.inventory("swapped", first=[1], second=[0])
    assert "container 212 (second) still has it" in shared.keep(swapped, "--limit", "first", rc=2)
    shared.keep(swapped)
    assert shared.cards() == {"first": "/dev/nvidia1", "second": "/dev/nvidia0"}


def test_two_controllers_at_once_that_know_nothing_of_each_other(shared: Shared) -> None:
    playbook = str(ROOT / "tests/integration/container_states/keep_containers.yml")
    runs = [shared.begin(shared.inventory(host, **{host: 1}), playbook) for host in VMIDS]
    for run in runs:
        ended(run, 0)
    assert sorted(shared.cards().values()) == ["/dev/nvidia0", "/dev/nvidia1"]


def test_the_preflight_refuses_what_can_not_be_given_with_both_names(shared: Shared) -> None:
    found = " ".join(shared.preflight(shared.inventory("more", first=2, second=1)).split())
    assert re.search(r"1 GPU for container 212: .*2 of 2 are given to other guests: .*to container 211 \(first\)", found), found
    found = " ".join(shared.preflight(shared.inventory("same", first=[0], second=[0])).split())
    assert "given to container 212 (second), which asks for it too" in found and "given to container 211 (first), which asks for it too" in found, found


def test_the_preflight_refuses_the_card_of_a_vm_that_is_off(shared: Shared) -> None:
    bus = shared.world.gpus[0]["bus_id"]
    shared.world.run(
        "mkdir -p /etc/pve/mapping; printf 'a6000\\n\\tmap id=10de:2230,node=%s,path=" + bus[-12:] + "\\n' $(hostname -s) > /etc/pve/mapping/pci.cfg;"
        " printf 'name: win\\nhostpci0: mapping=a6000,pcie=1\\n' > /etc/pve/qemu-server/150.conf"
    )
    found = " ".join(shared.preflight(shared.inventory("vm", first=[0], second=1)).split())
    assert "already given to VM 150 (win) by hostpci0" in found, found
    shared.keep(shared.inventory("vm", second=1))
    assert shared.cards() == {"first": "", "second": "/dev/nvidia1"}


def test_a_start_that_misses_a_driver_file_of_the_node_names_it(shared: Shared) -> None:
    """T2-01 after a driver upgrade: the versioned source is gone, and LXC says so in one line among many."""
    inventory = shared.inventory("upgraded", first=1)
    shared.keep(inventory)
    gone = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.126"
    line = f"lxc.mount.entry: {gone} usr/lib/x86_64-linux-gnu/libcuda.so.1 none bind,ro,create=file 0 0"
    shared.world.run(f"pct stop 211; echo '{line}' >> /etc/pve/lxc/211.conf")
    options = {"vmid": 211, "state": "started"}
    argv = [shared.world.tools / "ansible", "node", "-i", inventory, "-m", "kpro.llm.lxc_container", "-a", json.dumps(options)]
    done = subprocess.run(argv, cwd=shared.folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode and gone in done.stdout, done.stdout
    # The role takes the line out, as it does with device rules.
    shared.keep(inventory)
    assert gone not in shared.world.run("cat /etc/pve/lxc/211.conf") and shared.cards()["first"] == "/dev/nvidia0"
