# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves of the deployment between two nodes: apart, in a cluster, from a node that is gone, and interrupted.

On lane cu13 with the light engine, a stand-in, which starts within a second; molecule's scenario `migrate` moves the real one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
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
from two_nodes import VMID, LinkedNode, Pair, eventually

pytestmark = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
KNOWN_ANSWER = light.ANSWER
ADDRESS = {"kpro6": f"10.77.0.{VMID}", "kpro5": prepared_nodes.NEW_ADDRESS}
CLIENT = (Path(__file__).parent / "migration" / "client.py").read_text(encoding="utf-8")
LOG = "/run/client.jsonl"
STARTED_S = 600
UNCHANGED = re.compile(r"^(?:kpro\d|qwen)\S*\s+: ok=\d+\s+changed=(\d+)\s+unreachable=0\s+failed=0", re.MULTILINE)


@contextlib.contextmanager
def prepared(prefix: str, folder: Path, *, cluster: bool = False) -> Iterator[Pair]:
    pair = light.start(f"{prefix}{WORKER}", folder, cluster=cluster)
    try:
        assert eventually(lambda: answer(pair.old), STARTED_S), "the old node serves"
        yield pair
    finally:
        two_nodes.stop(pair)


def key(node: LinkedNode) -> str:
    return node.run(f"lxc-attach -n {VMID} --clear-env -- cat /etc/kpro-llm/api_key 2>/dev/null || true", check=False).strip()


def answer(node: LinkedNode, *, address: str = "") -> str:
    """Return what the model of a node's container answers now, an empty text if it does not."""
    program = CLIENT.partition("while True:")[0] + "print(ask(ADDRESSES[0]))"
    line = f"python3 - {address or ADDRESS[node.host]} {key(node) or '-'} - 2>/dev/null"
    return node.run(line, check=False, stdin=program).strip()


def container(node: LinkedNode) -> dict[str, str]:
    """Return a container's configuration on a node and its state; empty if it is not there."""
    lines = node.run(f"cat /etc/pve/nodes/{node.host}/lxc/{VMID}.conf 2>/dev/null || true").splitlines()
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {**found, "state": node.run(f"pct status {VMID}").split()[-1]} if found else {}


def migrate(pair: Pair, *more: str, source: str = "kpro6") -> str:
    began_s = time.monotonic()
    done = pair.playbook("migrate_qwen", "-e", f"migrate_from={source}", *more, timeout_s=1800)
    print(f"migrate_qwen {' '.join(more)}: {time.monotonic() - began_s:.0f} s")
    # Warnings go to the terminal's other stream.
    return done.stdout + done.stderr


def assert_nothing_left_to_do(pair: Pair) -> None:
    output = pair.playbook("deploy_qwen", timeout_s=1800).stdout
    found = UNCHANGED.findall(output)
    assert found and set(found) == {"0"}, output[-4000:]


def assert_no_key_is_left(pair: Pair) -> None:
    assert "kpro-llm-peer" not in pair.old.run("cat /root/.ssh/authorized_keys")


def assert_one_side_answers(pair: Pair) -> None:
    assert eventually(lambda: any(KNOWN_ANSWER in answer(node) for node in pair.nodes), 120)


def start_client(pair: Pair, secret: str) -> None:
    """Start a client on the old node that knows both addresses; the nodes' networks are alike, so the new one's address gets a way over the link."""
    old, new = pair.nodes
    old.run(f"ip route replace {ADDRESS[new.host]}/32 via {new.address}; cat > /run/client.py", stdin=CLIENT)
    both = ",".join(ADDRESS[node.host] for node in pair.nodes)
    old.run(f"systemd-run -q --unit=client python3 /run/client.py {both} {secret} {LOG}")


def seen_by_the_client(pair: Pair) -> list[dict[str, t.Any]]:
    return [json.loads(line) for line in pair.old.run(f"cat {LOG}").splitlines()]


