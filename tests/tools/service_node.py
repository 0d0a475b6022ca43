# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node whose container has GPUs, driver userland, the service user and the light engine: all that the service phase needs.

Standard library only. What is provisioned is kept as a layer, so that it is made once per content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import layers

import lanes
from plain_node import ROOT, SANDBOX, inventory_of, port_of

VMID, OTHER_VMID = 201, 202
PORT = 30000
VERSION = "580.173.02"
ENV = "/opt/kpro-llm/sglang/light"
SCENARIO = "/srv/light/scenario.json"
MODEL = "/srv/models/light"
_LIGHT = ROOT / "tests" / "sandbox" / "engine" / "light"
_INSTALLER = f"sh /srv/kpro-standin/files/driver/NVIDIA-Linux-x86_64-{VERSION}.run --silent --no-x-check"
_DEVICES = """[Unit]
Description=Device nodes of the GPUs, before the guests
Before=pve-guests.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c "modprobe nvidia_uvm && nvidia-modprobe -u -c 0 && nvidia-modprobe -c 0 -c 1 -c 255"
[Install]
WantedBy=multi-user.target
"""


@dataclasses.dataclass(frozen=True)
class ServiceNode:
    """A running node; ``inventory`` names it ``node``, its container ``container``."""

    name: str
    folder: Path
    port: int
    vmid: int = VMID

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.json"

    def run(self, command: str, *, check: bool = True, stdin: str | None = None) -> str:
        """Run a line in the node's shell as root and return its output."""
        done = subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=False, input=stdin)
        if check and done.returncode:
            raise AssertionError(f"{command}: rc {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def inside(self, command: str, *, check: bool = True, stdin: str | None = None, vmid: int = 0) -> str:
        """Run a line in a container's shell as root; it must hold no single quote."""
        assert "'" not in command
        return self.run(f"lxc-attach -n {vmid or self.vmid} --clear-env -- sh -c '{command}'", check=check, stdin=stdin)

    def ansible(self, program: str, *arguments: object) -> list[str]:
        """Return the command of an Ansible program on the newest lane, with this node's inventory."""
        tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
        return [str(tools / program), "-i", str(self.inventory), *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of Ansible programs."""
        return {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}

    def module(self, name: str, host: str = "container", *, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        """Run a module and return its result; ``failed`` is set in it if it failed."""
        argv = self.ansible("ansible", host, "-m", f"kpro.llm.{name}", *(["--check"] if check else []), "-a", json.dumps(options))
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, cwd="/")
        found = re.search(rf"^{host} \| (\w+)!? => (\{{.*)", done.stdout, re.MULTILINE | re.DOTALL)
        assert found, done.stdout + done.stderr
        return {**json.JSONDecoder().raw_decode(found[2])[0], "failed": found[1] in ("FAILED", "UNREACHABLE")}

    def wait_until_up(self, vmid: int = 0) -> None:
        """Wait until a container's systemd has booted."""
        asked = f"lxc-attach -n {vmid or self.vmid} -- systemctl is-system-running 2>/dev/null | grep -Eq 'running|degraded'"
        self.run(f"for i in $(seq 200); do {asked} && exit; sleep 0.2; done; exit 1")

    def reboot(self, *, in_order: bool = True) -> None:
        """Reboot the node, or (not ``in_order``) as after a power cut; returns once it answers again, with its container up."""
        before = self.run("cat /proc/sys/kernel/random/boot_id").strip()
        self.run("systemctl reboot" if in_order else "systemctl reboot --force --force", check=False)
        for _try in range(300):
            time.sleep(0.3)
            answer = self.run("cat /proc/sys/kernel/random/boot_id", check=False).strip()
            if answer and answer != before:
                self.run("systemctl is-system-running --wait", check=False)
                self.run(f"pct status {self.vmid} | grep -q running || pct start {self.vmid}")
                return self.wait_until_up()
        raise AssertionError("the node did not come back")


def layer(folder: Path) -> str:
    """Return the name of the layer on which service nodes stand, made first if it is not there."""
    image = subprocess.run([SANDBOX, "image-key"], capture_output=True, text=True, check=True).stdout.strip()
    recipe = "".join((inspect.getsource(_provision), inspect.getsource(_container), _DEVICES, _INSTALLER, MODEL))
    return layers.made("service", f"{image}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}", lambda name: _provision(up(name, folder)))


def start(name: str, folder: Path) -> ServiceNode:
    """Start a node, from the layer if there is one, and put the light engine of this checkout into its container."""
    key = layer(folder)
    # A node that an interrupted run left may stand on an older layer.
    subprocess.run([SANDBOX, "down", name], check=False, capture_output=True)
    node = up(name, folder, "--layer", key)
    node.run(f"pct status {VMID} | grep -q running || pct start {VMID}")
    node.wait_until_up()
    put_engine(node)
    return node


def stop(node: ServiceNode) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", node.name], check=True)


def put_engine(node: ServiceNode, env: str = ENV, version: str = "0.5.23") -> None:
    """Put the light engine into the container as a Python environment."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, _LIGHT / "install", f"{folder}/{Path(env).name}", "--version", version], check=True)
        pack = subprocess.Popen(["tar", "-C", folder, "--owner=0", "--group=0", "-cf", "-", Path(env).name], stdout=subprocess.PIPE)
        line = f"lxc-attach -n {node.vmid} -- sh -c 'mkdir -p {Path(env).parent} && rm -rf {env} && tar -C {Path(env).parent} -xf -'"
        subprocess.run([SANDBOX, "ssh", node.name, "--", line], stdin=pack.stdout, check=True)
        assert pack.wait() == 0


def up(name: str, folder: Path, *options: str, vmid: int = VMID) -> ServiceNode:
    """Start a node with nothing on it but what the image or a layer has."""
    subprocess.run([SANDBOX, "up", name, *options], check=True)
    status = json.loads(subprocess.run([SANDBOX, "status", name, "--json"], capture_output=True, text=True, check=True).stdout)
    node = ServiceNode(name, folder, port_of(status), vmid)
    inventory: dict[str, t.Any] = inventory_of(node.port)
    inventory["all"]["hosts"]["container"].update(pct_vmid=vmid, proxmox_vmid=vmid)
    node.inventory.write_text(json.dumps(inventory), encoding="utf-8")
    return node


def _provision(node: ServiceNode) -> None:
    # By the stand-in's own installer: how a real node gets its driver is the business of other tests.
    node.run(
        f"apt-get update -qq && apt-get install -y -qq proxmox-headers-$(uname -r) >/dev/null; {_INSTALLER} --dkms --kernel-module-type=open --disable-nouveau"
    )
    node.run("cat > /etc/systemd/system/devices-of-gpus.service && systemctl enable --now devices-of-gpus", stdin=_DEVICES)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: _container(node, *each), ((VMID, "service-ct"), (OTHER_VMID, "other-ct"))))
    node.run(f"lxc-attach -n {VMID} --clear-env -- tee /root/driver.run < /srv/kpro-standin/files/driver/NVIDIA-Linux-x86_64-{VERSION}.run >/dev/null")
    node.inside("sh /root/driver.run --silent --no-x-check --no-kernel-modules && rm /root/driver.run && nvidia-smi -L")
    node.inside(f"mkdir -p {MODEL} /srv/light; echo {{}} > {MODEL}/config.json; chmod 0777 /srv/light")
    node.run(f"pct stop {OTHER_VMID}")


def _container(node: ServiceNode, vmid: int, name: str) -> None:
    devices = " ".join(f"--dev{number} /dev/{device},mode=0666" for number, device in enumerate(("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")))
    node.run(
        f"pvesh create /nodes/localhost/lxc --vmid {vmid} --hostname {name} --unprivileged 1 --features nesting=1 --memory 1024"
        " --ostemplate local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst --rootfs local-zfs:2"
        f" --net0 name=eth0,bridge=vmbr0,ip=10.77.0.{vmid}/24,gw=10.77.0.1 --nameserver 10.0.2.3 {devices} --onboot {int(vmid == VMID)} --start 1"
    )
    node.wait_until_up(vmid)
    user = "useradd --system --create-home --home-dir /var/lib/kpro-sglang sglang"
    node.inside(f"apt-get update -qq && apt-get install -y -qq python3 >/dev/null; {user}", vmid=vmid)
