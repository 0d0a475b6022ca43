# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that watches one start for a while, across calls, and explains its loss."""

from __future__ import annotations

import dataclasses
import time
import typing as t

from .._diagnosis.case import Diagnosis
from .._diagnosis.diagnose_with_plan_edge import explain
from .._engine.failures import Failure
from .._linux.http_answer import connect_address
from .._linux.http_client_edge import HttpClient, is_elsewhere
from .._linux.run_identity import RunIdentity
from .._linux.systemd_edge import Systemd
from .._ready.clock_edge import WaitRecord
from .._ready.oom_kills_edge import read_memory_events, since
from .._ready.wait_edge import Outcome, ReadyWait
from .._ready.walk import Attempt, Wanted, attempt
from .._service.text import without_secrets
from .check import Check

CLOCK_PATH = "/run/kpro-llm/ready.json"

# Options of a module that waits for a start.
WAIT_SPEC: dict[str, t.Any] = {
    "address": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 30000},
    "answer_timeout_s": {"type": "int", "default": 300},
    "timeout_s": {"type": "int", "default": 1800},
    "poll_s": {"type": "int", "default": 10},
    "hang_budgets_s": {"type": "dict", "default": {}},
    "memory_events": {"type": "path", "default": "/sys/fs/cgroup/memory.events"},
    "context": {"type": "dict", "default": {}},
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """One call's view of a start.

    :param waited_s: by all calls of this run.
    :param memory_events: what the kernel counted since the wait began.
    """

    outcome: Outcome
    waited_s: float
    memory_events: t.Mapping[str, int]
    elapsed_s: float


class StartWatch:
    """Watches one start.

    :param params: the module's options (``poll_s``, ``timeout_s``, ``hang_budgets_s``, ``memory_events``, ``context``).
    :param run: the run that waits.
    """

    def __init__(self, params: t.Mapping[str, t.Any], systemd: Systemd, identity: RunIdentity, check: Check, key: str, run: str = "") -> None:
        self._params = params
        self._systemd = systemd
        self._identity = identity
        self._check = check
        self._key = key
        self._clock = WaitRecord(CLOCK_PATH, run)
        self._budgets_s = {name: float(value) for name, value in params["hang_budgets_s"].items()}

    @property
    def client(self) -> HttpClient:
        """Speaks to the server of this start."""
        return HttpClient(connect_address(self._check.address), self._check.port, self._key)

    def walk(self, check: Check | None = None) -> Attempt:
        """Ask the server once, by another check if one is given."""
        check = check or self._check
        address = connect_address(check.address)
        if is_elsewhere(address):
            return Attempt(note=f"{address} is no address of this container")
        wanted = Wanted(
            level=check.level,
            served_name=self._identity.served_name,
            model_path=self._identity.model_path,
            question=check.question,
            pattern=check.answer_pattern,
            max_tokens=check.max_tokens,
            answer_timeout_s=float(check.answer_timeout_s),
        )
        return attempt(HttpClient(address, check.port, self._key), wanted)

    def look(self, *, once: bool = False, unlimited: bool = False) -> Seen:
        """Wait for an event or ``poll_s``.

        :param once: one walk, and no trace of it.
        :param unlimited: the wait has no limit.
        """
        started, events_file = self._identity.invocation_id, self._params["memory_events"]
        before_s = self._clock.elapsed_s(started)
        events = self._clock.memory_events(started) or read_memory_events(events_file)
        left_s = float("inf") if unlimited else self._params["timeout_s"] - before_s
        began = time.monotonic()
        wait = ReadyWait(self._systemd, self._identity, self.walk, self._check.port)
        outcome = wait.run(0.0 if once else max(0.0, min(self._params["poll_s"], left_s)), self._budgets_s, before_s)
        waited_s = before_s + time.monotonic() - began
        if not once and outcome.kind == "waiting":
            self._clock.keep(started, waited_s, events)
        elif not once:
            self._clock.forget()
        started_s = outcome.unit.exec_main_start_us / 1e6
        elapsed_s = round(self._systemd.uptime_s() - started_s, 1) if started_s else 0.0
        return Seen(outcome, waited_s, since(events, read_memory_events(events_file)), elapsed_s)

    def forget(self) -> None:
        """Delete the record of the wait."""
        self._clock.forget()

    def explained(self, seen: Seen, args: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Return why the start is lost: ``diagnosis``, ``loss``, what the log said last, and ``reason`` and ``remedy`` for a person.

        :param args: the engine's options, where the context does not name them.
        """
        outcome, context = seen.outcome, self._params["context"]
        given = {"args": dict(args)} if args else {}
        around = {
            "unit": {**outcome.unit.as_dict(), "exit_words": outcome.unit.exit_words},
            "identity": self._identity.as_dict(),
            "level": outcome.attempt.reached,
            "port": self._check.port,
        }
        facts = {"memory_events": dict(seen.memory_events), **context, **given, "loss": [str(part) for part in outcome.loss], **around}
        return loss_details(explain(outcome.log.lines, facts), outcome, self._identity, seen.elapsed_s)


def loss_details(finding: Diagnosis, outcome: Outcome, identity: RunIdentity, elapsed_s: float) -> dict[str, t.Any]:
    """Return a lost start as plain values."""
    loss = outcome.loss
    reason = finding.cause if finding.class_ != Failure.UNKNOWN else f"{loss[1]}. {finding.cause}"
    if loss[0] == Failure.CRASH_LOOP and finding.class_ not in (Failure.UNKNOWN, Failure.CRASH_LOOP):
        reason = f"{reason}; {loss[1]}"
    return {
        "reason": reason,
        "remedy": finding.remedy or f"Read the log: journalctl _SYSTEMD_INVOCATION_ID={identity.invocation_id}",
        "diagnosis": finding.as_dict(),
        "loss": {"class": str(loss[0]), "words": loss[1]},
        "identity": identity.as_dict(),
        "log_tail": [without_secrets(line)[:2000] for line in outcome.log.lines[-20:]],
        **seen_values(outcome, elapsed_s),
    }


def seen_values(outcome: Outcome, elapsed_s: float) -> dict[str, t.Any]:
    """Return level, answer and times for a module's result."""
    return {
        "level": outcome.attempt.reached,
        "answer": outcome.attempt.answer,
        "context_length": outcome.attempt.context_length,
        "elapsed_s": elapsed_s,
        "phases_s": outcome.log.durations_s(time.time()),
        "request_s": outcome.attempt.seconds,
    }


def progress_words(outcome: Outcome, elapsed_s: float) -> str:
    """Return one line about a start that goes on."""
    in_phase = time.time() - outcome.log.phase_since_s if outcome.log.begun_s else 0.0
    note = f" [{outcome.attempt.note}]" if outcome.log.phase in ("warmup", "serving") and outcome.attempt.note else ""
    return f"{outcome.log.words} ({in_phase:.0f} s; {elapsed_s:.0f} s since start){note}, next: {outcome.log.next_words}"


def still_loading(outcome: Outcome, waited_s: float) -> str:
    """Return the message of a run that has waited long enough for a start that goes on."""
    share = f" ({outcome.log.detail})" if outcome.log.detail else ""
    note = f", {outcome.attempt.note}" if outcome.attempt.note and outcome.log.phase in ("warmup", "serving") else ""
    return f"still loading{share}, not ready after {waited_s:.0f} s; it came as far as: {outcome.log.words}{note}"
