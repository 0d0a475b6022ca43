# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``kpro.llm.pct`` through a real nested container, on every lane at hand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import lanes
from conftest import ROOT, VMID, Node

PLAYBOOKS = Path(__file__).parent / "connection"
BIG_FILE_BYTES = 100_000_000


def play(lane: lanes.Lane, node: Node, playbook: str, **variables: object) -> subprocess.CompletedProcess[str]:
    tools = lanes.environment(lane, "dev") / "bin"
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
    argv = [tools / "ansible-playbook", PLAYBOOKS / playbook, "-i", node.inventory, "-e", json.dumps(variables)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "random bytes"
    with path.open("wb") as file:
        for _piece in range(10):
            file.write(os.urandom(BIG_FILE_BYTES // 10))
    return path


@pytest.mark.sandbox
@pytest.mark.parametrize("lane", lanes.available(), ids=lambda lane: lane.ansible_core)
def test_everything_happens_in_the_container(node: Node, big_file: Path, lane: lanes.Lane) -> None:
    done = play(lane, node, "through_the_container.yml", big_file=str(big_file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.sandbox
@pytest.mark.parametrize("entry", ["lxc-attach", "pct"])
def test_a_stopped_container_is_unreachable(node: Node, entry: str) -> None:
    node.run(f"pct stop {VMID}")
    try:
        done = play(lanes.available()[-1], node, "unreachable.yml", pct_entry=entry)
    finally:
        node.run(f"pct start {VMID}")
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"Container {VMID} is not running on node" in done.stdout + done.stderr
    assert f"pct start {VMID}" in done.stdout + done.stderr


@pytest.mark.sandbox
@pytest.mark.parametrize("entry", ["lxc-attach", "pct"])
def test_an_absent_container_is_unreachable(node: Node, entry: str) -> None:
    done = play(lanes.available()[-1], node, "unreachable.yml", pct_vmid=999, pct_entry=entry)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Container 999 does not exist on node" in done.stdout + done.stderr


@pytest.mark.sandbox
def test_a_container_on_another_node_is_unreachable(node: Node) -> None:
    node.run("mkdir -p /etc/pve/nodes/elsewhere/lxc && touch /etc/pve/nodes/elsewhere/lxc/998.conf")
    try:
        done = play(lanes.available()[-1], node, "unreachable.yml", pct_vmid=998)
    finally:
        node.run("rm -r /etc/pve/nodes/elsewhere")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Container 998 is not on node but on elsewhere" in done.stdout + done.stderr


@pytest.mark.sandbox
def test_a_node_user_with_sudo(node: Node) -> None:
    node.run(
        "id admin >/dev/null 2>&1 || useradd -m -s /bin/bash admin; install -d -o admin -m 700 ~admin/.ssh;"
        " install -o admin -m 600 ~/.ssh/authorized_keys ~admin/.ssh/; echo 'admin ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/admin"
    )
    done = play(lanes.available()[-1], node, "unreachable.yml", ansible_user="admin")
    assert done.returncode == 0, done.stdout + done.stderr
    node.run("rm /etc/sudoers.d/admin")
    done = play(lanes.available()[-1], node, "unreachable.yml", ansible_user="admin")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "password is required" in done.stdout + done.stderr
