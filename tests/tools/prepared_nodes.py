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
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import two_nodes
from two_nodes import NEW, OLD, Kind, LinkedNode, Pair

from plain_node import ROOT, SANDBOX

# What a layer is made by.
_PARTS = ("plugins", "roles", "playbooks", "tests/sandbox/engine", "tests/sandbox/model")


def start(prefix: str, folder: Path, *, cluster: bool = False, old: Kind = two_nodes.OLD_KIND, new: Kind = two_nodes.NEW_KIND) -> Pair:
    """Start a pair whose kpro6 serves from container 129 (once it has booted) and whose kpro5 has its driver; two_nodes.stop ends it."""
    with ThreadPoolExecutor(2) as pool:
        old_layer, new_layer = pool.map(lambda job: _layer(*job), ((prefix, OLD, "bookworm", old), (prefix, NEW, "trixie", new)))
    old, new = dataclasses.replace(old, layer=old_layer), dataclasses.replace(new, layer=new_layer)
    return two_nodes.start(prefix, folder, cluster=cluster, old=old, new=new)


def _key(host: str, suite: str, kind: Kind) -> str:
    image = subprocess.run([SANDBOX, "image-key", "--suite", suite], capture_output=True, text=True, check=True).stdout.strip()
    total = hashlib.sha256(f"{inspect.getsource(two_nodes)}{Path(__file__).read_text(encoding='utf-8')}{kind}".encode())
    for path in sorted(path for part in _PARTS for path in (ROOT / part).rglob("*") if path.is_file() and path.suffix != ".pyc"):
        total.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return f"moving-{host}-{image}-{total.hexdigest()[:12]}"


def _layer(prefix: str, host: str, suite: str, kind: Kind) -> str:
    """Return the layer of one node, made first if it is not there."""
    key = _key(host, suite, kind)
    # Test files may run side by side: one makes the layer, the others wait for it.
    with open(os.path.join(tempfile.gettempdir(), f"kpro-moving-{host}.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if subprocess.run([SANDBOX, "layer", "has", key], check=False, capture_output=True).returncode:
            name = f"{prefix}-{host}-base"
            try:
                _provision(name, host, suite, kind)
                subprocess.run([SANDBOX, "layer", "save", name, key], check=True)
            finally:
                subprocess.run([SANDBOX, "down", name], check=False, capture_output=True)
    return key


def _provision(name: str, host: str, suite: str, kind: Kind) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = two_nodes.up(name, host, kind, "--suite", suite)
        content = _content()
        subprocess.run([SANDBOX, "publish", name, "--hub", content / "hub", "--files", content / "files"], check=True)
        pair = Pair("", node, node, Path(folder))
        pair.write_inventory(host, ())
        pair.playbook("deploy_qwen", *(["--tags", "node"] if host == NEW else []))
        _settle(node)


def _content() -> Path:
    """Make what the nodes' hubs serve, once for all."""
    content = Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox") / "content"
    with open(os.path.join(tempfile.gettempdir(), "kpro-moving-content.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([ROOT / "tests/sandbox/prepare", content], check=True)
    return content


def _settle(node: LinkedNode) -> None:
    """Leave nothing behind that a later start would take for its own run."""
    node.run(f"truncate -s 0 {two_nodes.HUB_LOG} 2>/dev/null || true")
