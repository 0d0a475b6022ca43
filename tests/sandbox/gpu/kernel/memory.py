#!/usr/bin/python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN for the driver's account of GPU memory: who connects to the socket holds memory until the kernel closes the connection.

memory.py SOCKET [FOLDER]: the first line of a connection is JSON, {"uuid": MIB, ...}. It is answered with "held" once the libraries show it.
As with an open device, the end of the process ends it, however it ends, and the PID is the node's, whatever container it comes from.
"""

from __future__ import annotations

import json
import pathlib
import selectors
import socket
import struct
import sys
import time
import typing as t

import kernel

PEER = struct.Struct("3i")


class Account:
    """Which process holds how much of which GPU, shown to the stand-in libraries after each change."""

    def __init__(self, show: t.Callable[[list[dict[str, t.Any]]], None], events: pathlib.Path, teardown_s: t.Callable[[], float]) -> None:
        self._show = show
        self._events = events
        self._teardown_s = teardown_s
        self._held: dict[socket.socket, dict[str, t.Any]] = {}
        self._late: list[tuple[float, dict[str, t.Any]]] = []

    def take(self, connection: socket.socket) -> bool:
        """Read what a process wants, or its end; False once the connection is over."""
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        if data:
            pid = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0]
            self._held[connection] = {"pid": pid, "mib": json.loads(data)}
            self._changed("held", pid)
            connection.sendall(b"held\n")
            return True
        gone = self._held.pop(connection, None)
        if gone is not None:
            self._late.append((time.monotonic() + self._teardown_s(), gone))
        return False

    def release(self) -> float | None:
        """Free what is due; return the seconds until the next is, None for nothing."""
        now = time.monotonic()
        due = [row for at, row in self._late if at <= now]
        self._late = [(at, row) for at, row in self._late if at > now]
        for row in due:
            self._changed("released", row["pid"])
        return min((at - now for at, _row in self._late), default=None)

    def _changed(self, what: str, pid: int) -> None:
        self._show([*self._held.values(), *(row for _at, row in self._late)])
        with self._events.open("a") as events:
            events.write(f"{time.time():.4f} {what} {pid}\n")


def serve(path: pathlib.Path, account: Account) -> t.NoReturn:
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(path))
    path.chmod(0o666)
    door.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(door, selectors.EVENT_READ)
    while True:
        for key, _mask in selector.select(account.release()):
            if key.fileobj is door:
                selector.register(door.accept()[0], selectors.EVENT_READ)
            else:
                connection = t.cast("socket.socket", key.fileobj)
                if not account.take(connection):
                    selector.unregister(connection)
                    connection.close()


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    if sys.argv[2:]:
        # By itself, without a node: choices, modules and what the libraries read lie in a folder.
        kernel.RUN = pathlib.Path(sys.argv[2])
        kernel.CONFIG, kernel.PROC = kernel.RUN / "gpu.json", kernel.RUN / "proc"
    serve(path, Account(kernel.show_held, kernel.RUN / "memory.events", lambda: float(kernel.config().get("teardown_s", 0))))


if __name__ == "__main__":
    main()
