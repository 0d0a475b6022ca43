# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two nodes of the sandbox on one link, apart and as a cluster: what the tests of a migration stand on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import two_nodes
from two_nodes import LinkedNode, Pair, eventually

from plain_node import SANDBOX

everything = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
CREATE = (
    "pvesh create /nodes/localhost/lxc --vmid {vmid} --hostname moved --unprivileged 1 --features nesting=1 --memory 512"
    " --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --rootfs local-zfs:2 --net0 name=eth0,bridge=vmbr1,ip=manual {more}"
)


def links() -> list[str]:
    base = Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox")
    return sorted(os.listdir(base / "links"))


def answers(node: LinkedNode, address: str, port: int = 22) -> bool:
    """Tell whether a port answers a node."""
    line = f"timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/{port} && head -c 4 <&3' 2>/dev/null || true"
    return node.run(line).startswith("SSH-")


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Pair]:
    pair = two_nodes.start(f"apart{WORKER}", tmp_path)
    yield pair
    two_nodes.stop(pair)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = two_nodes.start(f"cluster{WORKER}", tmp_path_factory.mktemp("cluster"), cluster=True)
    yield pair
    two_nodes.stop(pair)


def test_nodes_apart_reach_each_other_and_nothing_of_the_machine(apart: Pair) -> None:
    old, new = apart.nodes
    assert answers(new, old.address)
    assert answers(old, new.address)
    assert [row["name"] for row in new.pvesh("/cluster/status")] == ["kpro5"], "each is a node of its own"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reached = new.run(f"for a in 10.88.0.1 10.88.0.2 10.0.2.2; do timeout 2 bash -c 'exec 3<>/dev/tcp/'$a'/{port}' 2>/dev/null && echo $a; done; true")
        assert reached == "", "the machine's loopback"

    apart.cut()
    assert not answers(new, old.address)
    apart.restore()
    assert eventually(lambda: answers(new, old.address))

    # They differ where a migration has to look: release, GPUs, P2P, uvm's major.
    assert [node.run("pveversion").split("/")[1][0] for node in apart.nodes] == ["8", "9"]
    uuids = [{row["uuid"] for row in json.loads(node.run(f"cat {two_nodes.GPU_STATE}"))["gpus"]} for node in apart.nodes]
    assert not uuids[0] & uuids[1]
    majors = [
        node.run("python3 -c 'import sys; sys.path.insert(0, \"/usr/lib/kpro-standin/gpu\"); import kernel; print(kernel.uvm_major())'") for node in apart.nodes
    ]
    assert majors[0] != majors[1]

    # The hub of one node can be off while the other's is on.
    new.hub(False)
    assert new.run("curl -s -o /dev/null -w '%{http_code}' http://10.77.0.1:8090/api/models/kpro/tiny-qwen3_5/revision/main || true") == "000"
    asked = len(old.hub_requests())
    assert new.run(f"curl -s -o /dev/null -w '%{{http_code}}' http://{old.address}:8090/api/models/kpro/tiny-qwen3_5/revision/main") == "200"
    assert len(old.hub_requests()) == asked + 1

    two_nodes.stop(apart)
    assert apart.link not in links()


@everything
def test_a_killed_node_comes_back_on_the_link_and_the_shape_stays(apart: Pair) -> None:
    old, new = apart.nodes
    old.run("head -c 40M /dev/urandom > /srv/kpro-standin/files/big && chmod 644 /srv/kpro-standin/files/big")
    apart.shape("80mbit")
    old.kill()
    assert not answers(new, old.address)
    old.up()
    assert eventually(lambda: answers(new, old.address))
    # 40 MiB at 80 Mbit/s are 4.2 s; headers are 4 % of it.
    before = apart.carried_bytes(new)
    spent_s = float(new.run(f"curl -sf -o /dev/null -w '%{{time_total}}' http://{old.address}:8090/files/big"))
    assert 4.0 < spent_s < 20, "the link is as fast as it was told, and no faster"
    assert apart.carried_bytes(new) - before > 40 * 1024**2
    apart.shape("none")


