# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that is left keeps what is not this deployment's, and what others use: real LXC, mounts, processes and systemd; Proxmox is a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import two_nodes
from two_nodes import NEW, OLD, VMID, LinkedNode, Pair

from ansible_collections.kpro.llm.plugins.module_utils._driver import files

pytestmark = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all")
NAME = f"leave{os.environ.get('PYTEST_XDIST_WORKER', '')}"
COMMIT = "0123456789abcdef" * 2 + "01234567"
STORE = "/srv/models"
SNAPSHOT, OTHER_MODEL = f"{STORE}/kpro--tiny@{COMMIT[:12]}", f"{STORE}/kpro--other@{COMMIT[:12]}"
OTHER = 140
# Written as hf_model leaves it, with size and time of each file.
MAKE = """
import json, os, sys
for repository in ("kpro/tiny", "kpro/other"):
    folder = f"/srv/models/{repository.replace('/', '--')}@{sys.argv[1][:12]}"
    os.makedirs(f"{folder}/sub", exist_ok=True)
    rows = {}
    for name in ("config.json", "sub/a.safetensors"):
        with open(f"{folder}/{name}", "w") as file:
            file.write(name)
        found = os.stat(f"{folder}/{name}")
        rows[name] = {"size": found.st_size, "sha256": "0" * 64, "git_sha1": "", "mtime_ns": found.st_mtime_ns}
    with open(f"{folder}/.kpro-manifest.json", "w") as file:
        json.dump({"format": 1, "repository": repository, "commit": sys.argv[1], "files": rows}, file)
"""


@pytest.fixture(scope="module")
def node() -> Iterator[LinkedNode]:
    try:
        yield two_nodes.up(NAME, OLD, two_nodes.OLD_KIND, "--suite", "bookworm")
    finally:
        subprocess.run([two_nodes.SANDBOX, "down", NAME], check=True)


