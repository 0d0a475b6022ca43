# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input ends in a clear error of the preflight, and nothing on the node is changed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanes
from conftest import ROOT, VMID, Node

pytestmark = pytest.mark.sandbox

# What a deployment would change on the node: containers, models, packages, driver, units, programs.
STATE = (
    "cat /etc/pve/nodes/*/lxc/*.conf; ls -R /etc/pve /var/lib/lxc /srv 2>/dev/null | grep -v '^total'; lxc-ls --running; dpkg-query -W;"
    " ls -R /etc/systemd/system /etc/modprobe.d /usr/local /opt; ls /usr/lib/x86_64-linux-gnu | grep nvidia; ls /var/lib/vz/template/cache; true"
)
OFFERED = '{"debian-12-standard_12.99-1_amd64.tar.zst": {"source": "/nowhere", "sha512sum": "", "section": "system"}}'
LISTEN = "import socket, time; s = socket.socket(); s.bind((str(), 30000)); s.listen(); time.sleep(600)"


def deploy(node: Node, *arguments: str, inventory: str = "inventories/sandbox", **variables: object) -> subprocess.CompletedProcess[str]:
    """Run the whole deployment, which has to stop in its preflight; ``arguments`` go to ansible-playbook."""
    tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
    port = json.loads(node.inventory.read_text(encoding="utf-8"))["all"]["vars"]["ansible_port"]
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "KPRO_SANDBOX_PORT": str(port)}
    argv = [tools / "ansible-playbook", "deploy_qwen.yml", "-i", inventory, "-e", json.dumps({"hf_model__lock_file": "", **variables}), *arguments]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def with_hub(node: Node) -> Node:
    """The node with the tiny model on its hub."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    subprocess.run([ROOT / "tests/sandbox/prepare", f"{base}/content"], check=True, capture_output=True)
    subprocess.run([ROOT / "tests/sandbox/sandbox", "publish", node.name, "--hub", f"{base}/content/hub"], check=True, capture_output=True)
    return node


@contextlib.contextmanager
def unchanged(node: Node) -> Iterator[None]:
    """See that what runs inside changes nothing on the node."""
    before = node.run(STATE)
    yield
    assert node.run(STATE) == before


def refuse(node: Node, variables: dict[str, object], *mentions: str) -> None:
    """See that the deployment says what is needed before it has changed anything."""
    with unchanged(node):
        done = deploy(node, **variables)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    for mention in mentions:
        assert re.search(rf"needs you .*{mention}", output), output
    assert "Nothing was changed" in output


@pytest.mark.parametrize(
    ("variables", "mentions"),
    [
        ({"pct_vmid": VMID}, [rf"{VMID}.*(not made by|does not carry|tag|adopt)"]),
        ({"pct_vmid": 150}, [r"150.*(virtual machine|VM)"]),
        ({"gpu_container__storage": "nowhere"}, [r"storage.*nowhere"]),
        (
            {"gpu_container__gpus": 3, "sglang_server__tp_size": 3, "sglang_runtime__lane": "cu99"},
            [
                r"3 are asked for \(gpu_container__gpus\) and the node has 2",
                r"heads.*, which 3 GPUs \(sglang_server__tp_size\) do not divide",
                r"lane cu99: there is no such lane",
            ],
        ),
        ({"gpu_container__gpus": ["7"]}, [r"GPU '7': there is no such GPU.*0000:41:00\.0, 0000:61:00\.0"]),
        ({"gpu_container__gpus": ["0000:99:00.0"]}, [r"GPU '0000:99:00\.0': there is no such GPU.*0000:41:00\.0, 0000:61:00\.0"]),
        (
            {"sglang_server__tp_size": 2, "gpu_container__network": {"bridge": "vmbr7", "ip": "dhcp"}},
            [r"gets 1 \(gpu_container__gpus\) and the engine is to use 2", r"vmbr7"],
        ),
        ({"hf_model__endpoint": "http://10.77.0.1:9"}, [r"(hub|10\.77\.0\.1:9).*(answer|refused|reach)"]),
        ({"hf_model__repository": "kpro/nothing"}, [r"kpro/nothing"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_clear_error_before_anything_changes(with_hub: Node, variables: dict[str, object], mentions: list[str]) -> None:
    with_hub.run("mkdir -p /etc/pve/nodes/$(hostname)/qemu-server && echo 'name: desktop' > /etc/pve/nodes/$(hostname)/qemu-server/150.conf")
    refuse(with_hub, variables, *mentions)


@pytest.mark.parametrize(
    ("before", "after", "variables", "mentions"),
    [
        pytest.param(
            f"rm -rf /var/lib/pve-manager/apl-info; echo '{OFFERED}' > /etc/kpro-standin/templates.json",
            "rm -rf /var/lib/pve-manager/apl-info /etc/kpro-standin/templates.json",
            {"gpu_container__template": "debian-12-standard_12.13-9_amd64.tar.zst"},
            [r"12\.13-9.*neither stored on the node nor offered.*Near it: local:vztmpl/debian-12-standard_12\.12-1.*12\.99-1"],
            id="template-unknown-and-index-never-fetched",
        ),
        pytest.param(
            'echo \'{"version": "7.4-17"}\' > /etc/kpro-standin/pve.json',
            "rm /etc/kpro-standin/pve.json",
            {},
            [r"Proxmox VE 7\.4-17 is too old: 8\.1 or newer is needed"],
            id="pve-7",
        ),
        pytest.param(
            "mkdir -p /mnt/small /mnt/few && mount -t tmpfs -o size=64m tmpfs /mnt/small && mount -t tmpfs -o size=1m tmpfs /mnt/few"
            " && cp /etc/pve/storage.cfg /root/ && printf '\\ndir: small\\n\\tpath /mnt/small\\n\\tcontent rootdir\\n' >> /etc/pve/storage.cfg",
            "umount /mnt/small /mnt/few; rmdir /mnt/small /mnt/few; cp /root/storage.cfg /etc/pve/",
            {"gpu_container__storage": "small", "gpu_container__mounts": [{"source": "/mnt/few", "target": "/srv/models"}]},
            [r"storage 'small'.*GiB free, .*GiB needed", r"The store on the node has .* free and .* are missing"],
            id="no-space-for-container-and-model",
        ),
        pytest.param(
            f"systemd-run -q --unit=listen lxc-attach -n {VMID} -- python3 -c '{LISTEN}'",
            "systemctl stop listen",
            {"pct_vmid": VMID, "gpu_container__adopt": True},
            [r"30000 is held by .*python3.*sglang_server__port"],
            id="port-in-use",
        ),
    ],
)
def test_a_clear_error_about_the_node_as_it_is(with_hub: Node, before: str, after: str, variables: dict[str, object], mentions: list[str]) -> None:
    with_hub.run(before)
    try:
        refuse(with_hub, variables, *mentions)
    finally:
        with_hub.run(after)


def test_a_mistyped_inventory_is_an_error(node: Node) -> None:
    with unchanged(node):
        done = deploy(node, inventory="kpro55")
    assert done.returncode == 2
    assert "Check the path given with -i" in done.stdout + done.stderr


def test_an_empty_group_is_an_error(node: Node, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.json"
    inventory.write_text('{"llm_node": {"hosts": {}}, "llm_container": {"hosts": {"qwen": {}}}}', encoding="utf-8")
    with unchanged(node):
        done = deploy(node, inventory=str(inventory))
    assert done.returncode == 2
    assert "has no host in the group" in done.stdout + done.stderr


def test_an_unreachable_node_is_an_error(node: Node) -> None:
    with unchanged(node):
        done = deploy(node, ansible_port=9)
    assert done.returncode == 2
    assert re.search(r"node +needs you .*sandbox can't be reached", done.stdout), "a row of the table, as every other reason"


def test_a_node_user_that_is_not_root_is_an_error(node: Node) -> None:
    node.run(
        "id admin >/dev/null 2>&1 || useradd -m -s /bin/bash admin; install -d -o admin -m 700 ~admin/.ssh;"
        " install -o admin -m 600 ~/.ssh/authorized_keys ~admin/.ssh/"
    )
    with unchanged(node):
        done = deploy(node, ansible_user="admin")
    assert done.returncode == 2
    assert re.search(r"needs you .*not root", done.stdout)


def test_a_machine_without_proxmox_is_an_error(node: Node) -> None:
    path = node.run("command -v pveversion").strip()
    node.run(f"mv {path} {path}.aside")
    try:
        with unchanged(node):
            done = deploy(node)
    finally:
        node.run(f"mv {path}.aside {path}")
    assert done.returncode == 2
    assert re.search(r"needs you .*not a Proxmox VE node", done.stdout)


def test_a_uuid_that_no_gpu_has_is_an_error(with_hub: Node) -> None:
    """Only a driver tells UUIDs, so one is put on the node by hand; without one the phase "node" ends in this error."""
    package = "/srv/kpro-standin/files/driver/NVIDIA-Linux-x86_64-580.173.02.run"
    with_hub.run(
        f"apt-get update -qq && apt-get install -y -qq proxmox-default-headers >/dev/null 2>&1 && sh {package} --silent"
        " && modprobe nvidia && modprobe nvidia-uvm && nvidia-modprobe -c 0 -c 1 -c 255 && nvidia-modprobe -u -c 0"
    )
    unknown = "GPU-00000000-dead-beef-0000-000000000000"
    refuse(with_hub, {"gpu_container__gpus": [unknown]}, rf"{unknown}.*no such GPU.*GPU-")


def test_a_creation_that_runs_is_no_finding_of_the_preflight(with_hub: Node) -> None:
    """Half a container of ours has no tag yet: it is shown as being created, and nobody is told to take it over."""
    slow = "/usr/local/sbin/zstd"
    create = "pvesh create /nodes/localhost/lxc --vmid 166 --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --rootfs local-zfs:1"
    with_hub.run(f"printf '#!/bin/sh\\nsleep 90\\nexec /usr/bin/zstd \"$@\"\\n' > {slow} && chmod +x {slow}")
    with_hub.run(f"systemd-run --quiet --unit=slow-creation {create}; until grep -qs 'lock: create' /etc/pve/lxc/166.conf; do sleep 0.2; done")
    try:
        with unchanged(with_hub):
            done = deploy(with_hub, "--tags", "preflight", pct_vmid=166)
        output = done.stdout + done.stderr
        assert re.search(r"will fix .*container 166.*being created", output), output
        assert "made by somebody else" not in output and "adopt" not in output and done.returncode == 0, output
    finally:
        with_hub.run(f"rm -f {slow}; systemctl stop slow-creation; true")
        with_hub.run("until ! pvesh get /nodes/localhost/tasks --source active --output-format json | grep -q 166; do sleep 0.3; done; pct unlock 166; "
                     "umount /var/lib/lxc/166/rootfs; pct destroy 166 --destroy-unreferenced-disks 1; true")  # fmt: skip
