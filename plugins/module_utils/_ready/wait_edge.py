# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that waits for a start to become ready or lost, woken by events.

Three things wake it: the unit's journal (followed by invocation), the end of the main process (pidfd), and the end of an HTTP walk.
"""

from __future__ import annotations

import dataclasses
import os
import re
import select
import selectors
import threading
import time
import typing as t

from .._engine.failures import Failure
from .._engine.start_log import StartLog
from .._linux.processes import process_words, within_cgroup
from .._linux.processes_edge import ProcessTable
from .._linux.run_identity import RunIdentity, identity_change
from .._linux.systemd_edge import JournalFollower, Systemd
from .._linux.unit_state import UnitState
from .walk import Attempt

# A server that serves answers a walk in little more than a second; the journal of one that is up for days is read only if it does not.
_FIRST_WALK_S = 3.0
_YOUNG_S = 1800.0
_RETRY_S = 0.5
# The rest of a traceback arrives with the fatal line or right after it.
_QUIET_S = 0.1
_LAST_WORDS_S = 1.5
# Messages of the engine and our gate when another process has the port.
_PORT_LOST = re.compile(r"address already in use|^gate: port ")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a wait: ``ready``, ``waiting`` (nothing yet) or ``lost`` with (class, sentence)."""

    kind: str
    attempt: Attempt
    log: StartLog
    unit: UnitState
    loss: tuple[str, str] = ("", "")


class _Walk:
    """Runs HTTP walks in a thread, one at a time, and rings a pipe at the end of each."""

    def __init__(self, walk: t.Callable[[], Attempt]) -> None:
        self._walk = walk
        self._done: list[Attempt] = []
        self.busy = False
        self.pipe, self._bell = os.pipe()

    def begin(self) -> None:
        self.busy = True
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._done.append(self._walk())
        os.write(self._bell, b"!")

    def take(self) -> Attempt:
        os.read(self.pipe, 1)
        self.busy = False
        return self._done.pop()


