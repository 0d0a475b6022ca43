# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that holds a GPU, and whose it is by its cgroup."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that uses a GPU. ``container`` is the id of its LXC container, None for the node's own processes."""

    pid: int
    uid: int | None
    name: str
    container: int | None
    unit: str | None
    nodes: tuple[str, ...]


def container_of_cgroup(text: str) -> int | None:
    """Return the LXC container that a node's ``/proc/PID/cgroup`` names (``0::/lxc/129/ns/system.slice/...``)."""
    found = re.search(r"^0::/(?:[^\n]*/)?lxc(?:\.payload)?[./](\d+)(?:/|$)", text, re.MULTILINE)
    return int(found[1]) if found else None


def unit_of_cgroup(text: str) -> str | None:
    """Return the innermost service or scope in ``/proc/PID/cgroup``."""
    line = next((each for each in text.splitlines() if each.startswith("0::")), "")
    units = [part for part in line.split("/") if part.endswith((".service", ".scope"))]
    return units[-1] if units else None
