# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's Proxmox stand-in for nodes that live in folders, as one process: a start of ``pvesh`` costs little then.

Called with a socket's path (or a node's folder, for the API over https) and the stand-in's folder. Each request is one line,
``[root folder, program, its arguments]``; each answer is ``[exit code, standard output, standard error]``. A process of its own
answers each, and dies with the program that asked, as that program would. What goes wrong is in the node's file ``faults``; all
calls of ``pvesh`` are noted in its file ``calls``, those of the others in ``commands``, and which process answers which in ``answered``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pathlib
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
import typing as t

sys.path.insert(0, sys.argv[2])

from kpro_standin_pve import api, cli_options, cli_pct, cli_pvesh, cli_small, devices, driver, lxc_config, normalise, schema
from kpro_standin_pve.errors import failed
from kpro_standin_pve.node import Node


class Remembering:
    """A runtime that keeps no more than a file for each running container."""

    def __init__(self, root: pathlib.Path, faults: t.Callable[[], dict[str, t.Any]]) -> None:
        self._root = root
        self._faults = faults

    def _pause(self, fault: str) -> None:
        """Take as many seconds as a fault says, and no longer than it stands in the node's file."""
        end = time.monotonic() + self._faults().get(fault, 0)
        while time.monotonic() < end and fault in json.loads((self._root / "faults").read_text(encoding="utf-8")):
            time.sleep(0.05)

    def _mark(self, vmid: str) -> pathlib.Path:
        return self._root / "running" / vmid

    def is_running(self, node: t.Any, vmid: str) -> bool:
        return self._mark(vmid).exists()

    def init_pid(self, node: t.Any, vmid: str) -> int | None:
        pid = self._root / "pid"
        return int(pid.read_text(encoding="ascii")) if pid.exists() else None

    def write_runtime_config(self, node: t.Any, vmid: str, config: t.Any) -> None:
        values = config.current.values
        for key in ("arch", "ostype"):
            if key not in values:
                raise failed(f"missing '{key}' - internal error at /usr/share/perl5/PVE/LXC.pm line 729.")
        for key in devices.keys(values, "net"):
            bridge = normalise.parts_of(key, values[key]).get("bridge", "")
            if not node.path(f"/sys/class/net/{bridge}").exists():
                raise failed(f"bridge '{bridge}' does not exist")
        devices.all_of(node, values)

    def start(self, node: t.Any, vmid: str, config: t.Any) -> None:
        if "start_says" in self._faults():
            raise failed(self._faults()["start_says"])
        for volume, _target, _read_only in lxc_config.bind_mounts(config.current.values):
            if volume.startswith("/") and not node.path(volume).exists():
                raise driver.StartError(["run_buffer: 571 Script exited with status 2"])
        self.write_runtime_config(node, vmid, config)
        self._mark(vmid).write_text("", encoding="ascii")

    def kill(self, node: t.Any, vmid: str) -> None:
        self._mark(vmid).unlink()

    def shutdown(self, node: t.Any, vmid: str, timeout_s: int) -> bool:
        self._pause("slow_shutdown_s")
        if not self._faults().get("hangs"):
            self._mark(vmid).unlink()
        return not self._mark(vmid).exists()

    def hotplug(self, node: t.Any, vmid: str, key: str, value: str | None, config: t.Any) -> None:
        if key in self._faults().get("no_hotplug", ()):
            raise driver.HotplugError("refused")

    def mounted(self, node: t.Any, vmid: str, rootfs: pathlib.Path) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def unpack(self, archive: pathlib.Path, rootfs: pathlib.Path, _vmid: str, _shifted: bool, log: t.Callable[[str], None]) -> None:
        self._pause("slow_unpack_s")
        log("Total bytes read: 1024")
        if self._faults().get("has_ssh"):
            (rootfs / "etc/ssh").mkdir(parents=True)
        (rootfs / "etc").mkdir(exist_ok=True)
        (rootfs / "etc/os-release").write_text("ID=debian\n", encoding="ascii")

    def forget(self, node: t.Any, vmid: str) -> None:
        self._mark(vmid).unlink(missing_ok=True)


