# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node with GPUs in any state, and modules and the role gpu_node run against it as an operator does."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import subprocess
import time
import typing as t
from pathlib import Path

import lanes
from plain_node import ROOT, SANDBOX, inventory_of, port_of

VERSION, NEWER = "580.173.02", "580.178.04"
FILES = "http://10.77.0.1:8090/files"
URL = f"{FILES}/driver/NVIDIA-Linux-x86_64-{{version}}.run"
CONFIG = "/etc/kpro-standin/gpu.json"
ROUND_TRIP = r"> (?:SSH: )?EXEC "

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
class Outcome:
    """What one run of the role said.

    :param driver: result of its task with nvidia_driver, empty if it did not come to that.
    """

    rc: int
    driver: dict[str, t.Any]
    diff: str
    message: str
    output: str

    @property
    def plan(self) -> list[str]:
        assert "plan" in self.driver, self.output
        return list(self.driver["plan"])


@dataclasses.dataclass(frozen=True)
class GpuNode:
    """The node."""

    name: str
    inventory: Path
    tools: Path

    def run(self, command: str, check: bool = True) -> str:
        done = subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        subprocess.run([SANDBOX, "ssh", self.name, "--", f"mkdir -p $(dirname {path}) && cat > {path}"], input=text, text=True, check=True)

    def reset(self) -> None:
        """Give the node a new disk."""
        subprocess.run([SANDBOX, "reset", self.name], check=True)

    def reboot(self) -> None:
        before = self.run("cat /proc/sys/kernel/random/boot_id").strip()
        subprocess.run([SANDBOX, "ssh", self.name, "--", "systemctl reboot"], capture_output=True, check=False)
        for _unused in range(600):
            time.sleep(0.2)
            asked = [SANDBOX, "ssh", self.name, "--", "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.stdout.strip() and done.stdout.split()[0] != before:
                return
        raise AssertionError("the node did not come back")

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
        done = subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False, cwd="/")
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
        playbook = ROOT / "tests/integration/gpu_node/converge.yml"
        argv = [self.tools / "ansible-playbook", playbook, "-i", self.inventory, "--diff", "-v", *arguments, "-e", json.dumps(declared)]
        done = subprocess.run(argv, cwd="/", env=_environment(), capture_output=True, text=True, check=False)
        return read_output(done.returncode, done.stdout + done.stderr)

    def state(self) -> str:
        """Everything that a refused run must leave as it is."""
        return self.run(STATE)

    def as_foretold(self, *, rc: int = 0, **variables: t.Any) -> Outcome:
        """Print the plan by ``--check --diff``, run it, and run again: the same plan, nothing touched before, nothing left after.

        :param rc: how both real runs end (2: a reboot is asked for).
        """
        before = self.state()
        foretold = self.converge("--check", **variables)
        assert foretold.rc == 0, foretold.output
        assert difference(before, self.state()) == ""
        done = self.converge(**variables)
        assert done.rc == rc, done.output
        assert (done.plan, done.diff) == (foretold.plan, foretold.diff), foretold.output + done.output
        second = self.converge(**variables)
        assert (second.rc, second.plan, second.driver["changed"]) == (rc, [], False), second.output
        return done

    def refused(self, *words: str, **variables: t.Any) -> Outcome:
        """Run what must end with these words, in check mode and for real, with nothing changed."""
        before = self.state()
        for arguments in (("--check",), ()):
            done = self.converge(*arguments, **variables)
            assert done.rc == 2, done.output
            missing = [word for word in words if word not in done.message]
            assert not missing, (missing, done.message)
            assert difference(before, self.state()) == ""
        return done


def difference(before: str, after: str) -> str:
    """Return the lines that differ."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))


def read_output(rc: int, output: str) -> Outcome:
    """Return what a playbook printed, apart."""
    # After a reboot the task runs again; the last one counts.
    task = output.rpartition("Keep driver, device nodes and persistence daemon] ")[2].partition("\nTASK [")[0]
    found = re.search(r"^(?:ok|changed|fatal): \[[^\]]+\]:?.*?=> (\{.*?\}$|\{$.*?^\})", task, re.MULTILINE | re.DOTALL)
    diff = re.search(r"^--- before.*?(?=^(?:changed|ok|fatal): )", task, re.MULTILINE | re.DOTALL)
    messages = [json.loads(text).get("msg", "") for text in re.findall(r"^fatal: .*?=> (\{.*\})$", output, re.MULTILINE)]
    # Progress is printed between the diff and the result.
    shown = re.sub(r"^  node: .*\n", "", diff[0], flags=re.MULTILINE) if diff else ""
    return Outcome(rc, json.loads(found[1]) if found else {}, shown, str(messages[-1]) if messages else "", output)


def _environment() -> dict[str, str]:
    return {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_PIPELINING": "1"}


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
    return GpuNode(name, inventory, lanes.environment(lanes.available()[-1], "dev") / "bin")


def stop(node: GpuNode) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", node.name], check=True)