@everything
def test_a_transfer_survives_a_short_cut(apart: Pair) -> None:
    old, new = apart.nodes
    old.run("head -c 20M /dev/urandom > /srv/kpro-standin/files/big && chmod 644 /srv/kpro-standin/files/big")
    apart.shape("40mbit")
    done: list[str] = []
    fetch = f"curl -sf http://{old.address}:8090/files/big | sha256sum"
    thread = threading.Thread(target=lambda: done.append(new.run(fetch)))
    thread.start()
    assert eventually(lambda: apart.carried_bytes(new) > 2 * 1024**2)
    apart.cut(old)
    carried = apart.carried_bytes(new)
    time.sleep(1)
    assert apart.carried_bytes(new) - carried < 1024**2
    apart.restore()
    thread.join()
    assert done == [old.run("sha256sum < /srv/kpro-standin/files/big")]


@everything
def test_whatever_ends_a_link_leaves_nothing(tmp_path: Path) -> None:
    pair = two_nodes.start(f"crash{WORKER}", tmp_path)
    namespace = json.loads(subprocess.run([SANDBOX, "link", pair.link, "status"], capture_output=True, text=True, check=True).stdout)["namespace"]
    for node in pair.nodes:
        node.kill()
    assert eventually(lambda: not Path(namespace).exists()), "it ends with its last node"
    two_nodes.stop(pair)
    assert pair.link not in links()


