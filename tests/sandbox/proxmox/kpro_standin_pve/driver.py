# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the core asks of whatever runs the containers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .config_file import Config
    from .node import Node


class StartError(Exception):
    """A container did not start; ``lines`` is what the runtime said."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class HotplugError(Exception):
    """A running container refused a change; the text is the reason."""


class Driver(Protocol):
    """Runs containers. The real one is LXC; tests of the configuration use one that only remembers."""

    def is_running(self, node: Node, vmid: str) -> bool:
        """Tell whether the container runs."""

    def init_pid(self, node: Node, vmid: str) -> int | None:
        """Return the process id of the container's init on the node."""

    def write_runtime_config(self, node: Node, vmid: str, config: Config) -> None:
        """Write what the runtime reads at the next start."""

    def start(self, node: Node, vmid: str, config: Config) -> None:
        """Start the container and return when its init runs; raises StartError."""

    def kill(self, node: Node, vmid: str) -> None:
        """End the container at once."""

    def shutdown(self, node: Node, vmid: str, timeout_s: int) -> bool:
        """Ask the guest to end; tell whether it did within the time."""

    def hotplug(self, node: Node, vmid: str, key: str, value: str | None, config: Config) -> None:
        """Apply one changed or (value None) deleted key to the running container; raises HotplugError."""

    def mounted(self, node: Node, vmid: str, rootfs: Path) -> AbstractContextManager[None]:
        """Hold the root file system mounted below /var/lib/lxc/ID while a new container is filled; whoever dies in it leaves the mount."""

    def unpack(self, archive: Path, rootfs: Path, vmid: str, unprivileged: bool, log: Callable[[str], None]) -> None:
        """Unpack a template, ids shifted for an unprivileged container; raises ApiError."""

    def forget(self, node: Node, vmid: str) -> None:
        """Remove what the runtime kept of a destroyed container."""
