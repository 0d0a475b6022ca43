# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to a builder that runs in a transient systemd unit. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import signal
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._command import Command
from ansible_collections.kpro.llm.plugins.module_utils._uv_steps import Counters


@dataclasses.dataclass(frozen=True)
class JobState:
    """Where a job stands; ``status`` and ``result`` are the worker's own words, empty until it has said anything."""

    running: bool
    job: dict[str, t.Any]
    status: dict[str, t.Any]
    result: dict[str, t.Any]


class _Expired(Exception):
    """The alarm rang before the lock was free."""


class Job:
    """A transient unit with its folder of files. The worker holds ``lock`` while it lives."""

    def __init__(self, unit: str, folder: str, command: Command) -> None:
        self.unit = unit
        self._command = command
        self._folder = pathlib.Path(folder)

    def state(self) -> JobState:
        """Return where the job stands now."""
        return JobState(not self._ended(0.0), self._read("job.json"), self._read("status.json"), self._read("result.json"))

    def wait(self, timeout_s: float) -> JobState:
        """Return when the worker ends, or after ``timeout_s``; it is woken by the end, it does not poll."""
        self._ended(timeout_s)
        return self.state()

    def start(self, worker: str, job: dict[str, t.Any]) -> None:
        """Write the job's files and start the unit, unless another call just did; returns when the worker holds its lock.

        :raises KproError: systemd refuses.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "start.lock").open("w") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            if self._ended(0.0):
                self._start(worker, job)

    def _start(self, worker: str, job: dict[str, t.Any]) -> None:
        for name in ("status.json", "result.json"):
            (self._folder / name).unlink(missing_ok=True)
        (self._folder / "worker.py").write_text(worker)
        self._write_private("job.json", json.dumps(job))
        self._command.run(["systemctl", "reset-failed", self.unit])
        properties = ["UMask=0022", "TimeoutStopSec=20", "NotifyAccess=main", "TasksMax=infinity"]
        self._command.check(
            ["systemd-run", "--quiet", f"--unit={self.unit}", "--service-type=notify"]
            + [f"--property={value}" for value in properties]
            + [f"--description=kpro.llm: build {job['target']}", "/usr/bin/python3", "-I", "-u"]
            + [str(self._folder / "worker.py"), str(self._folder)]
        )

    def why_it_ended(self) -> str:
        """Return systemd's word about a worker that ended without leaving a result."""
        shown = self._command.run(["systemctl", "show", "--property=Result,ExecMainStatus", self.unit]).stdout
        values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        return f"its process ended without a result (systemd: {values.get('Result', '?')}, status {values.get('ExecMainStatus', '?')})"

    @staticmethod
    def counters(state: JobState, now_s: float) -> Counters:
        """Return what can be counted of a running step."""
        target = pathlib.Path(str(state.job.get("target", "")))
        installed = sum(1 for _unused in target.glob("lib/python3.*/site-packages/*.dist-info"))
        complete = installed >= int(state.job.get("packages", 0))
        sources, compiled = _bytecode(target) if complete else (0, 0)
        return Counters(
            installed=installed,
            sources=sources,
            compiled=compiled,
            cached=_entries(str(state.job.get("archive", ""))),
            written_mib=_written_mib(int(state.status.get("pid", 0))),
            elapsed_s=max(now_s - float(state.status.get("started_at", now_s)), 0.0),
        )

    def _read(self, name: str) -> dict[str, t.Any]:
        try:
            return dict(json.loads((self._folder / name).read_text()))
        except (OSError, ValueError):
            return {}

    def _write_private(self, name: str, text: str) -> None:
        """Write a file that only root can read: addresses in it can hold a password."""
        part = self._folder / f"{name}.part"
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        part.replace(self._folder / name)

    def _ended(self, timeout_s: float) -> bool:
        """Say whether no worker holds the lock, waiting for it up to ``timeout_s``."""
        try:
            lock = (self._folder / "lock").open()
        except OSError:
            return True
        with lock:
            try:
                if timeout_s <= 0:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                else:
                    self._flock_within(lock, timeout_s)
            except (BlockingIOError, _Expired):
                return False
            return True

    @staticmethod
    def _flock_within(lock: t.IO[str], timeout_s: float) -> None:
        def ring(_number: int, _frame: t.Any) -> t.NoReturn:
            raise _Expired

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _written_mib(pid: int) -> int:
    """Return what a process has written so far, in MiB; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1]) >> 20
    return 0


def _entries(folder: str) -> int:
    """Return how many entries a folder has; 0 if it is not there."""
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _bytecode(folder: pathlib.Path) -> tuple[int, int]:
    """Return how many files of Python code a folder has, and how many files of bytecode."""
    sources = compiled = 0
    for _folder, _folders, names in os.walk(folder):
        sources += sum(name.endswith(".py") for name in names)
        compiled += sum(name.endswith(".pyc") for name in names)
    return sources, min(sources, compiled)
