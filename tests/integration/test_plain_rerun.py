# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever happened to node, GPUs or container: the plain deployment repairs exactly what differs, and the next one changes nothing.

The whole playbook on lane cu13 with the light engine, a stand-in, so that all that follows from GPUs is derived: division, plan, options, kernels.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import light_deployment as light
import prepared_nodes
import two_nodes
from two_nodes import NEW_KIND, OLD, OLD_KIND, VMID, LinkedNode, Pair, eventually, gpu

from plain_node import SANDBOX

pytestmark = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
VERSION, NEWER = "580.173.02", "580.178.04"
CONSENT = ("-e", "gpu_node__replace_driver=true")
UPGRADED = (*CONSENT, "-e", f"gpu_node__driver_version={NEWER}")
A, B = (str(row["uuid"]) for row in OLD_KIND.gpus)
FILES = "/srv/kpro-standin/files"
STARTED_S = 120

# What may change, by the words of its task.
NODE = "Keep driver, device nodes and persistence daemon"
CONTAINER = "Create, change and start the container"
USERLAND = "Keep the driver's userland equal to the node's driver"
BASE = "Converge authorities, packages and user"
ENVIRONMENT = "Keep the Python environment equal to the lane's lock file"
MODEL = "Keep the model complete and verified"
SERVICE = "Run the service and wait until it answers"

