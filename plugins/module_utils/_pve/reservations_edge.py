# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what deployments on one node tell each other about GPUs that they are about to give.

A container that is being made shows its devices only at the end, so that its claim is written down before. A record counts
while its process lives, which holds a lock on it, and while the creation that it began has not ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import time
import typing as t

from .._core.errors import KproError
from .._gpu.claims import Claim, Guest
from .._gpu.guest_files_edge import read_regular

FOLDER = "run/kpro-llm/gpus"  # emptied by a boot, as the tasks are that it is about
LOCK_WAIT_S = 30.0  # it is held for some reads of files
KEY = "a deployment that is under way"


@dataclasses.dataclass(frozen=True)
class Reservation:
    """GPUs that a container is about to get, by their device nodes' minors."""

    vmid: int
    name: str
    minors: tuple[int, ...]


class Reservations:
    """The records of one node.

    :param root: where the node's file tree begins.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._folder = root / FOLDER

    @contextlib.contextmanager
    def locked(self, wait_s: float = LOCK_WAIT_S) -> t.Iterator[None]:
        """Keep every other deployment on this node from giving GPUs out.

        :raises KproError: if another one holds the lock for too long.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._folder / "lock", "ab") as lock:
            end = time.monotonic() + wait_s
            while not _lock(lock.fileno(), fcntl.LOCK_EX):
                if time.monotonic() >= end:
                    raise KproError("GPUs of the node", f"another deployment has been giving them out for {wait_s:g} s", "Run again when it has ended")
                time.sleep(0.1)
            yield

    @contextlib.contextmanager
    def held(self, reservation: Reservation) -> t.Iterator[None]:
        """Write a reservation down and keep it until the end of the block; called while the lock is held."""
        path = self._folder / str(reservation.vmid)
        path.unlink(missing_ok=True)
        # Never handed to a child, which would keep the lock after this process.
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump(dataclasses.asdict(reservation), file)
            file.flush()
            try:
                yield
            finally:
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                        path.unlink()

    def guests(self, own: int, begun: t.Container[int]) -> tuple[Guest, ...]:
        """Return what is reserved for other containers, as guests with claims.

        :param begun: containers whose creation has not ended; it goes on without the process that began it.
        """
        found = []
        for path in sorted(self._folder.glob("*")):
            if not re.fullmatch(r"\d{1,10}", path.name) or int(path.name) == own:
                continue
            if int(path.name) in begun or _is_held(path):
                found += [guest] if (guest := _guest(int(path.name), read_regular(path))) else []
        return tuple(found)


def _lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_held(path: pathlib.Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _guest(vmid: int, text: str) -> Guest | None:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        row = json.loads(text)
        return Guest(vmid, str(row["name"]), "container", tuple(Claim(KEY, "minor", int(minor)) for minor in row["minors"]))
    return None
