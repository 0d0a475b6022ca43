# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A diagnosis, and the case that it is made from."""

from __future__ import annotations

import copy
import dataclasses
import re
import typing as t

from .._engine.failures import Failure
from .._engine.start_log import StartLog, read_start_log
from .reader import Reading


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The cause of a failure, and its remedy.

    :param class_: the kind of failure; ``unknown`` is an honest answer.
    :param cause: one sentence with the numbers that decided.
    :param evidence: the lines that decided.
    :param remedy: which setting to change; empty if none helps.
    :param direction: for a setting, ``raise`` or ``lower``; otherwise empty.
    :param confidence: ``certain`` (the log states it), ``likely`` (fits, other causes possible) or ``none``.
    :param action: what a deployment should do: stop_and_report, warn_and_continue, fix_and_continue or continue_or_wait.
    :param phase: phase of the start in which it happened; filled in by :func:`_diagnose.diagnose`.
    """

    class_: Failure
    cause: str
    remedy: str = ""
    evidence: tuple[str, ...] = ()
    direction: str = ""
    confidence: str = "certain"
    action: str = "stop_and_report"
    phase: str = ""

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain values for a module's result."""
        values = dataclasses.asdict(self)
        values["class"] = values.pop("class_").value
        values["evidence"] = list(self.evidence)
        return values


class Case:
    """The log of a start and the facts around it, as the rules ask for them.

    Facts may be absent, and unknown ones are accepted: a rule that lacks one is silent.
    """

    def __init__(self, lines: t.Sequence[str], context: t.Mapping[str, t.Any] | None = None) -> None:
        self.context = dict(context or {})
        self.reading = Reading(lines)
        self.lines = self.reading.lines
        self.log: StartLog = read_start_log(row.text for row in self.reading.records if row.level != "client")
        self._all = [row.text for row in self.reading.records if row.level != "client"]
        self._scope = self.reading.passage

    def widened(self) -> Case:
        """Return the case as one whose rules hear every line; what they find there is a hint."""
        wide = copy.copy(self)
        wide._scope = self._all
        return wide

    def get(self, *names: str) -> t.Any:
        """Return the first fact known under one of the names; dots lead into dictionaries ("unit.Result")."""
        for name in names:
            value: t.Any = self.context
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                return value
        return None

    def number(self, *names: str) -> float | None:
        """Return a fact as a number; None if it is absent or none."""
        value = self.get(*names)
        try:
            return None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None

    def option(self, name: str) -> t.Any:
        """Return an engine option by long name, from the facts (``args``, ``flags``) or from the log's own ``server_args``."""
        args = self.get("args", "resolved_args")
        if isinstance(args, dict):
            for given, value in args.items():
                if given.replace("-", "_") == name:
                    return value
        flags = self.get("flags")
        flag = f"--{name.replace('_', '-')}"
        if isinstance(flags, list) and flag in flags[:-1]:
            return flags[flags.index(flag) + 1]
        return self._logged_option(name)

    def option_number(self, name: str) -> float | None:
        """Return an engine option as a number; None if it is not known."""
        try:
            return float(self.option(name))
        except (TypeError, ValueError):
            return None

    def _logged_option(self, name: str) -> t.Any:
        for line in self._all:
            if "server_args=" in line:
                found = re.search(rf"['\"]?{name}['\"]?\s*[:=]\s*'?([^,')\s]+)", line)
                return None if found is None or found[1] == "None" else found[1]
        return None

    def find(self, pattern: str) -> re.Match[str] | None:
        """Return the first match of a pattern in the passage that ended the start."""
        return _first(pattern, self._scope)

    def line(self, pattern: str) -> str:
        """Return the first line of that passage that a pattern matches; empty if none does."""
        found = self.find(pattern)
        return found.string if found else ""

    def seen(self, pattern: str) -> re.Match[str] | None:
        """Return the first match in the whole log: numbers and steps of the start, never its cause."""
        return _first(pattern, self._all)

    def seen_line(self, pattern: str) -> str:
        """Return the first line of the whole log that a pattern matches; empty if none does."""
        found = self.seen(pattern)
        return found.string if found else ""

    def frame(self, pattern: str) -> bool:
        """Return whether a frame of the fatal exception (file, function, source line) matches."""
        expression = re.compile(pattern)
        return any(expression.search(f"{frame.file} {frame.name} {frame.code}") for frame in self.reading.frames)

    @property
    def kernel_lines(self) -> list[str]:
        """The kernel's own lines, where the journal has them between the engine's."""
        return [row.message for row in self.reading.records if re.match(r"(?:kernel: )?(?:\[ *\d+\.\d+\] )?NVRM: ", row.message)]

    @property
    def rank(self) -> str:
        """The number of the failing rank; empty if the log names none."""
        found = re.search(r"TP(\d+)", self.reading.fatal.rank if self.reading.fatal else "")
        return found[1] if found else ""

    @property
    def first_error(self) -> str:
        """The line that names the exception of the first failing rank: the cause, where later lines are echoes of it."""
        fatal = self.reading.fatal
        return (fatal.line or (fatal.said[0] if fatal.said else "")) if fatal else ""


def _first(pattern: str, lines: t.Iterable[str]) -> re.Match[str] | None:
    expression = re.compile(pattern)
    return next((found for line in lines if (found := expression.search(line))), None)


def gpus_of(facts: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Return the records of the GPUs in use, each with its ``memory_mib``; empty if the facts do not tell the memory of all.

    :param facts: ``gpus`` has the records; ``gpu_memory_mib`` is known of old, without names.
    """
    rows = facts.get("gpus")
    if not rows:
        rows = [{"memory_mib": mib} for mib in facts.get("gpu_memory_mib") or []]
    known = [row for row in rows if isinstance(row, dict) and str(row.get("memory_mib")).isdecimal()] if isinstance(rows, list) else []
    return known if isinstance(rows, list) and len(known) == len(rows) else []


def gib(value: float) -> str:
    """Return a size for a person."""
    return f"{value:.1f} GiB"
