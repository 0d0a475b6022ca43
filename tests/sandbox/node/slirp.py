# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""User-mode network of a node (slirp4netns): no change to the machine's own network."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from node.folders import SandboxError
from node.images import die_with_parent

NODE_ADDRESS = "10.0.2.15"
SOCKET_NAME = "slirp.sock"


def start(path: Path, network_namespace: str, interface: str, *options: str) -> subprocess.Popen[bytes]:
    """Attach a network namespace to the machine's network and return the process once the interface is there.

    ``path`` gets its socket. Options are slirp4netns's own; with ``--configure`` the interface also gets its address and route.
    """
    (path / SOCKET_NAME).unlink(missing_ok=True)
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [
                "slirp4netns",
                "--disable-host-loopback",
                *options,
                "--mtu=1500",
                f"--api-socket={SOCKET_NAME}",
                f"--ready-fd={write_end}",
                "--netns-type=path",
                network_namespace,
                interface,
            ],
            cwd=path,  # a socket's path may have 107 bytes only
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        os.close(write_end)
        write_end = -1
        if not os.read(read_end, 1):
            raise SandboxError(f"slirp4netns did not start (exit {process.wait()}); see the log in {path}")
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)
    return process


def add_forwards(path: Path, forwards: Iterable[tuple[int, int]], guest: str = NODE_ADDRESS) -> None:
    """Forward ports of the machine's 127.0.0.1 to ports of the node, or of another address of the network."""
    for host_port, node_port in forwards:
        arguments = {
            "proto": "tcp",
            "host_addr": "127.0.0.1",
            "host_port": host_port,
            "guest_addr": guest,
            "guest_port": node_port,
        }
        answer = _call(path, {"execute": "add_hostfwd", "arguments": arguments})
        if "error" in answer:
            raise SandboxError(
                f"port {host_port} of 127.0.0.1 can't be forwarded ({answer['error'].get('desc', answer['error'])}); is another program using it?"
            )


def _call(path: Path, request: dict[str, object]) -> dict[str, dict[str, object]]:
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            text = b"".join(iter(lambda: connection.recv(4096), b""))
    finally:
        os.close(folder)
    answer = json.loads(text)
    return answer if isinstance(answer, dict) else {}
