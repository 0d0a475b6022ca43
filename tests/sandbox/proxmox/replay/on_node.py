# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replays on a sandbox node with real LXC; prints one JSON line a scenario.

Run there as root, in a UTS namespace of its own: ``unshare --uts python3 -m replay.on_node``. It plays the recorded
node's name, sets the declared storages aside, makes the device nodes that the recordings take for granted, and puts
all of it back.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kpro_standin_pve import cli_options, storage, store
from kpro_standin_pve.lxc_driver import LxcDriver
from kpro_standin_pve.node import Node

from . import engine, inline, scope

CHARACTER_DEVICES = {
    "/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (511, 0),
    "/dev/nvidia-caps/nvidia-cap1": (508, 1), "/dev/loop0": (7, 0),
}  # fmt: skip
ENVIRONMENT = {"HOME": "/root", "USER": "root", "LANG": "C.UTF-8",
               "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}  # fmt: skip
LIMIT_S = 120


class NodeCommands:
    """Runs recorded command lines on the node."""

    def run(self, argv: list[str], stdin: bytes, env: dict[str, str], cwd: str | None) -> tuple[int, bytes, bytes]:
        """Run one program with the recorded caller's environment."""
        answer = subprocess.run(
            argv, input=stdin, capture_output=True, env={**ENVIRONMENT, **env}, cwd=cwd or "/root", check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
        return answer.returncode, answer.stdout, answer.stderr


def _make_devices() -> list[Path]:
    made = []
    for name, (major, minor) in CHARACTER_DEVICES.items():
        path = Path(name)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            os.mknod(path, 0o020666, os.makedev(major, minor))
            path.chmod(0o666)
            made.append(path)
    return made


@contextmanager
def recorded_node() -> Iterator[Node]:
    """Give the node the name, storages, template and devices of the recordings, and take them away again."""
    socket.sethostname(inline.NODE_NAME)
    node = Node(Path("/"), inline.NODE_NAME, LxcDriver())
    link, before = Path("/etc/pve/lxc"), os.readlink("/etc/pve/lxc")
    declared, aside = Path("/etc/pve/storage.cfg"), Path("/etc/pve/storage.cfg.aside")
    cache = Path("/var/lib/vz/template/cache")
    source = [path for path in sorted(cache.glob("debian-12-standard*.tar.zst")) if path.name != inline.TEMPLATE][0]  # noqa: RUF015  # a generator must not raise StopIteration
    own, hidden = Path("/etc/pve", os.readlink("/etc/pve/local")), Path("/etc/pve/hidden-node")
    own.rename(hidden)
    declared.rename(aside)
    source.rename(cache / inline.TEMPLATE)
    node.config_path("1").parent.mkdir(parents=True)
    _point(link, f"nodes/{inline.NODE_NAME}/lxc")
    made = _make_devices()
    try:
        yield node
    finally:
        _clean(node)
        for path in made:
            path.unlink(missing_ok=True)
        _point(link, before)
        (cache / inline.TEMPLATE).rename(source)
        aside.rename(declared)
        shutil.rmtree(f"/etc/pve/nodes/{inline.NODE_NAME}")
        hidden.rename(own)


def _point(link: Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


def _clean(node: Node) -> None:
    for vmid in store.container_ids(node):
        if node.driver.is_running(node, vmid):
            node.driver.kill(node, vmid)
        for volume in storage.contents(node, storage.get(node, "local"), "rootdir", vmid):
            storage.free(node, volume.volid)
        node.driver.forget(node, vmid)


def main(names: list[str]) -> None:
    """Replay all scenarios of the real lane, or those named; the fixtures are always played first."""
    with recorded_node() as node:
        player = engine.Player(node, NodeCommands())
        for name, steps in engine.scenarios(scope.KINDS[scope.ON_NODE]):
            if scope.is_left_out(name, scope.ON_NODE) or (names and name not in names and not name.startswith("fixture")):
                continue
            report = player.play(name, steps, scope.skipped(steps, scope.ON_NODE))
            cli_options.echo(json.dumps(dataclasses.asdict(report)))


if __name__ == "__main__":
    main(sys.argv[1:])