def test_between_separate_nodes_the_old_one_answers_until_the_new_one_does(tmp_path: Path) -> None:
    with prepared("apart", tmp_path) as pair:
        old, new = pair.nodes
        secret = key(old)
        planned = migrate(pair, "--check", "--diff")
        assert "A new container 129 is made on kpro5; the one on kpro6 answers until the new one does" in planned
        assert not container(new) and container(old)["state"] == "running"
        start_client(pair, secret)
        asked_before = len(new.hub_requests())

        output = migrate(pair)
        assert "the old service answered until the new one did" in output
        assert KNOWN_ANSWER in answer(new)
        assert key(new) == secret, "clients keep their key"
        left = container(old)
        assert (left["state"], left.get("onboot", "0")) == ("stopped", "0")
        assert_no_key_is_left(pair)

        # Model and wheels came from the old node; the hub only said which files there are, with which hashes.
        asked = [str(row["path"]) for row in new.hub_requests()[asked_before:]]
        assert not [path for path in asked if "/resolve/" in path or "/cdn/" in path or path.endswith(".whl")], asked

        # One switch and no wrong answer.
        assert eventually(lambda: good(seen_by_the_client(pair))[-1]["address"] == ADDRESS["kpro5"])
        pair.old.run("systemctl stop client")
        rows = good(seen_by_the_client(pair))
        assert all(KNOWN_ANSWER in row["answer"] for row in rows)
        addresses = [row["address"] for row in rows]
        switches = [(a, b) for a, b in itertools.pairwise(addresses) if a != b]
        assert switches == [(ADDRESS["kpro6"], ADDRESS["kpro5"])], addresses
        gaps = [b["ended"] - a["ended"] for a, b in itertools.pairwise(rows)]
        at = addresses.index(ADDRESS["kpro5"])
        print(f"{len(rows)} answers; longest time between two: {max(gaps):.1f} s, at the switch: {gaps[at - 1]:.1f} s")

        assert_nothing_left_to_do(pair)
        again = migrate(pair)
        assert set(UNCHANGED.findall(again)) == {"0"}, again[-4000:]

        status = pair.playbook("status").stdout
        assert "Container 129 is stopped on kpro6 and stays off at its boot" in status

        leave = pair.playbook("decommission", "-e", "decommission_node=kpro6", "-e", "decommission_driver=true").stdout
        assert "failed=0" in leave
        assert not container(old)
        gone = ["/etc/systemd/system/kpro-nvidia-devnodes.service", "/etc/modprobe.d/kpro-nvidia.conf", "/usr/bin/nvidia-smi"]
        assert old.run(f"ls {' '.join(gone)} 2>/dev/null || true") == ""
        assert old.run("ls /srv/models"), "models go only on request"
        assert KNOWN_ANSWER in answer(new)


def test_the_way_back_is_the_same_command(tmp_path: Path) -> None:
    with prepared("back", tmp_path) as pair:
        secret = key(pair.old)
        migrate(pair)
        pair.write_inventory("kpro6", ("kpro5",), **light.variables(tmp_path))
        migrate(pair, source="kpro5")
        assert KNOWN_ANSWER in answer(pair.old)
        assert (key(pair.old), container(pair.new)["state"]) == (secret, "stopped")
        assert_nothing_left_to_do(pair)