ASK = """
import json, sys, urllib.request
body = {"model": "kpro/tiny-qwen3_5", "messages": [{"role": "user", "content": "Who are you?"}]}
body |= {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
head = {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[2]}
asked = urllib.request.Request("http://" + sys.argv[1] + ":30000/v1/chat/completions", json.dumps(body).encode(), head)
print(json.load(urllib.request.urlopen(asked, timeout=30))["choices"][0]["message"]["content"])
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """One deployment: the tasks that changed something, and what was printed."""

    changed: list[str]
    words: str
    seconds: float


def deploy(pair: Pair, *arguments: str, rc: int = 0) -> Run:
    began = time.monotonic()
    done = pair.playbook("deploy_qwen", *arguments, check=False, timeout_s=1200)
    assert done.returncode == rc, done.stdout[-8000:] + done.stderr[-2000:]
    changed, task = [], ""
    for line in done.stdout.splitlines():
        if line.startswith("TASK ["):
            task = line[len("TASK [") :].rpartition("]")[0].rpartition(" : ")[2]
        # The lock file of the models' commits lies beside the inventory.
        elif line.startswith("changed: [") and task not in changed and "-> localhost" not in line:
            changed.append(task)
    return Run(changed, " ".join(done.stdout.split()), time.monotonic() - began)


def repaired(pair: Pair, node: LinkedNode, changed: list[str], *arguments: str, vmid: int = VMID) -> Run:
    """Deploy, see what that changed and that the model answers, and deploy again, which changes nothing."""
    first = deploy(pair, *arguments)
    assert first.changed == changed, first.words[-4000:]
    assert light.ANSWER in answer(node, vmid)
    second = deploy(pair, *arguments)
    assert second.changed == [], second.words[-4000:]
    print(f"repaired in {first.seconds:.0f} s ({', '.join(first.changed) or 'nothing to do'}), looked again in {second.seconds:.0f} s")
    return first


def refused(pair: Pair, *words: str, arguments: tuple[str, ...] = ()) -> None:
    """Deploy what must end before anything is changed, with these words."""
    before = [state(node) for node in pair.nodes]
    ended = deploy(pair, *arguments, rc=2)
    missing = [word for word in ("Nothing was changed", *words) if word not in ended.words]
    assert not missing, (missing, ended.words[-3000:])
    assert ended.changed == []
    assert [state(node) for node in pair.nodes] == before


def state(node: LinkedNode) -> str:
    """Return what a refused run must leave as it is."""
    return node.run(
        "cat /etc/pve/nodes/*/lxc/*.conf; lxc-ls --running; for id in $(lxc-ls --running); do lxc-info -n $id -pH; done;"
        " cat /proc/driver/nvidia/version; ls -lnR /srv/models; ls -ln --time-style=+ /dev/nvidia*; true"
    )


def answer(node: LinkedNode, vmid: int = VMID) -> str:
    """Return what the model answers now, an empty text if it does not."""
    key = node.run(f"lxc-attach -n {vmid} --clear-env -- cat /etc/kpro-llm/api_key 2>/dev/null || true", check=False).strip()
    return node.run(f"python3 - 10.77.0.{vmid} {key or '-'} 2>/dev/null", check=False, stdin=ASK).strip()


def serves(node: LinkedNode, vmid: int = VMID) -> bool:
    return eventually(lambda: light.ANSWER in answer(node, vmid), STARTED_S)


def change_gpus(node: LinkedNode, gpus: list[dict[str, object]], **more: object) -> None:
    """Open the machine: other cards, and a reboot."""
    choices = {**json.loads(node.run(f"cat {two_nodes.GPU_STATE}")), "gpus": gpus, **more}
    node.run(f"cat > {two_nodes.GPU_STATE}", stdin=json.dumps(choices))
    node.reboot()


def devices(node: LinkedNode, vmid: int = VMID) -> list[str]:
    config = node.run(f"cat /etc/pve/lxc/{vmid}.conf")
    return sorted(line.split()[1].partition(",")[0] for line in config.splitlines() if line.startswith("dev"))


def cards(*minors: int) -> list[str]:
    return sorted([*(f"/dev/nvidia{minor}" for minor in minors), "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])


def kernels(node: LinkedNode, vmid: int = VMID) -> set[str]:
    return set(node.inside("ls /var/lib/kpro-sglang/kernels", vmid=vmid).split())


def assert_follows(node: LinkedNode, driver: str, architecture: str, uuids: list[str], tp: int, vmid: int = VMID) -> dict[str, t.Any]:
    """Everything in force is of this hardware, and nothing of another one."""
    found = light.facts(node, vmid)
    environment = found["environment"]
    assert environment["CUDA_VISIBLE_DEVICES"].split(",") == uuids
    assert found["options"]["tp-size"] == str(tp)
    folder = f"0.5.23-torch2.14.1-driver{driver}-{architecture}"
    caches = [
        environment[name] for name in ("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TVM_FFI_CACHE_DIR", "CUDA_CACHE_PATH")
    ]
    assert all(f"/kernels/{folder}" in path for path in caches), caches
    assert folder in kernels(node, vmid)
    assert driver in node.inside("cat /proc/driver/nvidia/version", vmid=vmid)
    assert f"libcuda.so.{driver}" in node.inside("ls /usr/lib/x86_64-linux-gnu", vmid=vmid)
    return found


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One node that serves; both sides of the pair are it."""
    node = two_nodes.up(f"rerun-lone{WORKER}", OLD, OLD_KIND, "--layer", light.deployed())
    folder = tmp_path_factory.mktemp("lone")
    pair = Pair("", node, node, folder)
    pair.write_inventory(OLD, (), **light.variables(folder))
    light.publish(node)
    assert serves(node)
    yield pair
    if "KPRO_TEST_KEEP_NODE" not in os.environ:
        subprocess.run([SANDBOX, "down", node.name], check=True)


def test_the_driver_is_upgraded_and_downgraded_and_the_container_follows(lone: Pair) -> None:
    node = lone.new
    refused(lone, VERSION, NEWER, "gpu_node__replace_driver: true", arguments=UPGRADED[2:])
    repaired(lone, node, [NODE, USERLAND, SERVICE], *UPGRADED)
    assert_follows(node, NEWER, "sm86", [A, B], 2)
    repaired(lone, node, [NODE, USERLAND, SERVICE], *CONSENT)
    assert_follows(node, VERSION, "sm86", [A, B], 2)
    assert len(kernels(node)) == 2, "the way back is kept"


