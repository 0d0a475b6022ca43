# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes of one link as one Proxmox cluster: a folder of the machine that each of them has as /etc/pve/nodes, and keys for each other.

A stand-in for the cluster's file system: what one node writes there the other sees at once, whether the link is cut or not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from node import link
from node.files import locked, write_atomically
from node.folders import Folders, LinkFolder, SandboxError
from node.record import Record

SHARED_ON_NODE = "/etc/pve/nodes"
MEMBER_FILE = "kpro-standin-member.json"
# Where Proxmox keeps a node's host key for the others.
KNOWN_HOSTS = "ssh_known_hosts"


def join(folders: Folders, record: Record, root: Path) -> None:
    """Make a node a member: its folder, address and host key in the shared folder, the cluster's login key on its disk."""
    folder = folders.link(record.link)
    own = folder.cluster / record.hostname
    if not own.exists():
        _bring(root / SHARED_ON_NODE.lstrip("/") / record.hostname, own)
    kind, key = (folders.node(record.name).keys / "ssh_host_ed25519_key.pub").read_text(encoding="ascii").split()[:2]
    write_atomically(own / KNOWN_HOSTS, f"{record.hostname} {kind} {key}\n")
    write_atomically(own / MEMBER_FILE, json.dumps({"address": link.address(record.link_number), "number": record.link_number}) + "\n")
    private, public = _login_key(folders, folder)
    home = root / "root/.ssh"
    home.mkdir(mode=0o700, exist_ok=True)
    target = home / "id_ed25519"
    target.touch(mode=0o600)
    target.write_text(private, encoding="ascii")
    authorized = home / "authorized_keys"
    known = authorized.read_text(encoding="utf-8") if authorized.exists() else ""
    if public not in known:
        authorized.write_text(known + public, encoding="utf-8")


def _bring(present: Path, shared: Path) -> None:
    """Let a node bring the guests that it has into the cluster."""
    if present.is_dir():
        shutil.copytree(present, shared)
    else:
        shared.mkdir(parents=True)


def _login_key(folders: Folders, folder: LinkFolder) -> tuple[str, str]:
    with locked(folders.locks / f"cluster-{folder.name}", f"the cluster on link {folder.name}"):
        path = folder.keys / "id_ed25519"
        public = path.with_suffix(".pub")
        if not public.exists():
            folder.keys.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"kpro-sandbox-cluster-{folder.name}", "-f", str(path)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SandboxError(f"ssh-keygen failed for {path}: {done.stderr.strip()}")
        return path.read_text(encoding="ascii"), public.read_text(encoding="ascii")
