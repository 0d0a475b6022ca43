# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to work that outlives the connection: a worker in a transient systemd unit.

A module's own code is gone when the module returns, so the worker's modules are packed into one file beside the job.
"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib
import io
import json
import os
import re
import sys
import time
import typing as t
import zipfile

from .._core.errors import KproError
from .._linux.command_edge import Command
from .._linux.held_folder_edge import read_bounded
from .._linux.systemd_edge import Systemd
from .end import silent_end
from .status_edge import JobStatus

PACKAGE = "ansible_collections.kpro.llm.plugins.module_utils"
RUN_DIRECTORY = "/run/kpro-llm"
JOB_NAME = "job.json"
JOB_BYTES = 64 << 20
# An end is reported once, to the call that was waiting; one that nobody took belongs to an earlier run.
STALE_END_S = 60.0
LOOK_S = 0.2
# A worker that has told its end is gone in a moment.
GOES_S = 30.0
ASK_SYSTEMD_S = 2.0
KEPT_LINES = 60
_IMPORT = re.compile(r"plugins\.module_utils(?:\.(_\w+) import| import (_\w+))")


@dataclasses.dataclass(frozen=True)
class JobAnswer:
    """Where a job stands: ``finished`` with the ``result`` of its worker, or not, with a ``progress`` line."""

    finished: bool
    progress: str = ""
    result: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


class LongJob:
    """One job: its unit, its folder, its status.

    :param unit: name of the unit, ending in ``.service``; the same work has always the same name.
    """

    def __init__(self, unit: str, command: Command | None = None) -> None:
        self.unit = unit
        self.folder = os.path.join(RUN_DIRECTORY, unit.removesuffix(".service"))
        self._command = command or Command()
        self._systemd = Systemd(unit, self._command)
        self._status = JobStatus(self.folder)

    def running(self) -> bool:
        """Tell whether the unit is at work; one whose worker has told its end is not, although it may still be there for a moment."""
        found = self._status.read()
        return self._active() and not (found and found["state"] != "running")

    def _active(self) -> bool:
        return self._systemd.state().active_state in ("active", "activating", "deactivating")

    def job(self) -> dict[str, t.Any]:
        """Return what the running job, or the last one since the boot, was told to do; empty if there was none."""
        try:
            return dict(json.loads(read_bounded(os.path.abspath(os.path.join(self.folder, JOB_NAME)), JOB_BYTES)))
        except (OSError, ValueError, RecursionError):
            return {}

    def start(self, entry: str, job: t.Mapping[str, t.Any], description: str, properties: t.Sequence[str] = ()) -> None:
        """Start ``main(folder)`` of the module_utils file ``entry`` in the unit; a running unit is left as it is.

        :param properties: further properties of the unit, like ``TimeoutStopSec=20``.
        :raises KproError: if systemd refuses.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        # Two runs may get here at the same moment: the second one has to find the unit of the first, not write over its job.
        with open(os.path.join(self.folder, "start.lock"), "wb") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            if not self.running():
                self._start(entry, job, [f"--description={description}", *(f"--property={value}" for value in ("Type=exec", *properties))])

    def _start(self, entry: str, job: t.Mapping[str, t.Any], options: t.Sequence[str]) -> None:
        until = time.monotonic() + GOES_S
        while self._active() and time.monotonic() < until:
            time.sleep(LOOK_S)
        self._status.clear()
        archive = os.path.join(self.folder, "worker.pyz")
        _write_private(archive, worker_archive(entry))
        _write_private(os.path.join(self.folder, JOB_NAME), json.dumps(job).encode())
        self._command.run(["systemctl", "reset-failed", self.unit])
        argv = ["systemd-run", "--quiet", f"--unit={self.unit}", *options]
        answer = self._command.run([*argv, sys.executable or "/usr/bin/python3", "-I", archive, self.folder])
        if answer.rc != 0 and not self.running():
            raise KproError(f"unit {self.unit}", f"systemd did not start it ({answer.last_error_line})", "See systemctl status there")

    def wait(self, poll_s: float) -> JobAnswer:
        """Wait for the end of the job, ``poll_s`` at most.

        :raises KproError: the job's own failure, or that it ended without a word, with what systemd and the journal know.
        """
        until, ask = time.monotonic() + poll_s, 0.0
        while True:
            found = self._status.read()
            if found and found["state"] != "running":
                return self._ended(found)
            now = time.monotonic()
            if now >= ask:
                ask = now + ASK_SYSTEMD_S
                if not self._active():
                    found = self._status.read()
                    if found and found["state"] != "running":
                        return self._ended(found)
                    raise self._silent_end()
            if now >= until:
                return JobAnswer(False, str(found["progress"]) if found else "Starting")
            time.sleep(LOOK_S)

    def unread(self) -> bool:
        """Tell whether an end waits that no call has reported yet."""
        found = self._status.read()
        return bool(found and found["state"] != "running" and not found.get("reported") and found["age_s"] < STALE_END_S)

    def _ended(self, found: dict[str, t.Any]) -> JobAnswer:
        # It stays, for another run that waits for the same job, until the next start.
        self._status.report(found)
        if found["state"] == "failed":
            raise KproError(found["what"], found["reason"], found["remedy"], **found["details"])
        return JobAnswer(True, result=found["result"])

    def _silent_end(self) -> KproError:
        state = self._systemd.state()
        found = self._status.read() or {}
        self._status.clear()
        # systemd forgets an instance of the unit that ended well or was cleaned away; the journal does not.
        lines = [line.text for line in self._systemd.journal(state.invocation_id, KEPT_LINES)] if state.invocation_id else self._systemd.last_lines(KEPT_LINES)
        return silent_end(self.unit, state, lines, str(found.get("progress", "")))


def worker_archive(entry: str) -> bytes:
    """Return a program that holds a module_utils file, all that it imports from the collection, and a call of its ``main``."""
    sources: dict[str, str] = {}
    todo = [entry]
    while todo:
        name = todo.pop()
        if name not in sources:
            sources[name] = _source(name)
            todo += [first or second for first, second in _IMPORT.findall(sources[name])]
    start = f"import sys\nfrom {PACKAGE} import {entry}\nraise SystemExit({entry}.main(sys.argv[1]))\n"
    files = {"__main__.py": start}
    parts = PACKAGE.split(".")
    files |= {"/".join([*parts[: depth + 1], "__init__.py"]): "" for depth in range(len(parts))}
    files |= {"/".join([*parts, f"{name}.py"]): text for name, text in sources.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _source(name: str) -> str:
    module = importlib.import_module(f"{PACKAGE}.{name}")
    found = module.__loader__.get_source(module.__name__)  # type: ignore[union-attr]  # every loader used here has it
    # Ansible's own loader gives bytes.
    return found.decode() if isinstance(found, bytes) else str(found)


def _write_private(path: str, data: bytes) -> None:
    draft = f"{path}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(draft, path)