def test_a_driver_changed_by_hand_under_the_container(lone: Pair) -> None:
    node = lone.new
    run = f"sh {FILES}/driver/NVIDIA-Linux-x86_64-{NEWER}.run --silent --no-x-check --dkms --kernel-module-type=open"
    node.run(f"pct shutdown {VMID}; systemctl stop nvidia-persistenced; modprobe -r nvidia-uvm nvidia && {run} && modprobe nvidia-uvm")
    node.run(f"systemctl restart kpro-nvidia-devnodes nvidia-persistenced; pct start {VMID}")
    # The inventory names the new one, too: the node is as declared, the container's userland is not.
    repaired(lone, node, [USERLAND, SERVICE], *UPGRADED)
    assert_follows(node, NEWER, "sm86", [A, B], 2)
    # It does not: then the node's driver is what differs.
    repaired(lone, node, [NODE, USERLAND, SERVICE], *CONSENT)
    assert_follows(node, VERSION, "sm86", [A, B], 2)


def test_a_reboot_moves_the_major_of_uvm_and_nothing_is_to_be_done(lone: Pair) -> None:
    node = lone.new
    major = 'awk "\\$2 == \\"nvidia-uvm\\" {print \\$1}" /proc/devices'
    before = node.inside(major)
    node.reboot()
    assert serves(node)
    assert node.inside(major) != before
    repaired(lone, node, [])


def test_a_gpu_is_swapped(lone: Pair) -> None:
    node = lone.new
    other = gpu(0, "42", bus_id=OLD_KIND.gpus[0]["bus_id"])
    change_gpus(node, [other, gpu(1, "41")])
    repaired(lone, node, [SERVICE])
    assert_follows(node, VERSION, "sm86", [str(other["uuid"]), B], 2)


def test_a_gpu_is_removed(lone: Pair) -> None:
    node = lone.new
    change_gpus(node, [gpu(1, "41", minor=0)])
    refused(lone, "2 are asked for (gpu_container__gpus) and the node has 1", arguments=("-e", "gpu_container__gpus=2"))
    refused(lone, A, arguments=("-e", json.dumps({"gpu_container__gpus": [A]})))
    # The node's device nodes are made for other minors.
    repaired(lone, node, [NODE, CONTAINER, SERVICE])
    assert devices(node) == cards(0)
    assert_follows(node, VERSION, "sm86", [B], 1)


def test_gpus_are_added_and_one_that_the_model_does_not_divide_by_is_told(lone: Pair) -> None:
    node = lone.new
    third = gpu(2, "41")
    change_gpus(node, [*OLD_KIND.gpus, third])
    ended = repaired(lone, node, [NODE, CONTAINER, SERVICE])
    assert devices(node) == cards(0, 1, 2)
    assert_follows(node, VERSION, "sm86", [A, B], 2)
    assert "1 of 3 stay idle: 2 is what divides the model's heads" in ended.words
    assert f"given up: GPU {third['uuid']} (idle: the model is divided among 2)" in ended.words
    assert deploy(lone, "-e", "gpu_container__gpus=2").changed == [CONTAINER, SERVICE]
    assert devices(node) == cards(0, 1)


def test_gpus_are_renumbered(lone: Pair) -> None:
    node = lone.new
    change_gpus(node, list(OLD_KIND.gpus))
    one = ("-e", json.dumps({"gpu_container__gpus": [A]}))
    deploy(lone, *one)
    assert devices(node) == cards(0)
    change_gpus(node, [gpu(0, "41", minor=1, bus_id="0000:42:00.0"), gpu(1, "41", minor=0, bus_id="0000:41:00.0")])
    repaired(lone, node, [CONTAINER, SERVICE], *one)
    assert devices(node) == cards(1), "the same card, by its UUID"
    assert_follows(node, VERSION, "sm86", [A], 1)


