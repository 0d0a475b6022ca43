# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers from which the nodes of a pair start within seconds: kpro6 with the whole deployment, kpro5 with the driver alone.

Made once for each content of collection and sandbox. Standard library only.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import layers
import two_nodes
from two_nodes import NEW, OLD, Kind, LinkedNode, Pair

from plain_node import ROOT, SANDBOX

# Both containers run for a while, so that the new one has an address of its own.
NEW_ADDRESS = "10.77.0.130"
NEW_NETWORK = {"bridge": "vmbr0", "ip": f"{NEW_ADDRESS}/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"}

# What a layer is made by.
_PARTS = ("plugins", "roles", "playbooks", "tests/sandbox/engine", "tests/sandbox/model")


def start(prefix: str, folder: Path, *, cluster: bool = False, old: Kind = two_nodes.OLD_KIND, new: Kind = two_nodes.NEW_KIND) -> Pair:
    """Start a pair whose kpro6 serves from container 129 (once it has booted) and whose kpro5 has its driver; two_nodes.stop ends it."""
    with ThreadPoolExecutor(2) as pool:
        old_layer, new_layer = pool.map(lambda job: _layer(*job), ((OLD, "bookworm", old), (NEW, "trixie", new)))
    old, new = dataclasses.replace(old, layer=old_layer), dataclasses.replace(new, layer=new_layer)
    pair = two_nodes.start(prefix, folder, cluster=cluster, old=old, new=new)
    write_models_lock(pair)
    return pair


def write_models_lock(pair: Pair) -> None:
    """Write the commit of the model beside the inventory, as the deployment of the old node has left it."""
    commit = json.loads(pair.old.run("cat /srv/models/*/.kpro-manifest.json"))["commit"]
    (pair.folder / "models.txt").write_text(f"kpro/tiny-qwen3_5 main {commit}\n", encoding="utf-8")


def content_key(suite: str, kind: Kind) -> str:
    image = subprocess.run([SANDBOX, "image-key", "--suite", suite], capture_output=True, text=True, check=True).stdout.strip()
    total = hashlib.sha256(f"{inspect.getsource(two_nodes)}{Path(__file__).read_text(encoding='utf-8')}{kind}".encode())
    for path in sorted(path for part in _PARTS for path in (ROOT / part).rglob("*") if path.is_file() and path.suffix != ".pyc"):
        total.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return f"{image}-{total.hexdigest()[:12]}"


def _layer(host: str, suite: str, kind: Kind) -> str:
    return layers.made(f"moving-{host}", content_key(suite, kind), lambda name: _provision(name, host, suite, kind))


def _provision(name: str, host: str, suite: str, kind: Kind) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = two_nodes.up(name, host, kind, "--suite", suite)
        published = content()
        subprocess.run([SANDBOX, "publish", name, "--hub", published / "hub", "--files", published / "files"], check=True)
        pair = Pair("", node, node, Path(folder))
        pair.write_inventory(host, ())
        pair.playbook("deploy_qwen", *(["--tags", "node"] if host == NEW else []))
        _settle(node)


def content() -> Path:
    """Make what the nodes' hubs serve, once for all."""
    folder = Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox") / "content"
    with open(os.path.join(tempfile.gettempdir(), "kpro-moving-content.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([ROOT / "tests/sandbox/prepare", folder], check=True)
    return folder


def _settle(node: LinkedNode) -> None:
    """Leave nothing behind that a later start would take for its own run."""
    node.run(f"truncate -s 0 {two_nodes.HUB_LOG} 2>/dev/null || true")


def main() -> int:
    """Start a pair and write its inventory, ``start PREFIX FOLDER``, or take it away, ``stop PREFIX``."""
    if sys.argv[1] == "start":
        folder = Path(sys.argv[3])
        folder.mkdir(parents=True, exist_ok=True)
        pair = start(sys.argv[2], folder)
        pair.write_inventory(gpu_container__network=NEW_NETWORK)
    else:
        two_nodes.take_away(sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
