# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to calls of ``pvesh`` that outlive their caller, each with a record on the node.

On the command line a worker of Proxmox writes into a pipe that ``pvesh`` holds, and dies with it: what is left of a creation is a
configuration that says no more than ``lock: create``, and a volume. So ``pvesh`` is never killed: it runs in a session (and a scope of
systemd) of its own, its output goes to files, and whoever wants its end waits for a lock that it holds as long as it, or a worker
that it started, lives. The same work has always the same name, so that a second caller waits for the first one's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import time
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command, CommandResult
from .call_record import Record

FOLDER = "/var/lib/kpro-llm/pve"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SYSTEMD = "/run/systemd/system"
# Kept from both ends of what a call wrote: a refusal begins with its reason, a task ends with its name.
KEPT_BYTES = 64 * 1024
QUICK_S, SLOW_S = 0.02, 0.2
# Whoever only looks holds the lock for a moment.
LOCK_TRIES = 10
# The exit code is written last, so that an answer is whole or absent. The folder is named once, the words of the call follow.
SCRIPT = 'cd "$0" || exit 1; : >begun; "$@" >out 2>err; echo $? >rc.new; mv rc.new rc'
# A systemd that can't make a scope is no reason to do nothing; what has begun is never begun again, however it ended.
IN_SCOPE = 'script=$1; shift; systemd-run --scope --quiet --collect -- /bin/sh -c "$script" "$0" "$@"; [ -e "$0/begun" ] || /bin/sh -c "$script" "$0" "$@"'


class Calls:
    """The calls that were made on this node, by the name of their work.

    :param folder: where their records lie; root's alone.
    """

    def __init__(self, command: Command, folder: str = FOLDER) -> None:
        self._command = command
        self._folder = folder
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, work: Record, argv: t.Sequence[str]) -> bool:
        """Write a record and start a call that nobody's end ends; return False if the same work is running already.

        :raises KproError: if the call can't be started.
        """
        place = self._place(work.name)
        lock = self._locked(work.name)
        if lock is None:
            return False
        try:
            for name in ("begun", "out", "err", "rc", "rc.new"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(place, name))
            self.note(dataclasses.replace(work, boot_id=boot_id(), began_s=time.time()))
            self._spawn(place, argv, lock)
        finally:
            os.close(lock)
        return True

    def _spawn(self, place: str, argv: t.Sequence[str], lock: int) -> None:
        scoped = os.path.isdir(SYSTEMD) and shutil.which("systemd-run") is not None
        shell = ["/bin/sh", "-c", IN_SCOPE, place, SCRIPT, *argv] if scoped else ["/bin/sh", "-c", SCRIPT, place, *argv]
        if shutil.which(argv[0]) is None:
            raise KproError(argv[0], "the program is not there", "Install it or correct PATH", argv=list(argv))
        child = subprocess.Popen(
            shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._command.env,
            start_new_session=True,
            pass_fds=(lock,),
        )
        self._children.append(child)

    def wait(self, name: str, timeout_s: float) -> bool:
        """Wait until a call and what it started have ended; tell whether they have."""
        end = time.monotonic() + timeout_s
        pause_s = QUICK_S
        while self.alive(name):
            if time.monotonic() >= end:
                return False
            time.sleep(min(pause_s, max(end - time.monotonic(), 0.0)))
            pause_s = min(pause_s * 1.5, SLOW_S)
        for child in self._children:
            child.poll()
        return True

    def answer(self, name: str, argv: t.Sequence[str]) -> CommandResult | None:
        """Return what an ended call answered; None if it was cut off before it could."""
        place = self._place(name)
        out, err = (_both_ends(os.path.join(place, part)) for part in ("out", "err"))
        try:
            with open(os.path.join(place, "rc"), encoding="ascii") as file:
                return CommandResult(tuple(argv), int(file.read(16)), out, err)
        except (FileNotFoundError, ValueError):
            return CommandResult(tuple(argv), 0, out, err) if "UPID:" in out else None

    def alive(self, name: str) -> bool:
        """Tell whether a call, or a worker that it started, still runs."""
        try:
            descriptor = os.open(os.path.join(self._place(name), "alive"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def running(self, vmid: int) -> list[Record]:
        """Return the calls for a container that still run on this node."""
        return [record for record in self._all() if record.vmid == vmid and self.alive(record.name)]

    def record(self, name: str) -> Record | None:
        """Return the record of a work, None if there is none."""
        try:
            with open(os.path.join(self._place(name), "record.json"), encoding="utf-8") as file:
                found = json.load(file)
            return Record(**{field.name: found[field.name] for field in dataclasses.fields(Record)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def note(self, record: Record) -> None:
        """Write a record, whole or not at all, so that it outlives a power cut."""
        place = self._make_place(record.name)
        draft = os.path.join(place, f"record.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, os.path.join(place, "record.json"))

    def settle(self, name: str) -> None:
        """Record that the work succeeded. Its answer stays, for another caller that waits for the same work."""
        record = self.record(name)
        if record is None or record.ended:
            return
        lock = self._locked(name)
        if lock is None:
            return
        try:
            self.note(dataclasses.replace(record, ended=True))
        finally:
            os.close(lock)

    def _all(self) -> list[Record]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        return [record for name in names if (record := self.record(name))]

    def _locked(self, name: str) -> int | None:
        """Return an open descriptor that holds the lock of a work, None if somebody else holds it."""
        path = os.path.join(self._place(name), "alive")
        for _attempt in range(LOCK_TRIES):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                self._make_place(name)
                continue
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            os.close(descriptor)
            time.sleep(QUICK_S)
        return None

    def _place(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _make_place(self, name: str) -> str:
        # makedirs would give its mode to the last folder only.
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        os.makedirs(self._place(name), mode=0o700, exist_ok=True)
        return self._place(name)


def boot_id() -> str:
    """Return the id of the present boot, empty where the kernel tells none."""
    with contextlib.suppress(OSError), open(BOOT_ID, encoding="ascii") as file:
        return file.read(64).strip()
    return ""


def _both_ends(path: str) -> str:
    """Return a file's text, without its middle if it is long."""
    try:
        with open(path, "rb") as file:
            head = file.read(KEPT_BYTES)
            size = os.fstat(file.fileno()).st_size
            if size > 2 * KEPT_BYTES:
                file.seek(size - KEPT_BYTES)
                head += b"\n"
            return (head + file.read(KEPT_BYTES)).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