def test_other_gpus_with_less_memory_and_without_peer_access(lone: Pair) -> None:
    node = lone.new
    small = [gpu(index, "45", "NVIDIA GeForce RTX 4090", 24564, compute_capability="8.9") for index in (0, 1)]
    # Slots of state for which these have no memory, and the first ones have.
    ladder = ("-e", json.dumps({"sglang_server__profiles": [{"name": "many", "options": {"max_mamba_cache_size": 1_000_000}}, {"name": "few", "options": {}}]}))
    change_gpus(node, small, p2p="none")
    ended = repaired(lone, node, [CONTAINER, SERVICE], *ladder)
    found = assert_follows(node, VERSION, "sm89", [str(row["uuid"]) for row in small], 2)
    slots = int(found["options"]["max-mamba-cache-size"])
    assert (found["environment"]["NCCL_P2P_DISABLE"], found["options"]["disable-custom-all-reduce"]) == ("1", "true")
    assert "rung 'few' (given up: many: " in ended.words
    assert "direct copies between the GPUs (no peer access from" in ended.words
    change_gpus(node, list(OLD_KIND.gpus), p2p="ok")
    ended = repaired(lone, node, [SERVICE], *ladder)
    found = assert_follows(node, VERSION, "sm86", [A, B], 2)
    assert "NCCL_P2P_DISABLE" not in found["environment"] and "disable-custom-all-reduce" not in found["options"]
    assert int(found["options"]["max-mamba-cache-size"]) > slots, "planned anew"
    assert "rung 'many'" in ended.words and "given up" not in ended.words.partition("Print the summary")[2]
    assert {name.rpartition("-")[2] for name in kernels(node)} == {"sm86", "sm89"}, "the way back is kept, and no more"


