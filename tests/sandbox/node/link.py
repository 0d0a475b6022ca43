# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links: a network that nodes share, beside the one that each has to itself. This is the commands' side; ``link_holder`` makes it.

A link is a network namespace with a bridge, held by one process. Nobody has to end it: it ends with the last node and the
last command that is connected to it, and takes the namespace and all interfaces along.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.files import locked, remove_tree, tail
from node.folders import SOURCE, Folders, LinkFolder, SandboxError
from node.record import Record, Runtime

NETWORK = "10.88.0"
PREFIX_LENGTH = 24
BRIDGE = "vmbr1"  # the node's bridge whose port is the link
FIRST_NUMBER = 11
LAST_NUMBER = 99
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")
_RATE = re.compile(r"(?:none|\d{1,9}(?:\.\d+)?[kmg]?(?:bit|bps))\Z")
_MESSAGE_BYTES = 65536
_START_TIMEOUT_S = 60
_ANSWER_TIMEOUT_S = 60


def check_name(name: str) -> str:
    """Return the name of a link, or refuse it."""
    if not _NAME.match(name):
        raise SandboxError(f"link name {name!r}: use lower-case letters, digits and dashes, a letter first, at most 31")
    return name


def check_rate(rate: str) -> str:
    """Return a rate in tc's notation (100mbit, 12mbps) or ``none``, or refuse it."""
    if not _RATE.match(rate):
        raise SandboxError(f"rate {rate!r}: use tc's notation, for example 100mbit (bits) or 12mbps (bytes), or none")
    return rate


def address(number: int) -> str:
    """Return the address on the link that goes with a node's number there."""
    return f"{NETWORK}.{number}"


def free_number(records: list[Record], record: Record) -> int:
    """Return the number of a node on its link: the one it has, or the lowest that no other node has."""
    taken = {other.link_number for other in records if other.link == record.link and other.name != record.name}
    if record.link_number and record.link_number not in taken:
        return record.link_number
    for number in range(FIRST_NUMBER, LAST_NUMBER + 1):
        if number not in taken:
            return number
    raise SandboxError(f"link {record.link} has no address left")


@dataclass(frozen=True)
class Connection:
    """An open connection to the process that holds a link; while it is open, the link lives."""

    name: str
    connection: socket.socket

    def ask(self, what: str, descriptor: int | None = None, **details: object) -> dict[str, Any]:
        """Send one request, with an open file if given, and return the answer."""
        message = json.dumps({"do": what, **details}).encode()
        try:
            socket.send_fds(self.connection, [message], [] if descriptor is None else [descriptor])
            answer = self.connection.recv(_MESSAGE_BYTES)
        except OSError as error:
            raise SandboxError(f"link {self.name} does not answer: {error}") from error
        if not answer:
            raise SandboxError(f"link {self.name} has ended")
        value: dict[str, Any] = json.loads(answer)
        if "error" in value:
            raise SandboxError(f"link {self.name}: {value['error']}")
        return value

    def close(self) -> None:
        self.connection.close()


def connect(folder: LinkFolder) -> Connection | None:
    """Connect to a link, ``None`` where none is held."""
    try:
        descriptor = os.open(folder.path, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        connection.connect(f"/proc/self/fd/{descriptor}/{folder.socket.name}")  # a socket's path may have 107 bytes only
        found = Connection(folder.name, connection)
        found.ask("hello")
    except (OSError, SandboxError):
        connection.close()
        return None
    finally:
        os.close(descriptor)
    return found


def require(folders: Folders, name: str) -> Connection:
    """Connect to a link that must be there."""
    connection = connect(folders.link(check_name(name)))
    if connection is None:
        raise SandboxError(f"there is no link {name}; 'sandbox up NAME --link {name}' makes it")
    return connection


@contextlib.contextmanager
def held(folders: Folders, name: str) -> Iterator[None]:
    """Keep a link for the time of a start, made first where it is not there; afterwards remove it if no node uses it."""
    if not name:
        yield
        return
    connection = _ensure(folders, name)
    try:
        yield
    finally:
        connection.close()
        tidy(folders, name)


def _ensure(folders: Folders, name: str) -> Connection:
    folder = folders.link(check_name(name))
    with locked(folders.locks / f"link-{name}", f"link {name}"):
        connection = connect(folder)
        if connection is not None:
            return connection
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        runtime = Runtime.read(folder)
        if runtime is not None:
            runtime.end(0)
        _start(folders, folder)
        connection = connect(folder)
        if connection is None:
            raise SandboxError(f"link {name} did not start: {tail(folder.log, 10) or 'it ended without a word'}")
        return connection


def _start(folders: Folders, folder: LinkFolder) -> None:
    command = [sys.executable, "-B", str(SOURCE), "_link", folder.name]
    if Path("/run/systemd/system").is_dir():
        unit = f"kpro-sandbox-link-{folder.name}-{uuid.uuid4().hex[:8]}"
        command = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={unit}", "--", *command]
    with folder.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**os.environ, "KPRO_SANDBOX_DIR": str(folders.base)},
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout:
        word = process.stdout.readline().decode(errors="replace").strip()
    if word != "ready":
        raise SandboxError(f"link {folder.name} did not start: {word.removeprefix('error ') or tail(folder.log, 10) or 'it ended without a word'}")


def tidy(folders: Folders, name: str) -> None:
    """Remove what is left of a link that no node has any more."""
    if not name:
        return
    folder = folders.link(name)
    with locked(folders.locks / f"link-{name}", f"link {name}"):
        if not folder.path.exists() or any(_uses(folders, node, name) for node in _nodes(folders)):
            return
        _await_end(folder)
        remove_tree(folder.path)


def _nodes(folders: Folders) -> list[str]:
    return sorted(path.name for path in folders.state.iterdir()) if folders.state.is_dir() else []


def _uses(folders: Folders, node: str, name: str) -> bool:
    record = Record.read(folders.node(node))
    return record is not None and record.link == name


def _await_end(folder: LinkFolder) -> None:
    """Let the holder end by itself, which it does without a connection; end it if it does not."""
    runtime = Runtime.read(folder)
    deadline_s = time.monotonic() + 5
    while runtime is not None and runtime.alive:
        if time.monotonic() > deadline_s:
            runtime.end(0)
            return
        time.sleep(0.02)
