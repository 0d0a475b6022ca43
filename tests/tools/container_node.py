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

import lanes
from plain_node import ROOT, SANDBOX, inventory_of, port_of

VMID = 210
TEMPLATE = "debian-12-standard_12.12-1_amd64.tar.zst"
ROUND_TRIP = r"> (?:SSH: )?EXEC "
MOST_ROUND_TRIPS = 4  # of the container phase when there is nothing to do
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
class Outcome:
    """What one run of the playbook said."""

    rc: int
    result: dict[str, t.Any]
    message: str
    diff: str
    output: str

    @property
    def plan(self) -> list[str]:
        assert "plan" in self.result, self.output
        return list(self.result["plan"])

    @property
    def notes(self) -> str:
        return " | ".join(self.result.get("notes") or [])


@dataclasses.dataclass
class World:
    """The node."""

    name: str
    inventory: Path
    suite: str
    api_port: int
    gpus: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    round_trips: list[int] = dataclasses.field(default_factory=list)

    @property
    def pve(self) -> int:
        """Major release that the node's Proxmox stand-in plays."""
        return {"trixie": 9, "bookworm": 8}[self.suite]

    def run(self, command: str, check: bool = True) -> str:
        done = subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

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
        tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_PIPELINING": "1"}
        playbook = ROOT / "tests/integration/container_states/converge.yml"
        argv = [tools / "ansible-playbook", playbook, "-i", self.inventory, "--diff", "-v", *arguments, "-e", json.dumps(declared)]
        done = subprocess.run(argv, cwd="/", env=env, capture_output=True, text=True, check=False)
        return read_output(done.returncode, done.stdout + done.stderr)

    def over_https(self, certificate: Path, **options: t.Any) -> dict[str, t.Any]:
        """Run the module on this machine, through proxmoxer and the node's API; return its result, with ``failed`` in it."""
        tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
        given = {"vmid": VMID, "node": self.run("hostname -s").strip(), "api_host": "127.0.0.1", "api_port": self.api_port, "api_ca_file": str(certificate)}
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
        argv = [tools / "ansible", "localhost", "-m", "kpro.llm.lxc_container", "-e", f"ansible_python_interpreter={tools / 'python'}"]
        done = subprocess.run([*argv, "-a", json.dumps({**given, **options})], cwd="/", env=env, capture_output=True, text=True, check=False)
        found = re.search(r"^localhost \| (\w+)!? => (\{.*)", done.stdout, re.MULTILINE | re.DOTALL)
        assert found, done.stdout + done.stderr
        return {**json.loads(found[2]), "failed": found[1] == "FAILED"}

    def as_foretold(self, **variables: t.Any) -> Outcome:
        """Print the plan by ``--check --diff``, run it, and run again: the same plan, nothing touched before, nothing left after."""
        before = self.state()
        foretold = self.converge("--check", **variables)
        assert foretold.rc == 0, foretold.output
        assert self.state() == before
        done = self.converge(**variables)
        assert done.rc == 0, done.output
        assert (done.plan, done.diff) == (foretold.plan, foretold.diff), foretold.output + done.output
        second = self.converge("-vvv", **variables)
        assert (second.rc, second.plan, second.result["changed"]) == (0, [], False), second.output
        trips = len(re.findall(ROUND_TRIP, second.output))
        assert 1 <= trips <= MOST_ROUND_TRIPS, trips
        self.round_trips.append(trips)
        return done

    def refused(self, *words: str, **variables: t.Any) -> Outcome:
        """Run what must end with these words, in check mode and for real, with nothing changed."""
        before = self.state()
        for arguments in (("--check",), ()):
            done = self.converge(*arguments, **variables)
            assert done.rc == 2, done.output
            missing = [word for word in words if word not in done.message]
            assert not missing, (missing, done.message)
            assert self.state() == before
        return done


def read_output(rc: int, output: str) -> Outcome:
    """Return what a playbook printed, apart."""
    task = output.partition("Create, change and start the container] ")[2].partition("\nTASK [")[0]
    found = re.search(r"^(?:ok|changed|fatal): \[[^\]]+\]:?.*?=> (\{\n.*?^\}|\{[^\n]*\})$", task, re.MULTILINE | re.DOTALL)
    messages = [json.loads(text).get("msg", "") for text in re.findall(r"^fatal: .*?=> (\{.*\})$", output, re.MULTILINE)]
    diff = re.search(r"^--- before.*?(?=^(?:changed|ok|fatal): )", task, re.MULTILINE | re.DOTALL)
    return Outcome(rc, json.loads(found[1]) if found else {}, str(messages[-1]) if messages else "", diff[0] if diff else "", output)


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
    world = World(name, inventory, suite, api_port)
    world.run(LOAD_DRIVER)
    world.gpus.extend(json.loads(world.run("cat /etc/kpro-standin/gpu.json"))["gpus"])
    return world


def stop(world: World) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", world.name], check=True)
