# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node with GPUs in any state, and modules and the role gpu_node run against it as an operator does."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import typing as t
from pathlib import Path

from foretold import Outcome, Roles, environment, tools

from plain_node import SANDBOX, inventory_of, port_of

VERSION, NEWER = "580.173.02", "580.178.04"
FILES = "http://10.77.0.1:8090/files"
URL = f"{FILES}/driver/NVIDIA-Linux-x86_64-{{version}}.run"
CONFIG = "/etc/kpro-standin/gpu.json"

# What a run that stops must leave as it is. Not our notes of what was downloaded, nor what runs by itself.
STATE = """
find /etc /usr/src /boot /lib/modules /var/lib/dkms /var/lib/nvidia /usr/bin /usr/lib/x86_64-linux-gnu ! -path '/etc/pve*' \\
    \\( -type d -printf '%p %m\\n' -o -printf '%p %y %m %s %l %T@\\n' \\) 2>/dev/null | grep -v '^/var/lib/nvidia [0-9]*$' | sort
ls -ln --time-style=+ /dev/nvidia* 2>/dev/null
find /etc/pve/lxc /etc/pve/qemu-server -name '*.conf' -exec sha256sum {} + 2>/dev/null
dkms status; lsmod | grep -E '^(nvidia|nouveau|vfio)'; dpkg-query -W
systemctl list-unit-files --no-legend 'nvidia*' 'kpro-nvidia*'; systemctl list-units --no-legend --plain 'nvidia*' 'kpro-nvidia*'; true
"""


@dataclasses.dataclass(frozen=True)
class GpuNode(Roles):
    """The node."""

    def write(self, path: str, text: str) -> None:
        subprocess.run([SANDBOX, "ssh", self.name, "--", f"mkdir -p $(dirname {path}) && cat > {path}"], input=text, text=True, check=True)

    def reset(self) -> None:
        """Give the node a new disk."""
        subprocess.run([SANDBOX, "reset", self.name], check=True)

    # -- the stand-in's choices ----------------------------------------------------------------------------------------------------------

    def configure(self, **changes: t.Any) -> None:
        """Change the choices of the stand-in; what is loaded shows them at once, what concerns the boot needs one."""
        choices = {**json.loads(self.run(f"cat {CONFIG}")), **changes}
        self.write(CONFIG, json.dumps(choices))
        self.run("/usr/lib/kpro-standin/gpu/kernel.py refresh")

    def gpus(self, **changes: t.Any) -> list[dict[str, t.Any]]:
        """Return the stand-in's GPUs, the first one with changes."""
        first, *rest = json.loads(self.run(f"cat {CONFIG}"))["gpus"]
        return [{**first, **changes}, *rest]

    def fingerprint(self) -> str:
        """The fingerprint of the key that signs the stand-in's package repository."""
        return self.run("cat /srv/kpro-standin/files/cuda-repo/fingerprint").strip()

    # -- modules -------------------------------------------------------------------------------------------------------------------------

    def module(self, name: str, host: str = "node", check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        """Run a module and return its result; ``failed`` is set in it if it failed."""
        argv = [self.tools / "ansible", host, "-i", self.inventory, "-m", f"kpro.llm.{name}", *(["--check"] if check else [])]
        argv += ["-a", json.dumps(arguments)] if arguments else []
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False, cwd="/")
        found = re.search(rf"^{host} \| (\w+)!? => (\{{.*?^\}})", done.stdout, re.MULTILINE | re.DOTALL)
        assert found, done.stdout + done.stderr
        return {**json.loads(found[2]), "failed": found[1] == "FAILED"}

    def driver(self, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        return self.module("nvidia_driver", check=check, **{"scope": "node", "version": VERSION, "url": URL, **arguments})

    def info(self, host: str = "node") -> dict[str, t.Any]:
        found = self.module("gpu_info", host)
        assert not found["failed"], found
        return found

    # -- the role ------------------------------------------------------------------------------------------------------------------------

    def converge(self, *arguments: str, version: str = VERSION, **variables: t.Any) -> Outcome:
        """Run the role; ``arguments`` go to ansible-playbook."""
        declared = {
            "gpu_node__driver_version": version,
            "gpu_node__driver_url": URL.replace("{version}", version),
            "gpu_node__cuda_repository_url": f"{FILES}/cuda-repo/",
            "gpu_node__cuda_repository_key_url": f"{FILES}/cuda-repo/kpro-standin.pub",
            **{f"gpu_node__{name}": value for name, value in variables.items()},
        }
        return self.play("gpu_node/converge.yml", "Keep driver, device nodes and persistence daemon", arguments, declared)

    def state(self) -> str:
        """Everything that a refused run must leave as it is."""
        return self.run(STATE)


def start(name: str, suite: str, folder: Path) -> GpuNode:
    """Start a node; :func:`stop` takes it away."""
    # Files of tests may run side by side, each with a node of its own.
    name = f"{name}-{suite}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    subprocess.run([SANDBOX, "up", name, "--suite", suite], check=True)
    return attach(name, folder)


def attach(name: str, folder: Path) -> GpuNode:
    """Return a node that runs."""
    status = json.loads(subprocess.run([SANDBOX, "status", name, "--json"], capture_output=True, text=True, check=True).stdout)
    inventory = folder / f"{name}.json"
    inventory.write_text(json.dumps(inventory_of(port_of(status))), encoding="utf-8")
    return GpuNode(name, inventory, tools())


def stop(node: GpuNode) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", node.name], check=True)
