# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written down about a node: the wanted node (by the command) and the running one (by itself)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path

from node.files import read_json, write_json
from node.folders import LinkFolder, NodeFolder, SandboxError
from node.images import Image


@dataclass(frozen=True)
class Record:
    """A node as asked for."""

    name: str
    image: Image
    hostname: str
    port: int
    machine_id: str
    forwards: tuple[tuple[int, int], ...] = ()
    layers: tuple[str, ...] = ()
    # The link that it shares with other nodes, its number there, and whether they are one Proxmox cluster.
    link: str = ""
    link_number: int = 0
    cluster: bool = False

    def write(self, folder: NodeFolder) -> None:
        write_json(folder.record, asdict(self))

    @classmethod
    def read(cls, folder: NodeFolder) -> Record | None:
        value = read_json(folder.record)
        if value is None:
            return None
        return cls(
            name=value["name"],
            image=Image(**value["image"]),
            hostname=value["hostname"],
            port=value["port"],
            machine_id=value["machine_id"],
            forwards=tuple((host, node) for host, node in value["forwards"]),
            layers=tuple(value["layers"]),
            link=value.get("link", ""),
            link_number=value.get("link_number", 0),
            cluster=value.get("cluster", False),
        )


def machine_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int | str) -> int | None:
    """Return a process's start time in clock ticks since boot, ``None`` if it is gone or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Runtime:
    """The running node's supervisor and cgroup, or a link's holder (which has none). ``pid`` counts only together with start time and boot id."""

    cgroup: str
    pid: int = 0
    ticks: int = 0
    boot_id: str = field(default_factory=machine_boot_id)

    def write(self, folder: NodeFolder | LinkFolder) -> None:
        write_json(folder.runtime, asdict(self))

    @classmethod
    def read(cls, folder: NodeFolder | LinkFolder) -> Runtime | None:
        value = read_json(folder.runtime)
        return None if value is None else cls(**value)

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.boot_id == machine_boot_id() and start_ticks(self.pid) == self.ticks

    def end(self, orderly_s: float) -> bool:
        """End the supervisor, and with it all of the node. Return whether the node shut down in order in time."""
        orderly = False
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(self.pid)
                try:
                    if self.alive:
                        orderly = orderly_s > 0 and _signal_and_wait(handle, signal.SIGTERM, orderly_s)
                        if not orderly and not _signal_and_wait(handle, signal.SIGKILL, 20):
                            raise SandboxError(f"process {self.pid} of the node does not end")
                finally:
                    os.close(handle)
        return orderly


def _signal_and_wait(handle: int, number: signal.Signals, timeout_s: float) -> bool:
    """Send a signal to a process by its handle and wait for its end; no other process can be hit."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