@everything
def test_a_killed_start_takes_its_link_along(tmp_path: Path) -> None:
    name = f"killed{WORKER}"
    for delay_s in (0.1, 0.6, 1.2, 2.0):
        with subprocess.Popen([SANDBOX, "up", name, "--link", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            assert eventually(lambda: name in links() or process.poll() is not None)
            time.sleep(delay_s)
            process.kill()
        subprocess.run([SANDBOX, "up", name, "--link", name], check=True)
        subprocess.run([SANDBOX, "link", name, "status"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([SANDBOX, "down", name], check=True)
        assert name not in links()


@everything
def test_a_node_reboots_without_a_link_that_was_ended(tmp_path: Path) -> None:
    name = f"alone{WORKER}"
    node = two_nodes.up(name, "kpro5", two_nodes.NEW_KIND, "--link", name)
    try:
        status = json.loads(subprocess.run([SANDBOX, "link", name, "status"], capture_output=True, text=True, check=True).stdout)
        os.kill(int(status["namespace"].split("/")[2]), signal.SIGKILL)
        assert subprocess.run([SANDBOX, "link", name, "status"], capture_output=True, check=False).returncode == 2
        node.reboot()
        assert node.run("ls /sys/class/net").split() == ["eth0", "lo", "vmbr0"]
        node.kill()
        node.up()
        assert "vmbr1" in node.run("ls /sys/class/net").split(), "the next start makes it again"
    finally:
        subprocess.run([SANDBOX, "down", name], check=True)
    assert name not in links()


def create(node: LinkedNode, vmid: int, more: str = "") -> None:
    node.run(CREATE.format(vmid=vmid, more=more))
    assert vmid in [row["vmid"] for row in node.pvesh("/nodes/localhost/lxc")]


def where(pair: Pair, vmid: int) -> tuple[str, str]:
    """Return a container's node and state as either node tells them."""
    told = [[(row["node"], row["status"]) for row in node.pvesh("/cluster/resources --type vm") if row["vmid"] == vmid] for node in pair.nodes]
    assert told[0] == told[1]
    return told[0][0]


def migrate(node: LinkedNode, vmid: int, target: str, more: str = "--restart 1") -> tuple[str, str]:
    """Migrate by the API and return how the task ended, and its lines."""
    out = node.run(f"pvesh create /nodes/{node.host}/lxc/{vmid}/migrate --target {target} {more} --output-format json", check=False)
    upid = json.loads(out.splitlines()[-1])
    return node.pvesh(f"/nodes/{node.host}/tasks/{upid}/status")["exitstatus"], out


@everything
def test_a_cluster_is_one(cluster: Pair) -> None:
    old, new = cluster.nodes
    rows = new.pvesh("/cluster/status")
    assert (rows[0]["type"], rows[0]["quorate"]) == ("cluster", 1)
    assert {row["name"]: (row["online"], row["local"]) for row in rows[1:]} == {"kpro5": (1, 1), "kpro6": (1, 0)}
    create(old, 801, "--start 1")
    assert where(cluster, 801) == ("kpro6", "running")
    assert new.pvesh("/nodes/kpro6/lxc/801/config")["hostname"] == "moved", "a call goes on to the node that it names"
    new.run("pvesh create /nodes/kpro6/lxc/801/status/stop")
    assert where(cluster, 801) == ("kpro6", "stopped")
    assert "already exists on node 'kpro6'" in new.run(CREATE.format(vmid=801, more="") + " 2>&1", check=False)
    assert "nodes/kpro5/lxc/801.conf' does not exist" in new.run("pct start 801 2>&1", check=False)
    old.run("pct destroy 801")


@everything
def test_a_container_moves_with_a_restart(cluster: Pair) -> None:
    old, new = cluster.nodes
    create(old, 802, "--start 1")
    old.inside("echo kept > /root/mark; chown 1000:1000 /root/mark", vmid=802)
    assert "only be migrated in restart mode" in old.run("pct migrate 802 kpro5 2>&1", check=False)
    ended, lines = migrate(old, 802, "kpro5")
    assert ended == "OK", lines
    assert where(cluster, 802) == ("kpro5", "running")
    assert new.inside("cat /root/mark; stat -c %u /root/mark", vmid=802).split() == ["kept", "1000"]
    assert old.run("ls /rpool/data | grep -c subvol-802 || true").strip() == "0"
    new.run("pct stop 802 && pct destroy 802")


@everything
def test_a_bind_mount_keeps_a_container_and_a_missing_device_leaves_it_down(cluster: Pair) -> None:
    old, new = cluster.nodes
    old.run("mkdir -p /srv/models; mknod -m 666 /dev/kpro0 c 240 0")
    create(old, 803, "--mp0 /srv/models,mp=/srv/models --dev0 /dev/kpro0,mode=0666 --start 1")
    ended, lines = migrate(old, 803, "kpro5")
    assert ended == "migration aborted"
    assert "cannot migrate local bind mount point 'mp0'" in lines
    assert where(cluster, 803) == ("kpro6", "running"), "it was refused before anything was stopped"

    old.run("pct stop 803; pct set 803 --delete mp0; pct start 803")
    ended, lines = migrate(old, 803, "kpro5")
    assert ended == "migration problems", "the device is not looked at before"
    assert "Device /dev/kpro0 does not exist" in lines
    assert where(cluster, 803) == ("kpro5", "stopped")
    new.run("pct destroy 803")


def move(pair: Pair, vmid: int, *arguments: str, **options: object) -> dict[str, t.Any]:
    """Run the module on the target; return its result."""
    given = json.dumps({"vmid": vmid, **options})
    done = subprocess.run(pair.ansible("ansible", "kpro5", "-m", "kpro.llm.lxc_migrate", "-a", given, *arguments),
                          env=pair.environment, capture_output=True, text=True, check=False)  # fmt: skip
    found = re.search(r"^kpro5 \| (\w+)!? => (\{.*)", done.stdout, re.MULTILINE | re.DOTALL)
    assert found, done.stdout + done.stderr
    return {**json.loads(found[2]), "failed": found[1] == "FAILED"}


MOVES = "pvesh get /nodes/kpro6/tasks --source active --output-format json"


@everything
def test_a_move_outlasts_its_run_and_one_that_was_killed_is_taken_up(cluster: Pair) -> None:
    old, new = cluster.nodes
    old.run("mkdir -p /srv/models")
    create(old, 805, "--tags kpro-llm --mp0 /srv/models,mp=/srv/models")
    cluster.shape("40mbit")
    first = move(cluster, 805, task_timeout_s=5)
    assert first["failed"] and "still runs and was not touched" in first["msg"], first
    assert "is being moved" in str(move(cluster, 805, "--check")["plan"]) or "runs already" in str(move(cluster, 805, "--check")["plan"])
    # Its pvesh is killed, and with it the worker on the other node.
    new.run("for pid in $(pgrep -f 'pvesh create /nodes/kpro[6]/lxc/805/migrate'); do kill -KILL $pid; done; true")
    old.run("for pid in $(pgrep -f 'pvesh create /nodes/kpro[6]/lxc/805/migrate'); do kill -KILL $pid; done; true")
    assert eventually(lambda: json.loads(old.run(MOVES)) == [])
    cluster.shape("none")
    assert "lock: migrate" in old.run("cat /etc/pve/lxc/805.conf") and "shared=1" in old.run("cat /etc/pve/lxc/805.conf")
    refused = move(cluster, 805)
    assert refused["failed"] and "On kpro6: 'pct unlock 805'" in refused["msg"], refused
    old.run("pct unlock 805")
    done = move(cluster, 805)
    assert not done["failed"] and done["moved_from"] == "kpro6", done
    config = new.run("cat /etc/pve/lxc/805.conf")
    assert where(cluster, 805) == ("kpro5", "stopped") and "mp0: /srv/models,mp=/srv/models\n" in config and "lock" not in config, config
    assert new.run("ls -d /rpool/data/subvol-805-*").split() == ["/rpool/data/subvol-805-disk-0"]
    assert move(cluster, 805)["plan"] == []
    new.run("pct destroy 805")


@everything
def test_a_cut_link_brings_a_container_back_and_ends_the_quorum(cluster: Pair) -> None:
    old, new = cluster.nodes
    create(old, 804, "--start 1")
    cluster.shape("20mbit")
    ends: list[str] = []
    thread = threading.Thread(target=lambda: ends.append(migrate(old, 804, "kpro5")[0]))
    carried = cluster.carried_bytes(new)
    thread.start()
    assert eventually(lambda: cluster.carried_bytes(new) - carried > 1024**2)
    cluster.cut()
    assert eventually(lambda: "no quorum" in new.run("pct set 804 --memory 600 2>&1; pvesh create /nodes/kpro5/lxc --vmid 899 --ostemplate x 2>&1", check=False)
                      or new.pvesh("/cluster/status")[0]["quorate"] == 0)  # fmt: skip
    thread.join()
    assert ends == ["migration aborted"]
    cluster.restore()
    cluster.shape("none")
    assert eventually(lambda: new.pvesh("/cluster/status")[0]["quorate"] == 1)
    old.run("pct unlock 804; pct status 804 | grep -q running || pct start 804")
    assert where(cluster, 804) == ("kpro6", "running")
    assert new.run("ls /rpool/data | grep -c 804 || true").strip() == "0", "half a volume is none"
    old.run("pct stop 804 && pct destroy 804")


@everything
def test_a_backup_becomes_a_container_elsewhere(cluster: Pair) -> None:
    old, new = cluster.nodes
    create(old, 805, "--tags kpro-llm --onboot 1 --start 1")
    old.inside("echo kept > /root/mark", vmid=805)
    old.run("pvesh create /nodes/localhost/vzdump --vmid 805 --storage local --mode stop --compress zstd")
    archive = old.run("ls -t /var/lib/vz/dump/vzdump-lxc-805-*.tar.zst | head -n 1").strip()
    trust = "-o HostKeyAlias=kpro6 -o UserKnownHostsFile=/etc/pve/nodes/kpro6/ssh_known_hosts"
    new.run(f"mkdir -p /var/lib/vz/dump && scp -q {trust} root@{old.address}:{archive} {archive}")
    assert "already exists on node 'kpro6'" in new.run(f"pct restore 805 {archive} --storage local-zfs 2>&1", check=False)
    new.run(f"pct restore 806 local:backup/{Path(archive).name} --storage local-zfs --start 1")
    assert new.inside("cat /root/mark", vmid=806).strip() == "kept"
    config = new.pvesh("/nodes/kpro5/lxc/806/config")
    assert (config["tags"], config["onboot"], config["unprivileged"]) == ("kpro-llm", 1, 1)
    new.run("pct stop 806 && pct destroy 806")
    old.run("pct stop 805 && pct destroy 805")
