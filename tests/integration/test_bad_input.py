# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input ends in a clear error of the preflight, and nothing on the node is changed."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

import lanes
from conftest import ROOT, VMID, Node

pytestmark = pytest.mark.sandbox

STATE = (
    "cat /etc/pve/nodes/*/lxc/*.conf; ls -R /etc/pve /var/lib/lxc /srv 2>/dev/null | grep -v '^total'; ls /usr/lib/x86_64-linux-gnu | grep -c nvidia;"
    " lxc-ls --running; true"
)


def deploy(node: Node, inventory: str = "inventories/sandbox", **variables: object) -> subprocess.CompletedProcess[str]:
    """Run the whole deployment, which has to stop in its preflight."""
    tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
    port = json.loads(node.inventory.read_text(encoding="utf-8"))["all"]["vars"]["ansible_port"]
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "KPRO_SANDBOX_PORT": str(port)}
    argv = [tools / "ansible-playbook", "deploy_qwen.yml", "-i", inventory, "-e", json.dumps({"hf_model__lock_file": "", **variables})]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def with_hub(node: Node) -> Node:
    """The node with the tiny model on its hub."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    subprocess.run([ROOT / "tests/sandbox/prepare", f"{base}/content"], check=True, capture_output=True)
    subprocess.run([ROOT / "tests/sandbox/sandbox", "publish", node.name, "--hub", f"{base}/content/hub"], check=True, capture_output=True)
    return node


@pytest.mark.parametrize(
    ("variables", "mention"),
    [
        ({"pct_vmid": VMID}, rf"{VMID}.*(not made by|does not carry|tag|adopt)"),
        ({"pct_vmid": 150}, r"150.*(virtual machine|VM)"),
        ({"gpu_container__storage": "nowhere"}, r"storage.*nowhere"),
        ({"gpu_container__gpus": 3, "sglang_server__tp_size": 3}, r"3 are asked for \(gpu_container__gpus\) and the node has 2"),
        ({"sglang_server__tp_size": 2}, r"gets 1 \(gpu_container__gpus\) and the engine is to use 2"),
        ({"gpu_container__gpus": 2, "sglang_server__tp_size": 2, "sglang_runtime__lane": "cu99"}, r"lane cu99: there is no such lane"),
        ({"hf_model__endpoint": "http://10.77.0.1:9"}, r"(hub|10\.77\.0\.1:9).*(answer|refused|reach)"),
        ({"hf_model__repository": "kpro/nothing"}, r"kpro/nothing"),
        ({"gpu_container__rootfs_gib": 16, "gpu_container__network": {"bridge": "vmbr7", "ip": "dhcp"}}, r"vmbr7"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_clear_error_before_anything_changes(with_hub: Node, variables: dict[str, object], mention: str) -> None:
    with_hub.run("mkdir -p /etc/pve/nodes/$(hostname)/qemu-server && echo 'name: desktop' > /etc/pve/nodes/$(hostname)/qemu-server/150.conf")
    before = with_hub.run(STATE)
    done = deploy(with_hub, **variables)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert re.search(rf"needs you .*{mention}", output), output
    assert "Nothing was changed" in output
    assert with_hub.run(STATE) == before


def test_a_mistyped_inventory_is_an_error(node: Node) -> None:
    done = deploy(node, inventory="kpro55")
    assert done.returncode == 2
    assert "Check the path given with -i" in done.stdout + done.stderr


def test_an_unreachable_node_is_an_error(node: Node) -> None:
    done = deploy(node, ansible_port=9)
    assert done.returncode == 4
    assert "UNREACHABLE" in done.stdout


def test_a_node_user_that_is_not_root_is_an_error(node: Node) -> None:
    node.run(
        "id admin >/dev/null 2>&1 || useradd -m -s /bin/bash admin; install -d -o admin -m 700 ~admin/.ssh;"
        " install -o admin -m 600 ~/.ssh/authorized_keys ~admin/.ssh/"
    )
    done = deploy(node, ansible_user="admin")
    assert done.returncode == 2
    assert re.search(r"needs you .*not root", done.stdout)


def test_a_machine_without_proxmox_is_an_error(node: Node) -> None:
    path = node.run("command -v pveversion").strip()
    node.run(f"mv {path} {path}.aside")
    try:
        done = deploy(node)
    finally:
        node.run(f"mv {path}.aside {path}")
    assert done.returncode == 2
    assert re.search(r"needs you .*not a Proxmox VE node", done.stdout)