def good(rows: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    return [row for row in rows if row["answer"]]


# Tasks in order of the run: something breaks a moment after one of them has begun.
POINTS = [
    "Choose the way",
    "Look at node, GPUs and driver",
    "Create, change and start the container",
    "Take over the API key",
    "Converge authorities, packages and user",
    "Fill the cache of wheels",
    "Keep the Python environment equal to the lane's lock file",
    "Keep the model complete and verified",
    "Run the service and wait until it answers",
    "Shut the old container down and keep it off, or remove it if that was asked for",
]


@contextlib.contextmanager
def moving(pair: Pair) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Start the move; yield it and the lines that it prints. All its processes are gone afterwards."""
    argv = pair.ansible("ansible-playbook", "kpro.llm.migrate_qwen", "-e", "migrate_from=kpro6")
    with subprocess.Popen(argv, env=pair.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as run:
        assert run.stdout is not None
        try:
            yield run, iter(run.stdout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def come_to(task: str, lines: Iterator[str]) -> None:
    seen = []
    for line in lines:
        seen.append(line)
        if line.startswith("TASK") and task in line:
            time.sleep(0.5)
            return
    raise AssertionError(f"it never came to {task}: {''.join(seen[-60:])}")


def assert_moved(pair: Pair) -> None:
    """The same command completes, whatever was before, and leaves nothing to do."""
    migrate(pair)
    assert KNOWN_ANSWER in answer(pair.new)
    assert container(pair.old)["state"] == "stopped"
    assert_no_key_is_left(pair)
    assert_nothing_left_to_do(pair)


def test_the_controller_is_killed_at_ten_points(tmp_path: Path) -> None:
    with prepared("killed", tmp_path) as pair:
        for point in POINTS:
            with moving(pair) as (_run, lines):
                come_to(point, lines)
            assert_one_side_answers(pair)
        assert_moved(pair)


@pytest.mark.parametrize("victim", ["new", "old"])
def test_a_node_loses_its_power_at_ten_points(tmp_path: Path, victim: str) -> None:
    with prepared(f"power-{victim}", tmp_path) as pair:
        killed = pair.new if victim == "new" else pair.old
        other = pair.old if victim == "new" else pair.new
        for point in POINTS:
            with moving(pair) as (run, lines):
                come_to(point, lines)
                killed.kill()
                output = "".join(lines)
                assert run.wait() != 0 or "moved" in output, output[-4000:]
            # The other side goes on answering if it did; else this one does after its return.
            alone = KNOWN_ANSWER in answer(other)
            killed.up()
            assert alone or eventually(lambda: KNOWN_ANSWER in answer(killed), STARTED_S), point
        assert_moved(pair)


def test_the_link_drops_at_ten_points(tmp_path: Path) -> None:
    with prepared("dropping", tmp_path) as pair:
        with moving(pair) as (run, lines):
            for point in POINTS:
                come_to(point, lines)
                pair.cut()
                time.sleep(3)
                pair.restore()
                assert_one_side_answers(pair)
            output = "".join(lines)
            assert run.wait() == 0, output[-4000:]
        assert_moved(pair)


def test_without_a_link_hub_and_index_are_asked(tmp_path: Path) -> None:
    with prepared("cut", tmp_path) as pair:
        pair.cut()
        output = migrate(pair)
        assert "Not all wheels could be taken over" in " ".join(output.split())
        pair.restore()
        assert_moved(pair)


def test_in_a_cluster_proxmox_moves_it_and_the_gap_is_told(tmp_path: Path) -> None:
    with prepared("joined", tmp_path, cluster=True) as pair:
        secret = key(pair.old)
        before = container(pair.old)
        output = migrate(pair)
        assert "moves from kpro6 to kpro5 in their cluster" in output
        assert re.search(r"about \d+ s without an answer", output)
        assert not container(pair.old)
        moved = container(pair.new)
        assert moved["state"] == "running" and moved["mp0"] == before["mp0"]
        assert KNOWN_ANSWER in answer(pair.new)
        assert key(pair.new) == secret
        assert_nothing_left_to_do(pair)


def test_in_a_cluster_the_same_command_goes_on(tmp_path: Path) -> None:
    with prepared("resumed", tmp_path, cluster=True) as pair:
        secret = key(pair.old)
        for point in ["Announce the gap", "Move the container", "Create, change and start the container", "Run the service and wait until it answers"]:
            with moving(pair) as (_run, lines):
                come_to(point, lines)
            # It is on one node, whole: Proxmox's own task goes on without the controller.
            assert eventually(lambda: sorted(map(bool, map(container, pair.nodes))) == [False, True], STARTED_S)
        migrate(pair)
        assert not container(pair.old)
        assert KNOWN_ANSWER in answer(pair.new)
        assert key(pair.new) == secret
        assert_nothing_left_to_do(pair)


def test_after_proxmoxs_own_migration_the_plain_run_is_the_repair(tmp_path: Path) -> None:
    with prepared("moved", tmp_path, cluster=True) as pair:
        refused = pair.playbook("deploy_qwen", check=False).stdout
        assert "kpro6" in refused and "Nothing was changed" in refused
        pair.old.run(f"pct shutdown {VMID} && pct set {VMID} --delete mp0")
        pair.old.run(f"pvesh create /nodes/kpro6/lxc/{VMID}/migrate --target kpro5")
        pair.playbook("deploy_qwen", timeout_s=1800)
        assert KNOWN_ANSWER in answer(pair.new)
        assert_nothing_left_to_do(pair)


def test_from_a_node_that_is_gone_inventory_and_hub_are_enough(tmp_path: Path) -> None:
    with prepared("lost", tmp_path) as pair:
        pair.old.kill()
        output = migrate(pair)
        assert "kpro6 does not answer: a new container 129 is made on kpro5 from inventory and hub alone" in output
        assert KNOWN_ANSWER in answer(pair.new)
        assert_nothing_left_to_do(pair)
        pair.old.up()
        assert eventually(lambda: container(pair.old).get("state") == "running", STARTED_S)
        refused = pair.playbook("deploy_qwen", check=False).stdout
        assert "129 also runs on kpro6" in refused and "Nothing was changed" in refused
