# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node whose driver is loaded, and the role gpu_container run against it as an operator does: by ansible-playbook."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import typing as t
from pathlib import Path

from foretold import Outcome, Roles, environment, tools

from plain_node import SANDBOX, inventory_of, port_of

VMID = 210
TEMPLATE = "debian-12-standard_12.12-1_amd64.tar.zst"
DEVICES = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]

# The node as its own phase leaves it, without the minute which that takes: module loaded, device nodes made.
LOAD_DRIVER = """
set -e
python3 - <<'END'
import json, os, pathlib
path = pathlib.Path("/var/lib/kpro-standin/gpu/modules.json")
path.write_text(json.dumps({os.uname().release: {"version": "580.173.02", "flavour": "open"}}))
END
modprobe nvidia && modprobe nvidia-uvm
make() { test -c "$1" || { rm -f "$1"; mknod -m 666 "$1" c "$2" "$3"; }; }
uvm=$(awk '$2 == "nvidia-uvm" {print $1}' /proc/devices)
make /dev/nvidia0 195 0; make /dev/nvidia1 195 1; make /dev/nvidiactl 195 255; make /dev/nvidia-uvm $uvm 0; make /dev/nvidia-uvm-tools $uvm 1
"""

# What a person does by hand: a server that has the GPU open and outlives its login. O_PATH opens a node without a driver behind it.
BY_HAND = (
    "mkdir -p /root/sglang && cat > /root/sglang/launch_server.py <<'END'\n"
    "import os, time\n"
    "handle = os.open('/dev/nvidia0', os.O_PATH)\n"
    "time.sleep(3600)\n"
    "END\n"
    "cd /root/sglang && nohup python3 launch_server.py --api-key secret-of-a-person >/root/sglang/server.log 2>&1 </dev/null &"
)


@dataclasses.dataclass(frozen=True)
class World(Roles):
    """The node.

    :param suite: the Debian release.
    :param api_port: port of this machine that leads to Proxmox's API.
    :param gpus: the node's, as its own phase reports them.
    """

    suite: str
    api_port: int
    gpus: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)

    @property
    def pve(self) -> int:
        """Major release that the node's Proxmox stand-in plays."""
        return {"trixie": 9, "bookworm": 8}[self.suite]

    def inside(self, command: str, check: bool = True, vmid: int = VMID) -> str:
        quoted = command.replace("'", "'\\''")
        return self.run(f"lxc-attach -n {vmid} --clear-env -- sh -c '{quoted}'", check)

    def config(self, vmid: int = VMID) -> str:
        return self.run(f"cat /etc/pve/lxc/{vmid}.conf")

    def write_config(self, content: str, vmid: int = VMID) -> None:
        subprocess.run([SANDBOX, "ssh", self.name, "--", f"cat > /etc/pve/lxc/{vmid}.conf"], input=content, text=True, check=True)

    def state(self) -> str:
        """Everything that a refused run must leave as it is."""
        return self.run(
            "cat /etc/pve/nodes/*/lxc/*.conf; ls -lnR /srv /etc/pve/nodes; ls /var/lib/vz/template/cache; lxc-ls --running;"
            " for id in $(lxc-ls --running); do lxc-info -n $id -pH; done; true"
        )

    def add_raw(self, *lines: str) -> None:
        """Write raw lines into the file as a person does, before any other section."""
        current, mark, rest = self.config().partition("\n[")
        self.write_config(current.rstrip("\n") + "\n" + "\n".join(lines) + "\n" + mark + rest)

    def init_pid(self) -> str:
        """Who the container's first process is: another one after a restart."""
        return self.run(f"lxc-info -n {VMID} -pH").strip()

    def converge(self, *arguments: str, **variables: t.Any) -> Outcome:
        """Run the role; ``arguments`` go to ansible-playbook."""
        declared: dict[str, t.Any] = {
            "gpu_container__vmid": VMID,
            "gpu_container__hostname": "states",
            "gpu_container__template": TEMPLATE,
            "gpu_container__storage": "local-zfs",
            "gpu_container__rootfs_gib": 2,
            "gpu_container__cores": 1,
            "gpu_container__memory_mib": 512,
            "gpu_container__network": {"bridge": "vmbr0", "ip": "10.77.0.210/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
            "gpu_container__gpus": 1,
            "gpu_container__node_gpus": self.gpus,
            "gpu_container__onboot": False,
            "gpu_container__mounts": [{"source": "/srv/models", "target": "/srv/models"}],
            **{f"gpu_container__{name}": value for name, value in variables.items()},
        }
        return self.play("container_states/converge.yml", "Create, change and start the container", arguments, declared)

    def over_https(self, certificate: Path, **options: t.Any) -> dict[str, t.Any]:
        """Run the module on this machine, through proxmoxer and the node's API; return its result, with ``failed`` in it."""
        given = {"vmid": VMID, "node": self.run("hostname -s").strip(), "api_host": "127.0.0.1", "api_port": self.api_port, "api_ca_file": str(certificate)}
        argv = [self.tools / "ansible", "localhost", "-m", "kpro.llm.lxc_container", "-e", f"ansible_python_interpreter={self.tools / 'python'}"]
        done = subprocess.run([*argv, "-a", json.dumps({**given, **options})], cwd="/", env=environment(), capture_output=True, text=True, check=False)
        found = re.search(r"^localhost \| (\w+)!? => (\{.*)", done.stdout, re.MULTILINE | re.DOTALL)
        assert found, done.stdout + done.stderr
        return {**json.loads(found[2]), "failed": found[1] == "FAILED"}


def start(suite: str, folder: Path) -> World:
    """Start a node with a loaded driver and its API on a port of this machine; :func:`stop` takes it away."""
    name = f"states-{suite}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        api_port = free.getsockname()[1]
    subprocess.run([SANDBOX, "up", name, "--suite", suite, "--forward", f"{api_port}:8006"], check=True)
    status = json.loads(subprocess.run([SANDBOX, "status", name, "--json"], capture_output=True, text=True, check=True).stdout)
    inventory = folder / "hosts.json"
    hosts = inventory_of(port_of(status))
    inventory.write_text(json.dumps(hosts), encoding="utf-8")
    world = World(name, inventory, tools(), suite, api_port)
    world.run(LOAD_DRIVER)
    world.gpus.extend(json.loads(world.run("cat /etc/kpro-standin/gpu.json"))["gpus"])
    return world


def stop(world: World) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", world.name], check=True)
