# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to a job's status: one small file that the job writes about itself."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
import typing as t

from .._core.errors import KproError
from .._linux.held_folder_edge import read_bounded

NAME = "status.json"


class JobStatus:
    """Writes and reads ``status.json`` of a job's folder; each write replaces the file whole.

    One thread at a time writes: who tells progress in a thread ends it before the job's end is written.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._last = ""

    def running(self, line: str) -> None:
        """Say how far the job is."""
        if line != self._last:
            self._write({"state": "running", "progress": line})
            self._last = line

    def done(self, **result: t.Any) -> None:
        """Say that the job has succeeded."""
        self._write({"state": "done", "result": result})

    def failed(self, error: KproError) -> None:
        """Say why the job has failed."""
        self._write({"state": "failed", "what": error.what, "reason": error.reason, "remedy": error.remedy, "details": error.details})

    def read(self) -> dict[str, t.Any] | None:
        """Return what was written last, with ``age_s``; None if nothing was."""
        try:
            found: dict[str, t.Any] = json.loads(read_bounded(os.path.abspath(self._path)))
        except (OSError, ValueError, RecursionError):
            return None
        found["age_s"] = time.clock_gettime(time.CLOCK_BOOTTIME) - found.pop("boot_s", 0.0)
        return found

    def report(self, found: t.Mapping[str, t.Any]) -> None:
        """Note that an end, as :meth:`read` gave it, was told to a caller; others who wait for the same job still find it."""
        values = {name: value for name, value in found.items() if name != "age_s"}
        self._write({**values, "reported": True}, age_s=float(found["age_s"]))

    def clear(self) -> None:
        """Forget what was written."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _write(self, values: dict[str, t.Any], age_s: float = 0.0) -> None:
        values["boot_s"] = time.clock_gettime(time.CLOCK_BOOTTIME) - age_s
        draft = f"{self._path}.{os.getpid()}.{threading.get_ident()}.new"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(values, file)
        os.replace(draft, self._path)


def run_worker(folder: str, work: t.Callable[[dict[str, t.Any], JobStatus], t.Mapping[str, t.Any]], what: str) -> int:
    """Do the job of a folder and write how it ended, whatever ends it: a waiting run can only tell what is written.

    :param work: does the job and returns its result.
    :param what: the thing that the job makes, for an error that names none.
    """
    status = JobStatus(folder)
    path = os.path.join(folder, "job.json")
    try:
        with open(path, encoding="utf-8") as file:
            job = json.load(file)
        outcome = work(job, status)
    except KproError as error:
        status.failed(error)
    except Exception as error:  # the last one who can say it; the traceback goes to the journal
        traceback.print_exc(file=sys.stderr)
        status.failed(unforeseen(what, error))
    else:
        status.done(**outcome)
    # The status tells the outcome; a failed unit would only stay and make the system "degraded".
    return 0


def unforeseen(what: str, error: Exception) -> KproError:
    """Return an error that no code expected, with the file or place that it came from."""
    if isinstance(error, OSError) and error.strerror:
        path = next((str(name) for name in (error.filename2, error.filename) if name), "")
        reason = f"{path}: {error.strerror}" if path else error.strerror
        return KproError(what, reason, "Correct that, then run again: the same command would end the same way")
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({os.path.basename(last[0].filename)}, line {last[0].lineno})" if last else ""
    return KproError(what, f"{type(error).__name__}: {error}{place}", "Report this with the unit's journal: the same command would end the same way")
