# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node that the first release has deployed, with its own shipped inventory; that release comes out of the history of this repository.

The engine is the light one, a stand-in, on lane cu13 with both GPUs. Standard library only, and PyYAML.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import resource
import subprocess
import tempfile
import typing as t
from pathlib import Path

import layers
import light_deployment as light
import two_nodes
import yaml
from two_nodes import OLD_KIND, LinkedNode, eventually

import lanes
from plain_node import ROOT, SANDBOX

COMMIT = "417f93f"
HOST = "kpro5"
# How the plugins announce a program that they start on the node, with -vvv.
ROUND_TRIP = re.compile(r"> (?:SSH: )?EXEC ")


@dataclasses.dataclass(frozen=True)
class Run:
    """One deployment.

    :param words: all that was printed, with single blanks.
    :param changed: names of the tasks that changed something.
    :param tasks: how many tasks were run or skipped.
    :param cpu_s: seconds of CPU that the controller needed.
    :param round_trips: programs that were started on the node; only counted where it was asked for.
    """

    words: str
    changed: list[str]
    tasks: int
    cpu_s: float
    round_trips: int

    @property
    def counts(self) -> list[str]:
        return re.findall(r"changed=(\d+)", self.words)


def is_here() -> bool:
    """Tell whether this clone has the history back to the first release."""
    return not subprocess.run(["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=ROOT, check=False, capture_output=True).returncode


def checked_out(folder: Path, commit: str = COMMIT) -> Path:
    """Return a new folder with a commit's files as they were."""
    place = folder / commit
    place.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", place], input=archive, check=True)
    return place


def deploy(code: Path, node: LinkedNode, folder: Path, *inventories: Path, count: bool = False) -> Run:
    """Run the literal command of a checkout with inventories; ``folder`` gets the vars file and the light engine's lock file."""
    tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(code / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
    argv: list[t.Any] = [tools / "ansible-playbook", "deploy_qwen.yml", *(word for path in inventories for word in ("-i", path))]
    argv += ["-e", f"@{_overlay(node, folder)}", *(["-vvv"] if count else [])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=code, env=env, capture_output=True, text=True, check=False, timeout=1200)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    changed, task, tasks = [], "", 0
    for line in done.stdout.splitlines():
        if line.startswith("TASK ["):
            task = line[len("TASK [") :].rpartition("]")[0].rpartition(" : ")[2]
            tasks += 1
        elif line.startswith("changed: ["):
            changed.append(task)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(" ".join((done.stdout + done.stderr).split()), changed, tasks, cpu_s, len(ROUND_TRIP.findall(done.stdout)))


def start(name: str, folder: Path) -> LinkedNode:
    """Start a node that serves what the first release deployed; ``folder`` gets the lock file of the model's commit."""
    image = subprocess.run([SANDBOX, "image-key", "--suite", "trixie"], capture_output=True, text=True, check=True).stdout.strip()
    recipe = hashlib.sha256(Path(__file__).read_bytes() + light.wheel()).hexdigest()[:12]
    node = two_nodes.up(name, HOST, OLD_KIND, "--layer", layers.made("first-release", f"{image}-{recipe}", _provision))
    light.publish(node)
    commit = json.loads(node.run("cat /srv/models/*/.kpro-manifest.json"))["commit"]
    (folder / "models.txt").write_text(f"kpro/tiny-qwen3_5 main {commit}\n", encoding="utf-8")
    assert eventually(lambda: node.inside("systemctl is-active kpro-sglang", check=False).strip() == "active", 120), "the service did not come up"
    return node


def stop(name: str) -> None:
    """Stop the node and remove its disk."""
    subprocess.run([SANDBOX, "down", name], check=True)


def _overlay(node: LinkedNode, folder: Path) -> Path:
    """Write what a sandbox has elsewhere, and the light engine: each release gets it by -e."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    values = {
        **yaml.safe_load((ROOT / "tests/sandbox/kpro5.vars.yml").read_text(encoding="utf-8")),
        "ansible_port": node.port, "sandbox_dir": base, **light.variables(folder),
        "gpu_container__gpus": 2, "sglang_server__tp_size": 2, "hf_model__lock_file": str(folder / "models.txt"),
        # The tiny model has no head to speculate with.
        "sglang_server__profiles": [],
        "gpu_container__network": {"bridge": "vmbr0", "ip": "10.77.0.129/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
    }  # fmt: skip
    path = folder / "overlay.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def _provision(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        node = two_nodes.up(name, HOST, OLD_KIND, "--suite", "trixie")
        light.publish(node)
        first = checked_out(folder)
        deploy(first, node, folder, first / "inventories/kpro5")
        node.run(f"truncate -s 0 {two_nodes.HUB_LOG} 2>/dev/null || true")
