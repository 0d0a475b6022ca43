# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that ends processes, each identified by its start time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time
import typing as t

from .processes import Process
from .processes_edge import ProcessTable


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended: gone, terminated, killed, or alive (it did not end)."""

    process: Process
    how: str


class Ender:
    """Sends TERM, waits for the end (an event, by pidfd), sends KILL to the rest."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table

    def end(self, processes: t.Sequence[Process], term_wait_s: float, kill_wait_s: float) -> list[Ending]:
        """End processes; one whose PID belongs to another process by now is left alone and counts as gone."""
        handles = {process.pid: self._open(process) for process in processes}
        try:
            alive = [process for process in processes if handles[process.pid] is not None]
            terminated = self._signal_and_wait(alive, handles, signal.SIGTERM, term_wait_s)
            alive = [process for process in alive if process.pid not in terminated]
            killed = self._signal_and_wait(alive, handles, signal.SIGKILL, kill_wait_s)
        finally:
            for handle in handles.values():
                if handle is not None:
                    os.close(handle)
        return [Ending(process, self._how(process, handles, terminated, killed)) for process in processes]

    @staticmethod
    def _how(process: Process, handles: t.Mapping[int, int | None], terminated: set[int], killed: set[int]) -> str:
        if handles[process.pid] is None:
            return "gone"
        if process.pid in terminated:
            return "terminated"
        return "killed" if process.pid in killed else "alive"

    def _open(self, process: Process) -> int | None:
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:
            return None
        # The handle stands for one process; the start time proves that it is the one that was judged.
        present = self._table.process(process.pid)
        if present is None or present.start_ticks != process.start_ticks:
            os.close(handle)
            return None
        return handle

    @staticmethod
    def _signal_and_wait(processes: t.Sequence[Process], handles: t.Mapping[int, int | None], number: signal.Signals, wait_s: float) -> set[int]:
        waiting: dict[int, int] = {}
        for process in processes:
            handle = handles[process.pid]
            if handle is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            waiting[handle] = process.pid
        ended: set[int] = set()
        deadline = time.monotonic() + wait_s
        while waiting and time.monotonic() < deadline:
            poller = select.poll()
            for handle in waiting:
                poller.register(handle, select.POLLIN)
            for handle, _event in poller.poll(max(1.0, 1000 * (deadline - time.monotonic()))):
                ended.add(waiting.pop(handle))
        return ended
