# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of the sandbox: one to log in with, one host key for each node, and the files that ssh reads."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from node.files import locked, write_atomically
from node.folders import Folders, NodeFolder, SandboxError
from node.record import Record


def _make_key(path: Path, comment: str) -> None:
    if path.exists() and path.with_suffix(".pub").exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    done = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SandboxError(f"ssh-keygen failed for {path}: {done.stderr.strip()}")


def make_keys(folders: Folders, folder: NodeFolder) -> None:
    """Make the login key and the node's host key where they are missing."""
    with locked(folders.locks / "ssh", "the sandbox's ssh keys"):
        _make_key(folders.ssh / "id_ed25519", "kpro-sandbox")
    _make_key(folder.keys / "ssh_host_ed25519_key", f"kpro-sandbox-{folder.name}")


def _config_block(folders: Folders, record: Record) -> str:
    return (
        f"Host {record.name}\n"
        "    HostName 127.0.0.1\n"
        f"    Port {record.port}\n"
        "    User root\n"
        f"    IdentityFile {folders.ssh / 'id_ed25519'}\n"
        "    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {folders.ssh / 'known_hosts'}\n"
        "    GlobalKnownHostsFile none\n"
        "    StrictHostKeyChecking yes\n"
        "    BatchMode yes\n"
    )


def records(folders: Folders) -> list[Record]:
    """Return the records of all nodes, by name."""
    if not folders.state.is_dir():
        return []
    found = (Record.read(folders.node(path.name)) for path in sorted(folders.state.iterdir()) if path.is_dir())
    return [record for record in found if record is not None]


def write_client_files(folders: Folders) -> None:
    """Write ``ssh/known_hosts`` and ``ssh/config`` for the nodes that there are now."""
    with locked(folders.locks / "ssh", "the sandbox's ssh files"):
        hosts, blocks = [], []
        for record in records(folders):
            public = folders.node(record.name).keys / "ssh_host_ed25519_key.pub"
            words = public.read_text(encoding="ascii").split() if record.port and public.exists() else []
            # Another start may be writing its key right now: it writes these files, too, once it has it.
            if len(words) >= 2:
                hosts.append(f"[127.0.0.1]:{record.port} {words[0]} {words[1]}\n")
                blocks.append(_config_block(folders, record))
        write_atomically(folders.ssh / "known_hosts", "".join(hosts), mode=0o600)
        write_atomically(folders.ssh / "config", "\n".join(blocks), mode=0o600)


def command(folders: Folders, name: str, *arguments: str) -> list[str]:
    """Return an ssh command line to a node."""
    return ["ssh", "-F", str(folders.ssh / "config"), "-o", "ConnectTimeout=10", name, *arguments]


def remote_command(folders: Folders, name: str, words: list[str]) -> list[str]:
    """Return an ssh command line that runs these words, each quoted for the node's shell."""
    return command(folders, name, shlex.join(words))
