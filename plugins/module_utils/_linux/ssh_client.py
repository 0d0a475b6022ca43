# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a target asks a peer over SSH: without questions, to a host that is known, at link speed. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def ssh_argv(address: str, key_file: str = "", known_hosts_file: str = "", stall_s: float = 30.0) -> list[str]:
    """Return the command up to what the peer is asked to run.

    :param address: ``ssh://[user@]host[:port]/...``; the path is not looked at.
    :param key_file: private key; empty means those of this machine's user, as ``known_hosts_file`` does.
    """
    parts = urlsplit(address)
    host = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
    argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={int(stall_s)}", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    # Several times faster than the default where the processor knows AES, as all in question do.
    argv += ["-o", "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com"]
    argv += ["-i", key_file, "-o", "IdentitiesOnly=yes"] if key_file else []
    argv += ["-o", f"UserKnownHostsFile={known_hosts_file}"] if known_hosts_file else []
    argv += ["-p", str(parts.port)] if parts.port else []
    return [*argv, "--", host]
