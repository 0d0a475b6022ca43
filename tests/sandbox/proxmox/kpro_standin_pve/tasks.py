# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks as Proxmox keeps them: a UPID, a log file whose last line is the result, an index."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import ApiError, bad_parameters
from .node import Node

LOG_DIR = "/var/log/pve/tasks"
UPID = re.compile(
    r"UPID:(?P<node>[^:]+):(?P<pid>[0-9A-Fa-f]{8}):(?P<pstart>[0-9A-Fa-f]{8,9}):(?P<starttime>[0-9A-Fa-f]{8}):"
    r"(?P<type>[^:]+):(?P<id>[^:]*):(?P<user>[^:]+):"
)


@dataclass(frozen=True)
class Outcome:
    """A finished (or started) task: its UPID and how it ended ("OK", "WARNINGS: 1" or the error's text)."""

    upid: str
    exitstatus: str
    warnings: int = 0

    @property
    def is_success(self) -> bool:
        """Tell whether the task did its work."""
        return self.exitstatus == "OK" or self.exitstatus.startswith("WARNINGS: ")


class Task:
    """The log of one task; ``echo`` also gets each line (a command line prints it)."""

    def __init__(self, file: Path, echo: Callable[[str], None]) -> None:
        self._file = file
        self._echo = echo
        self.warnings = 0

    def log(self, line: str) -> None:
        """Add a line."""
        self._append(line)
        self._echo(line)

    def warn(self, text: str) -> None:
        """Add a warning; it turns the result into "WARNINGS: n"."""
        self.warnings += 1
        self.log(f"WARN: {text}")

    def _append(self, line: str) -> None:
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def close(self, error: str | None) -> str:
        """Write the last line and return the result."""
        if error is not None:
            self._append(f"TASK ERROR: {error}")
            return error
        if self.warnings:
            self._append("")
            self._append(f"TASK WARNINGS: {self.warnings}")
            return f"WARNINGS: {self.warnings}"
        self._append("TASK OK")
        return "OK"


def process_start_ticks(pid: int) -> int:
    """Return field 22 of /proc/PID/stat; 0 when the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def log_file(node: Node, upid: str) -> Path:
    """Return a task's log file; tasks are spread over folders by the last digit of their start time."""
    match = UPID.fullmatch(upid)
    if not match:
        raise bad_parameters({"upid": "unable to parse worker upid"})
    return node.path(f"{LOG_DIR}/{match['starttime'][-1].upper()}/{upid}")


def run_task(
    node: Node,
    kind: str,
    target: str,
    work: Callable[[Task, Node], None],
    echo: Callable[[str], None] | None = None,
    wait: bool = True,
) -> Outcome:
    """Run ``work`` in a process of its own that outlives the caller, as Proxmox's workers do.

    With ``wait`` the outcome tells how it ended (a failure is in it, never raised) and ``echo`` gets its lines as they
    come; without, the UPID of the running task is returned at once.
    """
    readable, writable = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(readable)
        try:
            os.setsid()
            # Nobody waits for a task in the background: one more process between, so that it is not left a zombie.
            if wait or os.fork() == 0:
                _work_in_child(node, kind, target, work, writable)
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, encoding="utf-8", errors="replace") as pipe:
        upid = pipe.readline().rstrip("\n")
        if not wait:
            os.waitpid(child, 0)
            return Outcome(upid, "")
        for line in pipe:
            if echo:
                echo(line.rstrip("\n"))
    os.waitpid(child, 0)
    result = str(status(node, upid)["exitstatus"])
    warnings = result.removeprefix("WARNINGS: ") if result.startswith("WARNINGS: ") else "0"
    return Outcome(upid, result, int(warnings))


