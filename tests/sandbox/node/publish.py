# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring files to a node: what its hub and its web server hand out."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import IO

from node import ssh
from node.files import say
from node.folders import Folders, SandboxError

TARGETS = {"hub": "/srv/kpro-standin/hub", "files": "/srv/kpro-standin/files"}


def parse_listing(text: str) -> dict[str, tuple[int, int]]:
    """Parse lines ``size mtime name`` into name -> (bytes, seconds)."""
    found = {}
    for line in text.splitlines():
        size, modified, name = line.split(" ", 2)
        found[name] = (int(size), int(float(modified)))
    return found


def local_listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return name -> (bytes, modified in seconds) of all files below a folder."""
    return {str(path.relative_to(folder)): (path.stat().st_size, int(path.stat().st_mtime)) for path in sorted(folder.rglob("*")) if path.is_file()}


def publish(folders: Folders, name: str, sources: dict[str, Path]) -> int:
    """Copy folders to the node's places for the hub and for files. Only what is missing there or differs travels.

    Returns the number of files sent. Nothing is removed on the node.
    """
    sent = 0
    for kind, source in sources.items():
        if not source.is_dir():
            raise SandboxError(f"{source} is no folder")
        target = TARGETS[kind]
        listing = _run(folders, name, f"mkdir -p {target} && cd {target} && find -L . -type f -printf '%s %T@ %P\\n'")
        there = parse_listing(listing)
        names = [path for path, what in local_listing(source).items() if there.get(path) != what]
        if names:
            _send(folders, name, source, names, target)
            say(f"{len(names)} files from {source} to {name}:{target}")
        sent += len(names)
    return sent


def _run(folders: Folders, name: str, command: str) -> str:
    done = subprocess.run(ssh.command(folders, name, command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(f"node {name}: {done.stderr.strip() or 'no answer'}; is it up?")
    return done.stdout


def _send(folders: Folders, name: str, source: Path, names: list[str], target: str) -> None:
    command = ssh.command(folders, name, f"tar -C {target} -xpf - --no-same-owner")
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        _write_archive(process.stdin, source, names)
    if process.returncode:
        raise SandboxError(f"copying files to {name}:{target} failed (exit {process.returncode})")


def _write_archive(stream: IO[bytes], source: Path, names: list[str]) -> None:
    def readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
        """The hub runs as a user of its own."""
        member.mode |= 0o444
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    with tarfile.open(fileobj=stream, mode="w|", dereference=True) as archive:
        for name in names:
            archive.add(os.path.join(source, name), arcname=name, recursive=False, filter=readable)