class FolderNode:
    """One node below ``root`` for one call."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._faults = json.loads((root / "faults").read_text(encoding="utf-8"))

    def _forget(self, fault: str) -> None:
        del self._faults[fault]
        (self._root / "faults").write_text(json.dumps(self._faults), encoding="utf-8")

    def other(self, program: str, argv: list[str]) -> int:
        """Run ``pct``, ``pvesm`` or ``pveam``."""
        with open(self._root / "commands", "a", encoding="utf-8") as commands:
            commands.write(json.dumps([program, *argv]) + "\n")
        name, major = os.uname().nodename.split(".")[0], (self._root / "major").read_text(encoding="ascii")
        node = Node(self._root, name, Remembering(self._root, lambda: self._faults), major=major, lock_wait_s=0.2, notice=cli_options.notice)
        if program == "pct":
            return cli_pct.run(node, argv)
        return getattr(cli_small, program)(argv, node)

    def run(self, argv: list[str]) -> int:
        """Run one call and return its exit code."""
        with open(self._root / "calls", "a", encoding="utf-8") as calls:
            calls.write(json.dumps(argv) + "\n")
        name, major = os.uname().nodename.split(".")[0], (self._root / "major").read_text(encoding="ascii")
        runtime = Remembering(self._root, lambda: self._faults)
        node = Node(self._root, name, runtime, major=major, lock_wait_s=0.2, notice=cli_options.notice)
        if argv[0] == "create" and argv[1].endswith("/lxc"):
            for key in self._faults.get("create_drops", ()):
                at = argv.index(f"--{key}")
                del argv[at : at + 2]
        if argv[0] == "set" and "edited_meanwhile" in self._faults:
            # Somebody else saves the file between our read and our write, once.
            with open(node.config_path(129), "a", encoding="utf-8") as config:
                config.write(self._faults["edited_meanwhile"])
            self._forget("edited_meanwhile")
        lost = self._faults.get("lost_answer") == " ".join(argv[:2])
        with contextlib.redirect_stdout(io.StringIO() if lost else sys.stdout):
            code = cli_pvesh.run(node, argv[0], argv[1:])
        if lost:
            # As recorded: the caller reads of a lock that could not be had. The work was done all the same.
            self._forget("lost_answer")
            sys.stderr.write("can't lock file '/run/lock/lxc/pve-config-129.lock' - got timeout\n")
            return 4
        return code


class Talk(socketserver.StreamRequestHandler):
    """One call."""

    def handle(self) -> None:
        """Read root and arguments, write code and output."""
        root, program, argv = json.loads(self.rfile.readline())
        caller, _uid, _gid = struct.unpack("3i", self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        (pathlib.Path(root) / "answered" / str(caller)).write_text(str(os.getpid()), encoding="ascii")
        threading.Thread(target=self._die_with_the_caller, daemon=True).start()
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            node = FolderNode(pathlib.Path(root))
            code = node.run(argv) if program == "pvesh" else node.other(program, argv)
        self.wfile.write((json.dumps([code, out.getvalue(), err.getvalue()]) + "\n").encode())

    def _die_with_the_caller(self) -> None:
        """Wait for the end of the program that asked; what it had started goes on without it, or not."""
        with contextlib.suppress(OSError):
            if self.connection.recv(1, socket.MSG_PEEK) == b"":
                os.kill(os.getpid(), signal.SIGKILL)


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """A process for each call."""

    request_queue_size = 64
    max_children = 256


def serve_https(root: pathlib.Path) -> None:
    """Answer the API over https on a free port, which goes to the node's file ``port``."""
    from kpro_standin_pve.https_front import Front

    name = os.uname().nodename.split(".")[0]
    node = Node(root, name, Remembering(root, lambda: json.loads((root / "faults").read_text(encoding="utf-8"))), major="13", lock_wait_s=0.2)
    front = Front(node, ("127.0.0.1", 0), root / "api.pem", root / "api.key")
    (root / "port.new").write_text(str(front.server_address[1]), encoding="ascii")
    (root / "port.new").rename(root / "port")
    front.serve_forever()


if __name__ == "__main__":
    if os.path.isdir(sys.argv[1]):
        serve_https(pathlib.Path(sys.argv[1]))
    # Loaded once, not in each process that answers a call.
    for module in {name for _path, names in api.MODULES for name in names.split()}:
        importlib.import_module(f"kpro_standin_pve.{module}")
    schema.load()
    Server(sys.argv[1], Talk).serve_forever()