def _work_in_child(node: Node, kind: str, target: str, work: Callable[[Task, Node], None], writable: int) -> None:
    pid = os.getpid()
    upid = f"UPID:{node.name}:{pid:08X}:{process_start_ticks(pid):08X}:{int(time.time()):08X}:{kind}:{target}:{node.user}:"
    file = log_file(node, upid)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o640)

    def tell(line: str) -> None:
        # When nobody listens any more, the log still has it.
        with contextlib.suppress(BrokenPipeError):
            os.write(writable, f"{line}\n".encode(errors="surrogateescape"))

    tell(upid)
    task = Task(file, tell)
    error: str | None = "unexpected error, see the standard error output"
    try:
        work(task, replace(node, notice=task.log))
        error = None
    except ApiError as failure:
        error = failure.message if not failure.errors else failure.cli_text().replace("\n", " ").strip()
    finally:
        _index(node, upid, task.close(error))


def _index(node: Node, upid: str, status: str) -> None:
    index = node.path(f"{LOG_DIR}/index")
    with open(index, "a", encoding="utf-8") as file:
        file.write(f"{upid} {int(time.time()):08X} {status}\n")


def decode(upid: str) -> dict[str, object]:
    """Return a UPID's parts as the API gives them."""
    match = UPID.fullmatch(upid)
    if not match:
        raise bad_parameters({"upid": "unable to parse worker upid"})
    user, _mark, token = match["user"].partition("!")
    parts: dict[str, object] = {
        "upid": upid, "node": match["node"], "pid": int(match["pid"], 16), "pstart": int(match["pstart"], 16),
        "starttime": int(match["starttime"], 16), "type": match["type"], "id": match["id"], "user": user,
    }  # fmt: skip
    if token:
        parts["tokenid"] = token
    return parts


def status(node: Node, upid: str) -> dict[str, object]:
    """Return a task's status; the result is read from the last line of its log."""
    parts = decode(upid)
    file = log_file(node, upid)
    if not file.exists():
        raise bad_parameters({"upid": "no such task"})
    result = _result(file)
    if result is None and process_start_ticks(int(str(parts["pid"]))):
        return {**parts, "status": "running"}
    return {**parts, "status": "stopped", "exitstatus": result or "unexpected status"}


def _result(file: Path) -> str | None:
    last = file.read_text(encoding="utf-8", errors="replace").rstrip("\n").rpartition("\n")[2]
    if last == "TASK OK":
        return "OK"
    for mark in ("TASK ERROR: ", "TASK "):
        if last.startswith(mark):
            return last[len(mark) :]
    return None


def log(node: Node, upid: str, start: int, limit: int) -> tuple[list[dict[str, object]], int]:
    """Return lines of a log from offset ``start`` (``limit`` 0 = all) and their total number."""
    try:
        lines = log_file(node, upid).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except OSError:
        return [{"n": 1, "t": "unable to open file - No such file or directory"}], 1
    end = len(lines) if limit == 0 else start + limit
    return [{"n": start + n, "t": text} for n, text in enumerate(lines[start:end], start=1)], len(lines)


def active(node: Node, vmid: str | None) -> list[dict[str, Any]]:
    """Return tasks that run now, newest first."""
    found: list[dict[str, Any]] = []
    for file in node.path(LOG_DIR).glob("*/UPID:*"):
        parts = decode(file.name)
        if vmid in (None, parts["id"]) and _result(file) is None and process_start_ticks(int(str(parts["pid"]))):
            found.append({**parts, "saved": "0", "status": "RUNNING"})
    return sorted(found, key=lambda row: int(row["starttime"]), reverse=True)


def listing(node: Node, vmid: str | None, kind: str | None, errors_only: bool) -> list[dict[str, Any]]:
    """Return finished tasks, newest first, narrowed by container, type and failure."""
    try:
        lines = node.path(f"{LOG_DIR}/index").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in lines:
        upid, end, result = line.split(" ", 2)
        parts = decode(upid)
        if vmid not in (None, parts["id"]) or kind not in (None, parts["type"]):
            continue
        if not errors_only or not Outcome(upid, result).is_success:
            found.append({**parts, "endtime": int(end, 16), "status": result})
    # A task that another one started ends first but began later.
    return sorted(found, key=lambda row: (row["starttime"], row["pid"]), reverse=True)
