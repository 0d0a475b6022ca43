# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to work that outlives the connection: a worker in a transient systemd unit.

A module's own code is gone when the module returns, so the worker's modules are packed into one file beside the job.
"""

from __future__ import annotations

import ast
import dataclasses
import fcntl
import importlib
import importlib.util
import io
import json
import os
import sys
import time
import types
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
# Report a result once; older than 60 s means an earlier run.
STALE_END_S = 60.0
LOOK_S = 0.2
# A worker exits soon after it has written its end.
GOES_S = 30.0
ASK_SYSTEMD_S = 2.0
KEPT_LINES = 60


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

    def start(self, entry: types.ModuleType, job: t.Mapping[str, t.Any], description: str, properties: t.Sequence[str] = ()) -> None:
        """Start ``main(folder)`` of the module ``entry`` in the unit; a running unit is left as it is.

        :param properties: further properties of the unit, like ``TimeoutStopSec=20``.
        :raises KproError: if systemd refuses.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        # Two runs may get here at the same moment: the second one has to find the unit of the first, not write over its job.
        with open(os.path.join(self.folder, "start.lock"), "wb") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            if not self.running():
                self._start(entry, job, [f"--description={description}", *(f"--property={value}" for value in ("Type=exec", *properties))])

    def _start(self, entry: types.ModuleType, job: t.Mapping[str, t.Any], options: t.Sequence[str]) -> None:
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


def worker_archive(entry: types.ModuleType) -> bytes:
    """Return a program that holds a module of module_utils, all that it imports from the collection, and a call of its ``main``."""
    sources: dict[str, str] = {}
    todo = [entry.__name__]
    while todo:
        name = todo.pop()
        if name not in sources:
            sources[name] = _source(name)
            todo += imported(name, sources[name])
    start = f"import sys\nfrom {entry.__name__} import main\nraise SystemExit(main(sys.argv[1]))\n"
    packages = {name.rsplit(".", depth)[0] for name in sources for depth in range(1, name.count(".") + 1)}
    files = {"__main__.py": start}
    files |= {f"{package.replace('.', '/')}/__init__.py": "" for package in packages}
    files |= {f"{name.replace('.', '/')}.py": text for name, text in sources.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def imported(name: str, source: str) -> list[str]:
    """Return the modules of module_utils that a module imports, anywhere in its source: also relatively, inside a function, or for types only.

    :param name: the module's full name, from which relative imports start.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = name.rsplit(".", node.level)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from package import module` and `from module import name` look alike; only the names tell which it is.
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return [module for module in dict.fromkeys(found) if module.startswith(f"{PACKAGE}.") and _is_file(module)]


def _is_file(name: str) -> bool:
    """Tell whether a name is a module with a file, neither a package nor something inside a module."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return False
    return found is not None and found.submodule_search_locations is None


def _source(name: str) -> str:
    found = importlib.import_module(name).__loader__.get_source(name)  # type: ignore[union-attr]  # every loader used here has it
    # Ansible's own loader gives bytes.
    return found.decode() if isinstance(found, bytes) else str(found)


def _write_private(path: str, data: bytes) -> None:
    draft = f"{path}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(draft, path)
