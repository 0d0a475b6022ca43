# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A start-up log read as phases.

The order of the lines is that of SGLang 0.5.23; wordings of 0.5.9 and 0.5.10 are accepted where they differ.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing as t


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of a start.

    :param begins: pattern of the line that begins it.
    :param words: what goes on, for a person.
    :param budget_s: seconds without any new line in this phase after which the start counts as hanging.
    """

    name: str
    begins: re.Pattern[str]
    words: str
    budget_s: float


def _phase(name: str, begins: str, words: str, budget_s: float) -> Phase:
    return Phase(name, re.compile(begins), words, budget_s)


# Budgets: far above what was seen on slow disks (weights over a network share, first kernel build), see the role's README.
PHASES = (
    _phase("gate", r"^$", "gate checks GPUs, port and versions", 300),
    _phase("launch", r"^gate: ok", "Python loads the engine", 600),
    _phase("options", r"server_args=", "engine loads its modules and starts its processes", 600),
    _phase("distributed", r"Init (?:torch distributed|parallel) begin", "GPU processes find each other", 300),
    _phase("weights", r"Load weight begin", "weights are loaded", 1800),
    _phase("pools", r"Load weight end", "memory pools are allocated", 600),
    _phase("graphs", r"[Cc]apture (?:\w+ )*(?:cuda|CUDA) graphs? begin|Capture cuda graph", "kernels are built, graphs captured", 1800),
    _phase("scheduler", r"max_total_num_tokens=", "scheduler starts", 300),
    _phase("warmup", r"Uvicorn running on", "first request warms the engine up", 900),
    _phase("serving", r"The server is fired up and ready to roll", "serves", 300),
    _phase("draining", r"SIGTERM received|Gracefully exiting", "ends its requests", 300),
)
_ORDER = {phase.name: index for index, phase in enumerate(PHASES)}
_BY_NAME = {phase.name: phase for phase in PHASES}

# Lines after which this start cannot become ready any more, although the main process may live on for minutes.
_FATAL = re.compile(
    r"Scheduler hit an exception|Received sigquit from a child process|Subprocess \S+ \(pid=\d+\) crashed"
    r"|address already in use|Initialization failed\. warmup error|sglang serve: error:|Capture cuda graph failed"
    r"|^\[?.*\bTP\d+.*(?:OutOfMemoryError|CUDA out of memory)|Main process exited|^gate: (?!ok)"
)
_ACCESS_LOG = re.compile(r'"(?:GET|POST|HEAD) \S+ HTTP/1\.[01]"')
_RANK = re.compile(r"\b(?:TP|DP|PP)(\d+)\b")
_SHARDS = re.compile(r"shards:?\s*(\d+)\s*%")


@dataclasses.dataclass
class StartLog:
    """The state of a start by the lines read so far; :meth:`feed` them in order."""

    phase: str = "gate"
    phase_since_s: float = 0.0
    last_progress_s: float = 0.0
    begun_s: dict[str, float] = dataclasses.field(default_factory=dict)
    detail: str = ""
    lines: list[str] = dataclasses.field(default_factory=list)
    fatal: str = ""
    fatal_s: float = 0.0

    def feed(self, text: str, time_s: float = 0.0) -> None:
        """Take the next line; ``time_s`` on any clock that does not jump."""
        self.lines.append(text)
        if not self.begun_s:
            self.begun_s["gate"] = self.phase_since_s = self.last_progress_s = time_s
        if _ACCESS_LOG.search(text):
            return
        self.last_progress_s = max(self.last_progress_s, time_s)
        for phase in PHASES[1:]:
            if _ORDER[phase.name] > _ORDER[self.phase] and phase.begins.search(text):
                self.phase, self.phase_since_s, self.detail = phase.name, time_s, ""
                self.begun_s[phase.name] = time_s
        # A progress bar repaints itself within one line.
        shards = _SHARDS.findall(text)
        if shards:
            self.detail = f"{shards[-1]} %"
        if not self.fatal and _FATAL.search(text):
            self.fatal, self.fatal_s = text, time_s

    @property
    def words(self) -> str:
        """The present phase for a person, with its detail."""
        words = _BY_NAME[self.phase].words
        return f"{words} ({self.detail})" if self.detail else words

    @property
    def next_words(self) -> str:
        """The next phase."""
        following = _ORDER[self.phase] + 1
        return PHASES[following].words if following < len(PHASES) - 1 else "nothing more"

    def durations_s(self, now_s: float) -> dict[str, float]:
        """Return how long each phase begun so far took, in seconds; the present one until ``now_s``."""
        marks = [*self.begun_s.items(), ("", now_s)]
        return {name: round(max(0.0, after - begin), 2) for (name, begin), (_next, after) in itertools.pairwise(marks)}

    def hang(self, now_s: float, budgets_s: t.Mapping[str, float] | None = None, watched_s: float = 0.0) -> str:
        """Return in words that the present phase has been silent for longer than its budget; empty if not.

        :param watched_s: how long the start has been waited for. A server that serves may be silent for days: then only the time counts in which it
            did not answer. So does it where there is no log at all, and by the longest budget.
        """
        budget = float((budgets_s or {}).get(self.phase, _BY_NAME[self.phase].budget_s))
        silent = now_s - self.last_progress_s
        if not self.begun_s:
            budget, silent = max(phase.budget_s for phase in PHASES), watched_s
        elif self.phase == "serving":
            silent = min(silent, watched_s)
        if budget <= 0 or silent <= budget:
            return ""
        return f"no new line for {silent:.0f} s in the phase '{self.phase}' ({self.words}); {budget:.0f} s are allowed"


def read_start_log(lines: t.Iterable[str]) -> StartLog:
    """Return a log read from lines without times."""
    log = StartLog()
    for line in lines:
        log.feed(line)
    return log


def rank_of(line: str) -> int | None:
    """Return the number of the rank that wrote a line, or None for the main process."""
    match = _RANK.search(line[:120])
    return int(match[1]) if match else None