def test_the_store_of_models_is_missing_and_moved(lone: Pair) -> None:
    node = lone.new
    node.run(f"pct shutdown {VMID}; rm -rf /srv/models")
    repaired(lone, node, [CONTAINER, MODEL, SERVICE])
    # Its storage moved: nothing is fetched again.
    node.run(f"pct shutdown {VMID}; mkdir -p /mnt/large && mv /srv/models /mnt/large/models")
    asked = len(node.hub_requests())
    moved = ("-e", json.dumps({"gpu_container__mounts": [{"source": "/mnt/large/models", "target": "/srv/models"}]}))
    repaired(lone, node, [CONTAINER], *moved)
    assert "mp0: /mnt/large/models,mp=/srv/models" in node.run(f"cat /etc/pve/lxc/{VMID}.conf")
    assert not [row for row in node.hub_requests()[asked:] if "safetensors" in str(row)]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Separate nodes: kpro6 serves, kpro5 has just been installed; the inventory names kpro5."""
    folder = tmp_path_factory.mktemp("apart")
    pair = two_nodes.start(f"rerun-apart{WORKER}", folder, old=light.served(OLD_KIND))
    light.publish(pair.new)
    prepared_nodes.write_models_lock(pair)
    pair.write_inventory(**light.variables(folder))
    yield pair
    if "KPRO_TEST_KEEP_NODE" not in os.environ:
        two_nodes.stop(pair)


def carry_backup(pair: Pair) -> str:
    """Back up the container on kpro6, keep it off there, bring the archive to kpro5 and return its volume."""
    old, new = pair.nodes
    old.run(f"pct shutdown {VMID} && pct set {VMID} --onboot 0")
    old.run(f"pvesh create /nodes/localhost/vzdump --vmid {VMID} --storage local --mode stop --compress zstd")
    archive = old.run(f"ls -t /var/lib/vz/dump/vzdump-lxc-{VMID}-*.tar.zst | head -n 1").strip()
    old.run(f"mv {archive} {FILES}/backup.tar.zst && chmod 644 {FILES}/backup.tar.zst")
    new.run(f"mkdir -p /var/lib/vz/dump && curl -sf http://{old.address}:8090/files/backup.tar.zst -o {archive}")
    return f"local:backup/{Path(archive).name}"


def test_between_separate_nodes_the_inventory_moves_on_and_the_container_does_not(apart: Pair) -> None:
    assert serves(apart.old)
    refused(apart, "129 also runs on kpro6 (llm_node_previous)", "move it with kpro.llm.migrate_qwen and -e migrate_from=kpro6")
    assert light.ANSWER in answer(apart.old)


def test_a_backup_is_restored_on_a_node_that_was_reinstalled(apart: Pair) -> None:
    new = apart.new
    secret = apart.old.inside("cat /etc/kpro-llm/api_key")
    new.run(f"pct restore {VMID} {carry_backup(apart)} --storage local-zfs")
    assert new.run("ls /dev/nvidia* 2>/dev/null || true") == ""
    ended = repaired(apart, new, [NODE, CONTAINER, MODEL, SERVICE])
    found = assert_follows(new, VERSION, "sm86", [str(row["uuid"]) for row in NEW_KIND.gpus], 2)
    assert (found["environment"]["NCCL_P2P_DISABLE"], found["options"]["disable-custom-all-reduce"]) == ("1", "true"), "kpro5's verdict, not kpro6's"
    assert "given up: direct copies between the GPUs" in ended.words
    assert new.inside("cat /etc/kpro-llm/api_key") == secret


def test_a_backup_is_restored_under_a_new_id(apart: Pair) -> None:
    new, other = apart.new, 130
    archive = new.run(f"ls /var/lib/vz/dump/vzdump-lxc-{VMID}-*.tar.zst").strip()
    new.run(f"pct stop {VMID} && pct destroy {VMID} && pct restore {other} local:backup/{Path(archive).name} --storage local-zfs")
    network = {"bridge": "vmbr0", "ip": f"10.77.0.{other}/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"}
    apart.write_inventory(**light.variables(apart.folder, pct_vmid=other, gpu_container__network=network))
    repaired(apart, new, [NODE, CONTAINER, USERLAND, SERVICE], *UPGRADED, vmid=other)
    assert_follows(new, NEWER, "sm86", [str(row["uuid"]) for row in NEW_KIND.gpus], 2, other)


def test_a_node_is_reinstalled_and_nothing_came_back(apart: Pair) -> None:
    new = apart.new
    subprocess.run([SANDBOX, "reset", new.name], check=True)
    light.publish(new)
    apart.write_inventory(**light.variables(apart.folder))
    repaired(apart, new, [NODE, CONTAINER, BASE, USERLAND, ENVIRONMENT, MODEL, SERVICE])
    assert_follows(new, VERSION, "sm86", [str(row["uuid"]) for row in NEW_KIND.gpus], 2)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A cluster: kpro6 serves, kpro5 has its driver; the inventory names kpro5."""
    folder = tmp_path_factory.mktemp("joined")
    pair = light.start(f"rerun-joined{WORKER}", folder, cluster=True)
    pair.write_inventory(**light.variables(folder))
    yield pair
    if "KPRO_TEST_KEEP_NODE" not in os.environ:
        two_nodes.stop(pair)


def test_in_a_cluster_the_inventory_moves_on_and_the_container_does_not(joined: Pair) -> None:
    assert serves(joined.old)
    refused(joined, "kpro6", "kpro.llm.migrate_qwen")
    assert light.ANSWER in answer(joined.old)


def test_proxmox_migrated_it_and_it_does_not_start(joined: Pair) -> None:
    old, new = joined.nodes
    # As Proxmox wants it: the folder is said to be on both nodes. It is not, and the other driver's userland comes along.
    old.run(f"pct shutdown {VMID} && pct set {VMID} --mp0 /srv/models,mp=/srv/models,shared=1")
    old.run(f"pct migrate {VMID} {new.host}")
    assert "rc 0" not in new.run(f"pct start {VMID} >/dev/null 2>&1; echo rc $?", check=False)
    ended = repaired(joined, new, [NODE, CONTAINER, USERLAND, MODEL, SERVICE], *UPGRADED)
    assert_follows(new, NEWER, "sm86", [str(row["uuid"]) for row in NEW_KIND.gpus], 2)
    assert "given up: direct copies between the GPUs" in ended.words
    assert old.run("ls /etc/pve/nodes/kpro6/lxc").strip() == ""