@pytest.fixture(scope="module")
def pair(node: LinkedNode, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The node that was left, with the stopped container, two models, a running container of somebody else, and what keeps a driver."""
    node.run(f"mkdir -p {STORE} && chown 100000:100000 {STORE}")
    node.run(f"python3 - {COMMIT}", stdin=MAKE)
    create(node, VMID, "qwen", "--tags kpro-llm")
    create(node, OTHER, "whisper", "--start 1")
    for path, text in files.node_files([0], persistence=True, power_limit_w=0).items():
        node.run(f"mkdir -p {os.path.dirname(path)} && cat > {path}", stdin=text)
    node.run("systemctl daemon-reload && systemctl enable kpro-nvidia-devnodes nvidia-persistenced")
    pair = Pair("", node, node, tmp_path_factory.mktemp("leave"))
    hosts = {OLD: node, NEW: node}
    variables: dict[str, object] = {"hf_model__repository": "kpro/tiny", "hf_model__revision": COMMIT}
    pair.inventory.write_text(json.dumps(two_nodes.inventory_of(hosts, NEW, (OLD,), variables)), encoding="utf-8")
    return pair


def create(node: LinkedNode, vmid: int, name: str, more: str) -> None:
    node.run(
        f"pvesh create /nodes/localhost/lxc --vmid {vmid} --hostname {name} --unprivileged 1 --features nesting=1 --memory 512"
        " --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --rootfs local-zfs:2"
        f" --net0 name=eth0,bridge=vmbr0,ip=10.77.0.{vmid}/24,gw=10.77.0.1 --mp0 {STORE},mp={STORE} {more}"
    )


def leave(pair: Pair, *more: str) -> tuple[int, str]:
    done = pair.playbook("decommission", "-e", f"decommission_node={OLD}", *more, check=False)
    return done.returncode, done.stdout + done.stderr


def state(node: LinkedNode) -> str:
    """Everything that a decommission could touch."""
    return node.run(f"find {STORE} -printf '%p %T@ %s %U %m\\n' | sort; ls /etc/pve/lxc /etc/systemd/system /etc/modprobe.d; cat /etc/pve/lxc/*.conf")


def refused(pair: Pair, *words: str) -> None:
    before = state(pair.old)
    code, output = leave(pair, "-e", "decommission_models=true")
    assert code != 0 and all(word in output for word in words), output[-3000:]
    assert state(pair.old) == before


def test_what_others_use_stays_in_whatever_way_they_use_it(pair: Pair) -> None:
    node = pair.old
    refused(pair, "in use", f"container {OTHER} (whisper) refers to {STORE} (mp0)", f"running container {OTHER}")

    # The configuration no longer says it, the container still has it.
    node.run(f"sed -i /^mp0:/d /etc/pve/lxc/{OTHER}.conf")
    refused(pair, "in use", f"running container {OTHER}", "mounted")

    node.run(f"pct stop {OTHER} && printf '[before]\\nmp0: {STORE},mp=/m\\n' >> /etc/pve/lxc/{OTHER}.conf")
    refused(pair, f"container {OTHER} (whisper) refers to {STORE} (mp0 in section before)")
    node.run(f"sed -i '/^\\[before/,$d' /etc/pve/lxc/{OTHER}.conf")

    node.run(f"systemd-run -q --unit=reader sh -c 'exec 3< {SNAPSHOT}/sub/a.safetensors; sleep 1000'; sleep 0.5")
    refused(pair, "in use", "a.safetensors open")
    node.run("systemctl stop reader")

    node.run(f"mkdir -p /mnt/export && mount --bind {STORE} /mnt/export")
    refused(pair, "in use", "mounted on /mnt/export")
    node.run("umount /mnt/export")


def test_only_this_deployment_goes_and_the_driver_stays_for_another_guest(pair: Pair) -> None:
    node = pair.old
    node.run(f"echo 'dev0: /dev/nvidia0' >> /etc/pve/lxc/{OTHER}.conf; echo mine > {STORE}/notes.txt")
    before = state(node)
    code, planned = leave(pair, "-e", "decommission_models=true", "--check", "--diff")
    assert code == 0 and f"{SNAPSHOT}/sub/a.safetensors" in planned, planned[-3000:]
    assert state(node) == before

    code, output = leave(pair, "-e", "decommission_models=true", "-e", "decommission_driver=true")
    assert code != 0 and f"container {OTHER} (whisper) has a GPU" in output and state(node) == before

    code, output = leave(pair, "-e", "decommission_models=true")
    assert code == 0, output[-3000:]
    # Each path stands there before anything goes.
    assert output.index(f"{SNAPSHOT}/sub/a.safetensors") < output.index("TASK [Remove the container]")
    assert node.run(f"ls -A {STORE}").split() == [OTHER_MODEL.rsplit("/", 1)[1], "notes.txt"]
    assert node.run(f"cat {OTHER_MODEL}/sub/a.safetensors") == "sub/a.safetensors"
    assert node.run("ls /etc/pve/lxc").split() == [f"{OTHER}.conf"]
    assert node.run("systemctl is-enabled kpro-nvidia-devnodes nvidia-persistenced").split() == ["enabled", "enabled"]

    node.run(f"sed -i /^dev0/d /etc/pve/lxc/{OTHER}.conf")
    code, output = leave(pair, "-e", "decommission_models=true")
    assert code == 0, output[-3000:]
    assert node.run("ls /etc/systemd/system/kpro-nvidia-devnodes.service /etc/modprobe.d/kpro-nvidia.conf 2>/dev/null || true") == ""
    code, output = leave(pair, "-e", "decommission_models=true")
    assert code == 0 and "changed=0" in output, output[-3000:]


def test_a_map_of_its_own_is_the_running_containers(node: LinkedNode) -> None:
    """The stand-in starts LXC with the custom lines alone, as Proxmox does, whatever the privilege level says."""
    create(node, 141, "mapped", "")
    lines = [f"{kind} {row}" for kind in "ug" for row in ("0 100000 1000", "1000 101000 64536")]
    node.run("cat >> /etc/pve/lxc/141.conf", stdin="".join(f"lxc.idmap: {line}\n" for line in lines))
    node.run("pct start 141")
    pid = node.run("lxc-info -n 141 -p -H").strip()
    assert [line.split() for line in node.run(f"cat /proc/{pid}/uid_map").splitlines()] == [["0", "100000", "1000"], ["1000", "101000", "64536"]]
    node.run("pct stop 141; sed -i 's/^lxc.idmap: u/lxc.idmap: b/' /etc/pve/lxc/141.conf")
    assert "failed to parse idmap" in node.run("pct start 141 2>&1 || true")
