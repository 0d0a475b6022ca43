# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several nodes as one cluster: who is in it, who answers, whether there is a quorum, calls on another node.

Labelled stand-in, held to no recording: the sandbox gives the members one folder as /etc/pve/nodes, each member's address
lies in its own folder there, and a member is online when its SSH answers over the link. No corosync, no cluster file system.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import failed
from .node import SETTINGS, Node

MEMBER_FILE = "kpro-standin-member.json"
NO_QUORUM = "cluster not ready - no quorum?"
VERBS = {"GET": "get", "PUT": "set", "POST": "create", "DELETE": "delete"}
PROBE_S = 1.0
SSH_PORT = 22


@dataclass(frozen=True)
class Member:
    """One node of the cluster."""

    name: str
    number: int
    address: str


def members(node: Node) -> dict[str, Member]:
    """Return the cluster's nodes by name, this one among them; empty for a lone node."""
    found = {}
    for file in sorted(node.path("/etc/pve/nodes").glob(f"*/{MEMBER_FILE}")):
        entry = json.loads(file.read_text(encoding="utf-8"))
        found[file.parent.name] = Member(file.parent.name, int(entry["number"]), entry["address"])
    return found if node.name in found else {}


def is_online(node: Node, member: Member) -> bool:
    """Tell whether a member answers now."""
    if member.name == node.name:
        return True
    try:
        with socket.create_connection((member.address, SSH_PORT), timeout=PROBE_S) as connection:
            connection.settimeout(PROBE_S)
            return bool(connection.recv(1))
    except OSError:
        return False


def is_quorate(node: Node) -> bool:
    """Tell whether most members answer; ``expected_votes`` in the settings file stands for ``pvecm expected``."""
    known = members(node)
    if not known:
        return True
    needed = len(known) // 2 + 1
    try:
        settings = json.loads(node.path(SETTINGS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        settings = {}
    needed = int(settings.get("expected_votes", needed))
    return needed <= 1 or sum(is_online(node, member) for member in known.values()) >= needed


def require_quorum(node: Node) -> None:
    """Refuse where /etc/pve would be read-only."""
    if not is_quorate(node):
        raise failed(NO_QUORUM)


def ssh_command(member: Member) -> list[str]:
    """Return the command line by which a member's root is reached, as Proxmox's: by name, with the key in the cluster's folder."""
    return [
        "ssh", "-e", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
        "-o", f"HostKeyAlias={member.name}", "-o", f"UserKnownHostsFile=/etc/pve/nodes/{member.name}/ssh_known_hosts",
        "-o", "GlobalKnownHostsFile=none", f"root@{member.address}",
    ]  # fmt: skip


def on_member(member: Member, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a member."""
    return subprocess.run(
        [*ssh_command(member), "--", shlex.join(words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def proxy(member: Member, method: str, path: str, parameters: Mapping[str, Any], echo: Callable[[str], None] | None) -> Any:
    """Run a call on the node that it names, as Proxmox does: by ``pvesh`` over SSH. A task's lines come before its UPID."""
    options = [word for name, value in parameters.items() for word in (f"--{name}", str(int(value) if isinstance(value, bool) else value))]
    done = on_member(member, "pvesh", VERBS[method], path, *options, "--output-format", "json")
    if done.returncode:
        raise failed(f"proxy handler failed: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    if echo:
        for line in lines[:-1]:
            echo(line)
    return json.loads(lines[-1]) if lines else None
