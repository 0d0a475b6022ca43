# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node with one plain container: what tests and benchmarks of the connection need. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = ROOT / "tests" / "sandbox" / "sandbox"
VMID = 201
HOSTNAME = "integration-ct"


@dataclasses.dataclass(frozen=True)
class Node:
    """A running sandbox node: ``inventory`` names it ``node`` and its container ``container``."""

    name: str
    inventory: Path

    def run(self, command: str) -> str:
        """Run a line in the node's shell as root and return its output."""
        return subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=True).stdout


def start(name: str, suite: str, folder: Path) -> Node:
    """Start a node with a running container and write its inventory into ``folder``; :func:`stop` takes it away."""
    subprocess.run([SANDBOX, "up", name, "--suite", suite], check=True)
    status = json.loads(subprocess.run([SANDBOX, "status", name, "--json"], capture_output=True, text=True, check=True).stdout)
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps(inventory_of(port_of(status))), encoding="utf-8")
    node = Node(name, inventory)
    node.run(
        f"pvesh create /nodes/localhost/lxc --vmid {VMID} --hostname {HOSTNAME} --unprivileged 1 --features nesting=1 --memory 512"
        " --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --rootfs local-zfs:2"
        " --net0 name=eth0,bridge=vmbr0,ip=10.77.0.201/24,gw=10.77.0.1 --nameserver 10.0.2.3 --start 1"
        f" && for i in $(seq 100); do lxc-attach -n {VMID} -- systemctl is-system-running >/dev/null 2>&1 && break; sleep 0.1; done"
    )
    node.run(f"lxc-attach -n {VMID} --clear-env -- sh -c 'apt-get update -qq && apt-get install -y -qq python3-minimal >/dev/null'")
    return node


def stop(name: str) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", name], check=True)


def port_of(status: object) -> int:
    """Return the SSH port from the answer of ``sandbox status --json``."""
    found = status[0] if isinstance(status, list) else status
    assert isinstance(found, dict)
    return int(found["port"])


def inventory_of(port: int) -> dict[str, object]:
    """Return an inventory with the hosts ``node`` and ``container``."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    variables = {
        "ansible_host": "127.0.0.1",
        "ansible_port": port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": f"{base}/ssh/id_ed25519",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={base}/ssh/known_hosts -o IdentitiesOnly=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    container = {"ansible_connection": "kpro.llm.pct", "pct_vmid": VMID, "pct_node": "node", "proxmox_vmid": VMID, "container_hostname": HOSTNAME}
    return {"all": {"vars": variables, "hosts": {"node": {}, "container": container}}}
