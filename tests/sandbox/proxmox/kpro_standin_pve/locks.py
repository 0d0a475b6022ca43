# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration lock of a container: flock on Proxmox's own lock file."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import failed
from .node import Node

RETRY_S = 0.05


@contextmanager
def config_lock(node: Node, vmid: str) -> Iterator[None]:
    """Hold the container's lock; the caller's ``notice`` hears of a wait, a timeout is Proxmox's 500."""
    name = f"/run/lock/lxc/pve-config-{vmid}.lock"
    path = node.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(node, descriptor, name)
        yield
    finally:
        os.close(descriptor)


def _acquire(node: Node, descriptor: int, name: str) -> None:
    deadline_s = time.monotonic() + node.lock_wait_s
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waited:
                node.notice("trying to acquire lock...")
            waited = True
            if time.monotonic() >= deadline_s:
                raise failed(f"can't lock file '{name}' - got timeout") from None
            time.sleep(RETRY_S)
        else:
            if waited:
                node.notice(" OK")
            return
