# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that remembers across calls how long one start has been waited for."""

from __future__ import annotations

import json
import os
import time
import typing as t

from .._linux.held_folder_edge import HeldFolder
from .._linux.state_file_edge import UnusableFile, read_state

# The next call of one task follows within the poll time; a longer gap means that somebody gave up and this is another wait.
_GAP_S = 90.0


class WaitRecord:
    """Seconds since the first call of the present wait, kept in a file that does not survive a reboot.

    :param run: the run that waits; another one waits anew.
    """

    def __init__(self, path: str, run: str = "") -> None:
        self._path = path
        self._run = run

    def elapsed_s(self, invocation_id: str) -> float:
        """Return the seconds since this wait began; 0.0 for a new one."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            note = self._note()
            same = note["invocation_id"] == invocation_id and note.get("run", "") == self._run and 0 <= now - note["last_s"] <= _GAP_S
            return float(now - note["began_s"]) if same else 0.0
        except (KeyError, TypeError, ValueError):
            return 0.0

    def memory_events(self, invocation_id: str) -> dict[str, int]:
        """Return the counts that were noted when the first call waited for this start; empty for a new one."""
        note = self._note()
        found = note.get("memory_events") if note.get("invocation_id") == invocation_id else None
        return {str(name): count for name, count in found.items() if isinstance(count, int)} if isinstance(found, dict) else {}

    def _note(self) -> dict[str, t.Any]:
        try:
            return read_state(self._path)
        except UnusableFile:
            return {}

    def keep(self, invocation_id: str, elapsed_s: float, memory_events: dict[str, int]) -> None:
        """Note that the wait goes on."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        note = {"invocation_id": invocation_id, "run": self._run, "began_s": now - elapsed_s, "last_s": now, "memory_events": memory_events}
        with HeldFolder.at(os.path.dirname(self._path), make=True) as folder:
            folder.write(os.path.basename(self._path), json.dumps(note).encode())

    def forget(self) -> None:
        """Delete the record."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return
