# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a job's unit ended without a word of its worker."""

from __future__ import annotations

import re
import signal
import typing as t

from .._core.errors import KproError
from .._linux.unit_state import UnitState

TOLD_LINES = 3
_WIDTH = 300
# systemd's own messages about each unit; they repeat the state.
_OF_SYSTEMD = re.compile(r"^(?:[\w@.-]+\.service: |Start(?:ed|ing) |Stopp(?:ed|ing) |Deactivated |Consumed )")
_OOM = re.compile(r"oom-kill|Out of memory|killed by the OOM killer|A process of this unit has been killed by the OOM", re.IGNORECASE)
_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]")


def silent_end(unit: str, state: UnitState, lines: t.Sequence[str], progress: str) -> KproError:
    """Return what is known of the end, and a remedy that follows from it.

    :param lines: the unit's last messages in the journal, systemd's own among them.
    :param progress: what the worker said last about its work.
    """
    said = [line.strip()[:_WIDTH] for line in lines if line.strip() and not _OF_SYSTEMD.match(line)]
    how = _how(state, lines)
    parts = [f"it ended without a result ({how})"]
    if progress:
        parts.append(f"it had come as far as: {progress.rstrip('.')}")
    if said:
        parts.append(f"its last words: {' / '.join(said[-TOLD_LINES:])}")
    return KproError(
        f"unit {unit}", ". ".join(part[0].upper() + part[1:] if number else part for number, part in enumerate(parts)), _remedy(unit, state, lines), output=said
    )


def _how(state: UnitState, lines: t.Sequence[str]) -> str:
    if state.result == "oom-kill" or (state.exec_status == signal.SIGKILL and any(_OOM.search(line) for line in lines)):
        return "ended by the kernel because the memory was used up"
    if state.result == "timeout":
        return "ended by systemd at a time limit"
    return state.exit_words or ("" if state.result == "success" else state.result) or "systemd knows the unit no more"


def _remedy(unit: str, state: UnitState, lines: t.Sequence[str]) -> str:
    """Only an end from outside is no reason for the next run to end likewise."""
    see = f"See journalctl -u {unit} there"
    if state.result == "oom-kill" or any(_OOM.search(line) for line in lines):
        return (
            f"Give the machine more memory (a container: gpu_container__memory_mib), or end what else uses it, then run again: what has arrived is kept. {see}"
        )
    if any(_FULL.search(line) for line in lines):
        return f"Free space on the file system that is full, then run again: what has arrived is kept. {see}"
    if "signal" in state.exit_words:
        return f"Run again: what has arrived is kept. If it is ended once more, look who does it (journalctl -k, and the system's log). {see}"
    if state.exit_words and state.exec_status:
        return f"Correct what its last words say: the same command would end the same way. {see}"
    return f"If the system was restarted meanwhile, run again: what has arrived is kept. Otherwise look at what ended it. {see}"