class ReadyWait:
    """Waits for one start, identified by ``identity``, on one port.

    :param walk: one walk through the levels (blocking, bounded by its own timeouts).
    :param port: the port whose listener must belong to the unit.
    """

    def __init__(self, systemd: Systemd, identity: RunIdentity, walk: t.Callable[[], Attempt], port: int, table: ProcessTable | None = None) -> None:
        self._systemd = systemd
        self._identity = identity
        self._port = port
        self._table = table or ProcessTable()
        self._walk = _Walk(walk)
        self._log = StartLog()
        self._last = Attempt()
        self._selector = selectors.DefaultSelector()
        self._follower: JournalFollower | None = None

    def run(self, poll_s: float, hang_budgets_s: t.Mapping[str, float] | None = None, waited_s: float = 0.0) -> Outcome:
        """Return when ready or lost, or what is known after ``poll_s`` seconds; a walk under way is always waited for.

        :param waited_s: how long earlier calls have waited for this start.
        """
        pidfd = self._open_pidfd()
        self._selector.register(self._walk.pipe, selectors.EVENT_READ, "walk")
        try:
            return self._loop(time.monotonic() + poll_s, hang_budgets_s or {}, waited_s)
        finally:
            if pidfd is not None:
                os.close(pidfd)
            if self._follower is not None:
                self._follower.close()
            self._selector.close()

    def _loop(self, deadline: float, hang_budgets_s: t.Mapping[str, float], waited_s: float) -> Outcome:
        began = time.monotonic()
        unit = self._systemd.state()
        loss = self._unit_loss(unit)
        if loss:
            return self._lost(loss, unit)
        if self._systemd.uptime_s() - unit.exec_main_start_us / 1e6 < _YOUNG_S:
            self._follow()
        self._walk.begin()
        retry_at = began
        while True:
            now = time.monotonic()
            if self._follower is None and now - began >= _FIRST_WALK_S:
                self._follow()
            if not self._walk.busy and now >= retry_at:
                self._walk.begin()
            if now >= deadline and not self._walk.busy:
                unit = self._systemd.state()
                hang = self._log.hang(time.time(), hang_budgets_s, waited_s + now - began)
                loss = self._unit_loss(unit) or ((Failure.HANG, hang) if hang else None)
                return self._lost(loss, unit) if loss else Outcome("waiting", self._last, self._log, unit)
            events = self._events(now + 1.0 if self._walk.busy else min(now + 1.0, retry_at, deadline))
            if "walk" in events:
                self._last = self._walk.take()
                retry_at = time.monotonic() + _RETRY_S
                verdict = self._judge_walk()
                if verdict is not None:
                    return verdict
                self._follow()
            if "journal" in events and self._read_journal():
                retry_at = min(retry_at, time.monotonic())
            if "exit" in events or self._log.fatal:
                verdict = self._judge_unit(ended="exit" in events)
                if verdict is not None:
                    return verdict

    def _events(self, until: float) -> set[str]:
        ready = self._selector.select(max(0.0, until - time.monotonic()))
        return {str(key.data) for key, _mask in ready}

    def _judge_walk(self) -> Outcome | None:
        if not self._last.reached:
            return None
        unit = self._systemd.state()
        foreign = self._foreign_listener(unit)
        if foreign:
            return self._lost((Failure.OTHER_SERVER_ANSWERS, foreign), unit)
        loss = self._unit_loss(unit) or self._last.fault
        if loss:
            return self._lost(loss, unit)
        if not self._last.ready:
            return None
        self._hear_first_words()
        return Outcome("ready", self._last, self._log, unit)

    def _judge_unit(self, ended: bool) -> Outcome | None:
        self._hear_last_words(wait_for_systemd=ended)
        unit = self._systemd.state()
        loss = self._unit_loss(unit)
        if loss is None and self._log.fatal:
            loss = (Failure.START_FAILED, f"the start has failed although {self._identity.unit} is still {unit.active_state}: {self._log.fatal.strip()}")
        return self._lost(loss, unit) if loss else None

    def _unit_loss(self, unit: UnitState) -> tuple[str, str] | None:
        if not self._identity.invocation_id:
            return (Failure.NEVER_STARTED, f"{self._identity.unit} was never started, it is {unit.active_state or 'absent'}")
        present = self._systemd.identity(unit)
        change = identity_change(self._identity, present)
        if change:
            return (Failure.CRASH_LOOP if present.n_restarts > self._identity.n_restarts else Failure.IDENTITY_CHANGED, change)
        if unit.waiting_for_restart:
            return (Failure.CRASHED, f"the main process ended ({unit.exit_words}), systemd is about to start it again")
        if unit.active_state in ("failed", "inactive", "deactivating") or not unit.main_pid:
            words = f": {unit.exit_words}" if unit.exit_words else ""
            return (Failure.CRASHED, f"{self._identity.unit} is {unit.active_state or 'absent'} (result {unit.result or 'unknown'}{words})")
        return None

    def _foreign_listener(self, unit: UnitState) -> str:
        listens, holder = self._table.listener(self._port, prefer=unit.control_group)
        if not listens or (holder and within_cgroup(holder.cgroup, unit.control_group)):
            return ""
        who = process_words(holder) if holder else "a process that cannot be seen from here"
        ours = f" (pid {unit.main_pid})" if unit.main_pid else ""
        return f"port {self._port} is held by {who}, not by {self._identity.unit}{ours}"

    def _open_pidfd(self) -> int | None:
        if not self._identity.main_pid:
            return None
        try:
            pidfd = os.pidfd_open(self._identity.main_pid)
        except OSError:
            return None
        if self._systemd.start_ticks(self._identity.main_pid) != self._identity.main_start_ticks:
            os.close(pidfd)
            return None
        self._selector.register(pidfd, selectors.EVENT_READ, "exit")
        return pidfd

    def _follow(self) -> None:
        if self._follower is None and self._identity.invocation_id:
            self._follower = JournalFollower(self._identity.invocation_id)
            self._selector.register(self._follower.fileno(), selectors.EVENT_READ, "journal")

    def _read_journal(self) -> bool:
        """Take what is there; True if a line came that may mean "ask again now"."""
        lines = self._follower.read() if self._follower else []
        if lines is None:
            # The journal was rotated away or journalctl was ended: begin again, from the first line.
            self._selector.unregister(self._follower.fileno())  # type: ignore[union-attr]  # None was read from it
            self._follower.close()  # type: ignore[union-attr]
            self._follower, self._log = None, StartLog()
            return False
        before = self._log.phase
        for line in lines:
            self._log.feed(line.text, line.time_s)
        return self._log.phase != before

    def _hear_first_words(self) -> None:
        """A server that was ready at once has answered before its journal was read; what that says belongs to the answer."""
        wait_s = 0.0 if self._log.lines else _LAST_WORDS_S
        while wait_s and self._follower is not None and select.select([self._follower.fileno()], [], [], wait_s)[0]:
            self._read_journal()
            wait_s = _QUIET_S

    def _hear_last_words(self, wait_for_systemd: bool) -> None:
        self._follow()
        end = time.monotonic() + _LAST_WORDS_S
        while self._follower is not None and time.monotonic() < end:
            # Once the process is gone, stop at systemd's line; until then, at silence.
            quiet_s = end - time.monotonic() if wait_for_systemd else _QUIET_S
            heard = select.select([self._follower.fileno()], [], [], max(0.0, quiet_s))[0]
            if not heard:
                return
            self._read_journal()
            if any("Main process exited" in line for line in self._log.lines[-5:]):
                wait_for_systemd = False

    def _lost(self, loss: tuple[str, str], unit: UnitState) -> Outcome:
        if not self._log.lines and self._identity.invocation_id:
            for line in self._systemd.journal(self._identity.invocation_id):
                self._log.feed(line.text, line.time_s)
        if loss[0] in (Failure.CRASHED, Failure.START_FAILED) and _PORT_LOST.search(self._log.fatal):
            foreign = self._foreign_listener(unit)
            loss = (Failure.OTHER_SERVER_ANSWERS, foreign) if foreign else loss
        elif loss[0] == Failure.CRASHED and self._systemd.shutting_down():
            loss = (Failure.CONTAINER_STOPPING, f"the container is shutting down, and {self._identity.unit} with it")
        return Outcome("lost", self._last, self._log, unit, loss)
