# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deployment of the first release is run again with today's code: with its own shipped inventory, and with every variable of then set.

The engine is the light one, a stand-in, on lane cu13 with both GPUs. The first release comes out of the history of this repository.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import layers
import light_deployment as light
import two_nodes
from two_nodes import OLD_KIND, LinkedNode, eventually

import lanes
from plain_node import ROOT, SANDBOX

FIRST_RELEASE = "417f93f"
HOST = "kpro5"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
KNOWN = not subprocess.run(["git", "cat-file", "-e", f"{FIRST_RELEASE}^{{commit}}"], cwd=ROOT, check=False, capture_output=True).returncode
pytestmark = [
    pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all"),
    pytest.mark.skipif(not KNOWN, reason=f"this clone has no history back to {FIRST_RELEASE}"),
]
# Variables of then that have a new name or form, with a value as it was passed; the words of the line that says so.
REPLACED: dict[str, tuple[t.Any, str]] = {
    "sglang_server__gpu_memory_mib": ([49140, 49140], "sglang_server__gpus"),
}
ROLES = ("gpu_node", "gpu_container", "sglang_runtime", "hf_model", "sglang_server", "peer_access")


@dataclasses.dataclass(frozen=True)
class Run:
    """One deployment: what was printed, and the tasks that changed something."""

    words: str
    changed: list[str]

    @property
    def counts(self) -> list[str]:
        return re.findall(r"changed=(\d+)", self.words)


@dataclasses.dataclass(frozen=True)
class World:
    """A node that the first release deployed, that release, and a folder for inventories."""

    node: LinkedNode
    first: Path
    folder: Path

    def deploy(self, code: Path, *inventories: Path) -> Run:
        return deploy(code, self.node, self.folder, *inventories)

    def starts(self) -> int:
        """Return how often the engine was started, by systemd's own entries."""
        message = "39f53479d3a045ac8e11786248231fbf"  # "unit was started", of systemd's catalogue
        return int(self.node.inside(f"journalctl -q -o cat MESSAGE_ID={message} UNIT=kpro-sglang.service | wc -l"))

    def kept(self) -> dict[str, str]:
        """Return what an upgrade must reuse: key, environment and snapshot, each by its content or identity."""
        return {
            "key": self.node.inside("sha256sum /etc/kpro-llm/api_key"),
            "environment": self.node.inside("readlink -f /opt/kpro-llm/sglang/venv; stat -c %i /opt/kpro-llm/sglang/venv/bin/python"),
            "model": self.node.run("ls -ld --time-style=+ /srv/models/*; stat -Lc '%n %i %s %Y' /srv/models/*/*.safetensors"),
            "container": self.node.run("stat -c %W /rpool/data/subvol-129-disk-0"),
            "models.txt": (self.folder / "models.txt").read_text(encoding="utf-8"),
        }


def checked_out(folder: Path) -> Path:
    """Return a folder with the first release as it was."""
    first = folder / "first"
    first.mkdir()
    archive = subprocess.run(["git", "archive", FIRST_RELEASE], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", first], input=archive, check=True)
    return first


def overlay(node: LinkedNode, folder: Path) -> Path:
    """Write what a sandbox has elsewhere, and the light engine: both releases get it by -e."""
    shared = yaml.safe_load((ROOT / "tests/sandbox/kpro5.vars.yml").read_text(encoding="utf-8"))
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    kept = {name: value for name, value in shared.items() if name not in ("gpu_container__gpus", "sglang_server__tp_size", "sglang_server__profiles")}
    values = {
        **kept, "ansible_port": node.port, "sandbox_dir": base, **light.variables(folder),
        "gpu_container__gpus": 2, "sglang_server__tp_size": 2, "hf_model__lock_file": str(folder / "models.txt"),
        # The tiny model has no head to speculate with.
        "sglang_server__profiles": [],
        "gpu_container__network": {"bridge": "vmbr0", "ip": "10.77.0.129/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
    }  # fmt: skip
    path = folder / "overlay.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def deploy(code: Path, node: LinkedNode, folder: Path, *inventories: Path) -> Run:
    tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(code / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
    argv: list[t.Any] = [tools / "ansible-playbook", "deploy_qwen.yml", *(word for path in inventories for word in ("-i", path))]
    argv += ["-e", f"@{overlay(node, folder)}"]
    done = subprocess.run(argv, cwd=code, env=env, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    changed, task = [], ""
    for line in done.stdout.splitlines():
        if line.startswith("TASK ["):
            task = line[len("TASK [") :].rpartition("]")[0].rpartition(" : ")[2]
        elif line.startswith("changed: ["):
            changed.append(task)
    return Run(" ".join((done.stdout + done.stderr).split()), changed)


def provision(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        node = two_nodes.up(name, HOST, OLD_KIND, "--suite", "trixie")
        light.publish(node)
        first = checked_out(folder)
        deploy(first, node, folder, first / "inventories/kpro5")
        node.run(f"truncate -s 0 {two_nodes.HUB_LOG} 2>/dev/null || true")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    image = subprocess.run([SANDBOX, "image-key", "--suite", "trixie"], capture_output=True, text=True, check=True).stdout.strip()
    recipe = hashlib.sha256(Path(__file__).read_bytes() + light.wheel()).hexdigest()[:12]
    layer = layers.made("first-release", f"{image}-{recipe}", provision)
    node = two_nodes.up(f"upgrade{WORKER}", HOST, OLD_KIND, "--layer", layer)
    try:
        light.publish(node)
        commit = json.loads(node.run("cat /srv/models/*/.kpro-manifest.json"))["commit"]
        (tmp_path / "models.txt").write_text(f"kpro/tiny-qwen3_5 main {commit}\n", encoding="utf-8")
        assert eventually(lambda: node.inside("systemctl is-active kpro-sglang", check=False).strip() == "active", 120)
        yield World(node, checked_out(tmp_path), tmp_path)
    finally:
        if "KPRO_TEST_KEEP_NODE" not in os.environ:
            subprocess.run([SANDBOX, "down", node.name], check=True)


def upgraded(world: World, *inventories: Path) -> Run:
    """Deploy with today's code: all is reused, the engine restarts at most once, and the second run changes nothing."""
    before, starts = world.kept(), world.starts()
    run = world.deploy(ROOT, *inventories)
    assert world.kept() == before
    assert world.starts() - starts <= 1
    assert light.ANSWER in run.words
    if world.starts() > starts:
        assert re.search(r"restart", run.words.partition("kpro.llm.preflight")[2] or run.words), "announced in the table"
    again = world.deploy(ROOT, *inventories)
    assert set(again.counts) == {"0"}, again.words[-4000:]
    assert world.starts() - starts <= 1
    return run


def test_the_shipped_inventory_of_then(world: World) -> None:
    run = upgraded(world, world.first / "inventories/kpro5")
    print(run.changed, run.words)


def test_every_variable_of_then(world: World) -> None:
    values: dict[str, t.Any] = {}
    for role in ROLES:
        path = world.first / "roles" / role / "defaults/main.yml"
        values.update(yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {})
    values.update({name: value for name, (value, _words) in REPLACED.items()})
    every = world.folder / "every"
    every.write_text(yaml.safe_dump({"all": {"vars": values}}), encoding="utf-8")
    shipped = world.first / "inventories/kpro5"
    world.deploy(world.first, every, shipped)
    run = upgraded(world, every, shipped)
    print(run.changed, run.words)
    for name, (_value, words) in REPLACED.items():
        assert re.search(rf"{name}\b.{{0,200}}{words}", run.words), f"no line names what replaces {name}"
