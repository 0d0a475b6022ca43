# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan held against what the engine printed when it started."""

from __future__ import annotations

import dataclasses
import re
import typing as t

# A difference above this share is a warning.
TOLERANCE = 0.03

_NUMBER = r"(-?[\d.]*\d)"


@dataclasses.dataclass(frozen=True)
class Logged:
    """Numbers of a start-up log; None for what it does not say. Of several GPUs the smallest free memory counts."""

    free_before_gib: float | None = None
    weights_gib: float | None = None
    state_slots: int | None = None
    tokens: int | None = None
    requests: int | None = None
    pool_end_gib: float | None = None


@dataclasses.dataclass(frozen=True)
class Deviation:
    """A number of the plan and the one in the log."""

    name: str
    planned: float
    logged: float
    percent: float

    @property
    def notable(self) -> bool:
        """Whether the difference is worth a warning."""
        return abs(self.percent) > TOLERANCE * 100

    @property
    def sentence(self) -> str:
        """Both numbers in words."""
        return f"{self.name}: planned {self.planned:,g}, the engine has {self.logged:,g} ({self.percent:+.1f} %)"


def read(lines: t.Iterable[str]) -> Logged:
    """Return the numbers that the lines of one start hold.

    The draft's own lines of the same wording follow those of the model on each GPU, so the first of each GPU counts.
    """
    firsts: dict[str, dict[str, float]] = {}
    for line in lines:
        rank = re.search(r"\bTP(\d+)\b", line)
        for name, pattern in _PATTERNS.items():
            match = pattern.search(line)
            if match:
                firsts.setdefault(name, {}).setdefault(rank[1] if rank else "", float(match[1]))

    def smallest(name: str) -> float | None:
        return min(firsts[name].values()) if name in firsts else None

    def whole(name: str) -> int | None:
        value = smallest(name)
        return None if value is None else int(value)

    weights = max(firsts["weights"].values()) if "weights" in firsts else None
    return Logged(smallest("free"), weights, whole("slots"), whole("tokens"), whole("requests"), smallest("pool_end"))


_PATTERNS = {
    "free": re.compile(rf"Load weight begin\. avail mem={_NUMBER} GB"),
    "weights": re.compile(rf"Load weight end\..*mem usage={_NUMBER} GB"),
    "slots": re.compile(r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+)"),
    "tokens": re.compile(r"max_total_num_tokens=(\d+)"),
    "requests": re.compile(r"max_running_requests=(\d+), context_len"),
    "pool_end": re.compile(rf"Memory pool end\. avail mem={_NUMBER} GB"),
}


def deviations(plan: t.Mapping[str, t.Any], logged: Logged) -> list[Deviation]:
    """Return the numbers of plan and log, for all that both hold."""
    pairs: list[tuple[str, t.Any, t.Any]] = [
        ("free before loading, GiB", plan["free_before_load_gib"], logged.free_before_gib),
        ("weights, GiB", plan["weights_gib"], logged.weights_gib),
        ("slots of state", plan["state_slots"], logged.state_slots),
        ("cache tokens", plan["max_total_num_tokens"], logged.tokens),
        ("requests", plan["max_running_requests"], logged.requests),
        ("free at pool end, GiB", plan["pool_end_gib"], logged.pool_end_gib),
    ]
    return [Deviation(name, planned, found, _percent(planned, found)) for name, planned, found in pairs if found is not None]


def _percent(planned: float, found: float) -> float:
    if planned == 0:
        return 0.0 if found == 0 else 100.0
    return (found - planned) / abs(planned) * 100
