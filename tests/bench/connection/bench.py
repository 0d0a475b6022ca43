#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cost of a no-op task: plain pipelined ssh to the node, kpro.llm.pct by lxc-attach and by pct exec, and community.proxmox.proxmox_pct_remote.

    bench.py [--rounds 5] [--tasks 12]          starts a sandbox node of its own (root)
    bench.py --deployed inventories/sandbox     round trips of a no-op deploy_qwen.yml, where one is deployed (bin/try)

The connections are interleaved within each round and compared as ratios; a task's cost is the difference between a play of
many no-op tasks and a play of one, so that the start of Ansible drops out. The peer comes out of the PyPI package
`ansible`. `pct exec` gets the start-up time that Proxmox's own has (0.65 s, measured on an idle machine of two cores).
Standard library only; the tools come from tests/requirements/bench-py*.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import lanes
import plain_node

# How the plugins announce a program that they start on the node, with -vvv.
ROUND_TRIP = r"> (?:SSH: )?EXEC "
PEER_VERSION = "14.5.0"  # of the PyPI package `ansible`; it carries community.proxmox 2.0.0
CONNECTIONS: dict[str, dict[str, object]] = {
    "ssh": {"host": "node", "ansible_connection": "ansible.builtin.ssh", "ansible_pipelining": True},
    "pct, lxc-attach": {"host": "container", "pct_entry": "lxc-attach"},
    "pct, pct exec": {"host": "container", "pct_entry": "pct"},
    "proxmox_pct_remote": {"host": "container", "ansible_connection": "community.proxmox.proxmox_pct_remote"},
}


def playbook(host: str, tasks: int) -> list[dict[str, object]]:
    """A play of no-op module calls."""
    stat = {"name": "Look at a folder", "ansible.builtin.stat": {"path": "/etc"}}
    return [{"name": "No-op tasks", "hosts": host, "gather_facts": False, "tasks": [stat] * tasks}]


def fetch_peer(folder: Path, tools: Path) -> Path:
    """Unpack community.proxmox from the wheel of `ansible` and return the collections path."""
    download = [tools / "python", "-m", "pip", "download", "-qq", "--no-deps", "--dest", folder, f"ansible=={PEER_VERSION}"]
    subprocess.run(download, check=True)
    with zipfile.ZipFile(next(folder.glob("ansible-*.whl"))) as wheel:
        wheel.extractall(folder / "peer", [name for name in wheel.namelist() if name.startswith("ansible_collections/community/proxmox/")])
    return folder / "peer"


class Bench:
    """Runs plays over one connection or another and times them."""

    def __init__(self, inventory: Path, folder: Path, tools: Path, peer: Path) -> None:
        self._inventory = inventory
        self._folder = folder
        self._playbook_program = tools / "ansible-playbook"
        # The peer reads the home's known_hosts whatever the SSH options say.
        (folder / ".ssh").mkdir(mode=0o700)
        shutil.copy(Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox") / "ssh" / "known_hosts", folder / ".ssh")
        self._env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": f"{lanes.ROOT / 'collections'}:{peer}", "HOME": str(folder)}

    def seconds(self, name: str, tasks: int) -> float:
        """Wall time of a play of ``tasks`` no-op tasks."""
        started = time.monotonic()
        self._play(name, tasks, [])
        return time.monotonic() - started

    def round_trips(self, name: str, tasks: int) -> float:
        """Programs started on the node for each task, from the plugins' own verbose output."""
        found = {}
        for count in (1, tasks):
            output = self._play(name, count, ["-vvv"])
            found[count] = len(re.findall(ROUND_TRIP, output))
        return (found[tasks] - found[1]) / (tasks - 1)

    def _play(self, name: str, tasks: int, options: list[str]) -> str:
        variables = {key: value for key, value in CONNECTIONS[name].items() if key != "host"}
        path = self._folder / f"play-{tasks}.yml"
        path.write_text(json.dumps(playbook(str(CONNECTIONS[name]["host"]), tasks)), encoding="utf-8")
        argv = [self._playbook_program, path, "-i", self._inventory, "-e", json.dumps(variables), *options]
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{name}: the play failed\n{done.stdout}{done.stderr}")
        return done.stdout


def deployed(inventory: Path, tools: Path) -> None:
    """Print the round trips of a deployment that has nothing to do."""
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(lanes.ROOT / "collections")}
    argv = [tools / "ansible-playbook", "deploy_qwen.yml", "-i", inventory, "-vvv"]
    done = subprocess.run(argv, cwd=lanes.ROOT, env=env, capture_output=True, text=True, check=False)
    changed = sum(int(number) for number in re.findall(r"changed=(\d+)", done.stdout))
    if done.returncode != 0 or changed:
        sys.exit(f"this is no no-op run: exit code {done.returncode}, changed={changed}")
    print(f"round trips of a no-op deploy_qwen.yml: {len(re.findall(ROUND_TRIP, done.stdout))} (promised: at most 40)")


def compare(node: plain_node.Node, folder: Path, tools: Path, rounds: int, tasks: int) -> None:
    """Print the cost of a task over each connection."""
    bench = Bench(node.inventory, folder, tools, fetch_peer(folder, tools))
    costs: dict[str, list[float]] = {connection: [] for connection in CONNECTIONS}
    for connection in CONNECTIONS:
        bench.seconds(connection, 1)
    for _round in range(rounds):
        for connection, found in costs.items():
            many, one = bench.seconds(connection, tasks), bench.seconds(connection, 1)
            found.append((many - one) / (tasks - 1))
    print(f"{'connection':20} {'round trips':>11} {'s/task (median)':>16} {'min':>7} {'max':>7} {'x ssh':>7} {'x lxc-attach':>13}")
    for connection, found in costs.items():
        to_ssh, to_ours = (statistics.median(a / b for a, b in zip(found, costs[base], strict=True)) for base in ("ssh", "pct, lxc-attach"))
        row = f"{bench.round_trips(connection, tasks):11.1f} {statistics.median(found):16.3f} {min(found):7.3f} {max(found):7.3f} {to_ssh:7.2f} {to_ours:13.2f}"
        print(f"{connection:20} {row}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--deployed", type=Path, metavar="INVENTORY")
    chosen = parser.parse_args()
    # The peer's wheel wants Python 3.12; the newest lane has it.
    tools = lanes.environment(lanes.available()[-1], "bench") / "bin"
    if chosen.deployed:
        return deployed(chosen.deployed, tools)
    with tempfile.TemporaryDirectory() as name:
        try:
            node = plain_node.start("bench", "trixie", Path(name))
            node.run("echo '{\"startup_delay_s\": 0.65}' > /etc/kpro-standin/pve.json")
            compare(node, Path(name), tools, chosen.rounds, chosen.tasks)
        finally:
            plain_node.stop("bench")
    return None


if __name__ == "__main__":
    main()
