# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks as Proxmox keeps them: a UPID, a log file whose last line is the result, an index."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import ApiError, bad_parameters, failed
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
    """The log of one task: ``write`` gets each line and knows whether that is the log itself or whoever waits for the task."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.warnings = 0

    def log(self, line: str) -> None:
        """Add a line."""
        self._write(line)

    def warn(self, text: str) -> None:
        """Add a warning; it turns the result into "WARNINGS: n"."""
        self.warnings += 1
        self.log(f"WARN: {text}")

    def result(self, error: str | None) -> str:
        """Return how the task ended."""
        if error is not None:
            return error
        return f"WARNINGS: {self.warnings}" if self.warnings else "OK"


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
    """Run ``work`` in a process of its own, as Proxmox's workers do.

    With ``wait`` (a command line) its lines go through a pipe to the caller, who writes the log: a worker whose caller was killed
    dies of SIGPIPE at its next line, without an end in the log and without undoing anything. Without (the API) the UPID is returned
    at once, and the worker writes its log itself and outlives everybody. A failure is in the outcome, never raised.
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
                _work_in_child(node, kind, target, work, writable, wait)
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, encoding="utf-8", errors="replace") as pipe:
        upid = pipe.readline().rstrip("\n")
        if not wait:
            os.waitpid(child, 0)
            return Outcome(upid, "")
        with _signals_go_to(child):
            _keep_log(node, upid, pipe, echo)
    os.waitpid(child, 0)
    result = str(status(node, upid)["exitstatus"])
    warnings = result.removeprefix("WARNINGS: ") if result.startswith("WARNINGS: ") else "0"
    return Outcome(upid, result, int(warnings))


END = "\0end "  # before the result in the pipe to the caller


def _keep_log(node: Node, upid: str, pipe: Iterable[str], echo: Callable[[str], None] | None) -> None:
    """Write the lines that come from a worker into its log, and show them."""
    file = log_file(node, upid)
    for line in pipe:
        text = line.rstrip("\n")
        if text.startswith(END):
            _end(node, upid, file, text.removeprefix(END))
            continue
        _append(file, text)
        if echo:
            echo(text)


@contextlib.contextmanager
def _signals_go_to(child: int) -> Iterator[None]:
    """Hand an interrupt on to the worker, as Proxmox's command lines do; it undoes its work then."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

    def hand_on(_number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGTERM)

    try:
        before = {name: signal.signal(name, hand_on) for name in names}
    except ValueError:  # only a process's main thread may
        before = {}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _interrupted(_number: int, _frame: object) -> None:
    raise failed("received interrupt")


def _work_in_child(node: Node, kind: str, target: str, work: Callable[[Task, Node], None], writable: int, wait: bool) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    pid = os.getpid()
    upid = f"UPID:{node.name}:{pid:08X}:{process_start_ticks(pid):08X}:{int(time.time()):08X}:{kind}:{target}:{node.user}:"
    file = log_file(node, upid)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o640)

    def tell(line: str) -> None:
        os.write(writable, f"{line}\n".encode(errors="surrogateescape"))

    tell(upid)
    task = Task(tell if wait else lambda line: _append(file, line))
    error: str | None = "unexpected error, see the standard error output"
    try:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            with contextlib.suppress(ValueError):
                signal.signal(name, _interrupted)
        work(task, replace(node, notice=task.log))
        error = None
    except ApiError as failure:
        error = failure.message if not failure.errors else failure.cli_text().replace("\n", " ").strip()
    finally:
        result = task.result(error)
        if wait:
            tell(f"{END}{result}")
        else:
            _end(node, upid, file, result)


def _append(file: Path, line: str) -> None:
    with open(file, "a", encoding="utf-8", errors="surrogateescape") as log:
        log.write(f"{line}\n")


def _end(node: Node, upid: str, file: Path, result: str) -> None:
    """Write the last line of a log and the task's line in the index."""
    if result.startswith("WARNINGS: "):
        _append(file, "")
    _append(file, f"TASK {result}" if Outcome(upid, result).is_success else f"TASK ERROR: {result}")
    with open(node.path(f"{LOG_DIR}/index"), "a", encoding="utf-8") as index:
        index.write(f"{upid} {int(time.time()):08X} {result}\n")


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
