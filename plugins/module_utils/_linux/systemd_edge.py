# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to systemd: units and the journal."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import time
import typing as t

from .._core.errors import KproError
from .command_edge import Command
from .run_identity import RunIdentity, start_ticks_of
from .unit_state import PROPERTIES, UnitState, unit_state_from_show


@dataclasses.dataclass(frozen=True)
class JournalLine:
    """One message of a unit.

    :param time_s: wall clock of the journal, seconds since the epoch.
    :param pid: process that wrote it (1: systemd itself).
    """

    time_s: float
    pid: int
    text: str


class Systemd:
    """Asks and tells systemd about one unit."""

    def __init__(self, unit: str, command: Command | None = None, proc: str = "/proc") -> None:
        self.unit = unit
        self._command = command or Command()
        self._proc = proc

    def state(self) -> UnitState:
        """Return what systemd knows about the unit (``load_state`` is ``not-found`` for an unknown one)."""
        answer = self._command.check(["systemctl", "show", self.unit, f"--property={','.join(PROPERTIES)}"])
        return unit_state_from_show(answer.stdout)

    def identity(self, state: UnitState, **names: str) -> RunIdentity:
        """Return who runs now; ``names`` are the engine version, model path and served name of the caller."""
        pid = state.main_pid or state.exec_main_pid
        return RunIdentity(
            unit=self.unit,
            invocation_id=state.invocation_id,
            boot_id=self.boot_id(),
            main_pid=state.main_pid,
            main_start_ticks=self.start_ticks(pid) if pid else 0,
            n_restarts=state.n_restarts,
            **names,
        )

    def shutting_down(self) -> bool:
        """Whether the whole system (the container, inside one) is on its way down."""
        return self._command.run(["systemctl", "is-system-running"]).stdout.strip() == "stopping"

    def boot_id(self) -> str:
        """Return the kernel's id of this boot (of the container, inside one)."""
        return self._read("sys/kernel/random/boot_id").strip()

    def uptime_s(self) -> float:
        """Return seconds on the clock of systemd's ``...TimestampMonotonic`` properties."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    def start_ticks(self, pid: int) -> int:
        """Return the start time of a process in clock ticks since boot; 0 if it is gone."""
        text = self._read(f"{pid}/stat")
        return start_ticks_of(text) if text else 0

    def daemon_reload(self) -> None:
        """Make systemd read its unit files again."""
        self._command.check(["systemctl", "daemon-reload"])

    def enable(self) -> None:
        """Start the unit at each boot."""
        self._command.check(["systemctl", "enable", self.unit])

    def disable(self) -> None:
        """Do not start the unit at boot."""
        self._command.check(["systemctl", "disable", self.unit])

    def start(self, timeout_s: float) -> None:
        """Start with a clean start limit, so that the limit counts only automatic restarts.

        :raises KproError: if systemd refuses, or the first program of the unit cannot be executed; with a ``diagnosis`` of class ``never_started``.
        """
        self._command.run(["systemctl", "reset-failed", self.unit])
        answer = self._command.run(["systemctl", "start", self.unit], timeout_s=timeout_s)
        if answer.rc:
            raise self._never_started(answer.last_error_line)

    def _never_started(self, said: str) -> KproError:
        state = self.state()
        lines = [line.text for line in self.journal(state.invocation_id, 20)] if state.invocation_id else []
        # systemd would restart it.
        self.stop_soon()
        why = next((line.partition(": ")[2] for line in lines if re.match(rf"{re.escape(self.unit)}: Failed (?:at step|to (?!.*result))", line)), said)
        cause = f"systemd could not start it{f' ({state.exit_words})' if state.exit_words else ''}: {why.strip() or state.result}"
        remedy = f"Look at systemctl status {self.unit} and systemctl cat {self.unit} in the container, then run the deployment again"
        diagnosis = {"class": "never_started", "phase": "", "cause": cause, "evidence": lines[-5:], "remedy": remedy, "direction": ""}
        return KproError(self.unit, cause, remedy, diagnosis={**diagnosis, "confidence": "certain", "action": "stop_and_report"})

    def stop(self, timeout_s: float) -> None:
        """Stop, wait, and end what is left by SIGKILL once ``timeout_s`` is over; a stop that ends in "failed" is a stop too."""
        try:
            self._command.check(["systemctl", "stop", self.unit], timeout_s=timeout_s)
        except KproError as error:
            if "rc" in error.details:
                raise
            self._command.run(["systemctl", "kill", "--signal=SIGKILL", self.unit])
            self._command.check(["systemctl", "stop", self.unit], timeout_s=60.0)
        self._command.run(["systemctl", "reset-failed", self.unit])

    def stop_soon(self) -> None:
        """Ask for a stop without waiting for it; the unit's own stop limit bounds it."""
        self._command.run(["systemctl", "stop", "--no-block", self.unit])

    def journal(self, invocation_id: str, lines: int = 2000) -> list[JournalLine]:
        """Return the last messages of one start, and systemd's about it."""
        answer = self._command.run([*_journal_argv(invocation_id), "--no-pager", f"--lines={lines}"])
        return [line for line in map(journal_line, answer.stdout.splitlines()) if line is not None]

    def last_lines(self, lines: int) -> list[str]:
        """Return the last messages of the unit since the boot, whichever start they are of."""
        argv = ["journalctl", "--output=json", "--all", f"--unit={self.unit}", "--boot", "--no-pager", f"--lines={lines}"]
        try:
            answer = self._command.run(argv)
        except KproError:
            return []
        return [line.text for line in map(journal_line, answer.stdout.splitlines()) if line is not None]

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._proc}/{name}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


class JournalFollower:
    """Follows the messages of one start; :meth:`fileno` makes it fit for a selector."""

    def __init__(self, invocation_id: str) -> None:
        try:
            self._process = subprocess.Popen(
                [*_journal_argv(invocation_id), "--follow", "--no-tail"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        except FileNotFoundError as error:
            raise KproError("journalctl", "the program is not there", "Run the module where systemd keeps the unit's journal") from error
        if self._process.stdout is None:
            raise KproError("journalctl", "it has no output to read")
        self._pipe = self._process.stdout
        self._rest = b""
        os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there are messages."""
        return self._pipe.fileno()

    def read(self) -> list[JournalLine] | None:
        """Return the messages that are there; None once the follower has ended."""
        try:
            data = os.read(self.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            return None
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        texts = (whole + newline).decode("utf-8", "replace").splitlines()
        return [line for line in map(journal_line, texts) if line is not None]

    def close(self) -> None:
        """End the follower."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def __enter__(self) -> JournalFollower:
        return self

    def __exit__(self, *_error: t.Any) -> None:
        self.close()


def journal_line(text: str) -> JournalLine | None:
    """Read one line of ``journalctl --output=json``; None if it holds no message."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    message = entry.get("MESSAGE") if isinstance(entry, dict) else None
    if isinstance(message, list):
        # journald gives bytes that are no clean text (colours, progress bars) as a list of numbers.
        message = bytes(number & 0xFF for number in message if isinstance(number, int)).decode("utf-8", "replace")
    if not isinstance(message, str):
        return None
    return JournalLine(int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6, int(entry.get("_PID", 0)), message)


def _journal_argv(invocation_id: str) -> list[str]:
    # The first field marks what the unit's processes wrote, the second what systemd wrote about this start.
    return [
        "journalctl",
        "--output=json",
        "--all",
        f"_SYSTEMD_INVOCATION_ID={invocation_id}",
        "+",
        f"INVOCATION_ID={invocation_id}",
    ]
