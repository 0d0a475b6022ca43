# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of a container that hold its GPUs, in sentences for people. Pure."""

from __future__ import annotations

import dataclasses
import posixpath
import typing as t

SHOWN_WORDS = 4  # of a command line, before its first long option: "python3 -m sglang.launch_server"


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A process with an NVIDIA device node open.

    :param pid: its id on the node.
    :param pid_inside: its id inside the container.
    :param command: what it is, without options, which may hold secrets.
    :param unit: systemd unit that started it, empty if a person did.
    :param nodes: the device nodes.
    """

    pid: int
    pid_inside: int
    command: str
    unit: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The process in a sentence."""
        unit = f", {self.unit}" if self.unit else ""
        return f"process {self.pid_inside} ({self.command}{unit}) on {', '.join(self.nodes)}"


def short_command(argv: t.Sequence[str]) -> str:
    """Return a command line up to its first long option, the program without its folder."""
    words = [posixpath.basename(word) if number == 0 else word for number, word in enumerate(argv[:SHOWN_WORDS])]
    end = next((number for number, word in enumerate(words) if word.startswith("--")), len(words))
    return " ".join(words[:end]) or "a process that has ended"


def started_by_service(unit: str) -> str:
    """Return the unit's name if it is a service; a login's scope means that a person started the process."""
    return unit if unit.endswith(".service") and not unit.startswith("user@") else ""


def ends_with_restart(name: str, holders: t.Sequence[GpuProcess]) -> str:
    """Return what a stop of the container ends, empty if nothing holds a GPU."""
    return f"The stop of {name} ends what holds its GPUs now: {'; '.join(holder.label for holder in holders)}" if holders else ""


def started_by_hand(vmid: int, node: str, holders: t.Sequence[GpuProcess]) -> list[str]:
    """Return a sentence for each process that no service started, with the command that ends it."""
    return [
        f"In container {vmid} {holder.label} was started by hand and keeps its GPU memory; 'pct exec {vmid} -- kill {holder.pid_inside}' on {node} ends it"
        for holder in holders
        if not holder.unit
    ]
