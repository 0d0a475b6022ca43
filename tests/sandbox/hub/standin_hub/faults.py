# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of the model hub: faults on demand, read from one JSON control file.

The file is read again whenever it changes (counters start anew)::

    {"link_bytes_per_s": 0, "page_size": 1000, "link_life_s": 3600,
     "tokens": {"hf_good": ["org/gated"]}, "gated": ["org/gated"],
     "rules": [{"kind": "cut", "match": "/cdn/*.safetensors", "after_bytes": 1000, "times": 2}]}

Kinds of rules. ``match`` is a glob over the decoded path of the request, ``times`` the number of requests it spoils
(0: all), ``share`` the part of the requests that it hits (1.0):

========== ==========================================================================================
cut        end the connection after ``after_bytes`` of the body; with ``per_mib`` instead, by chance at each MiB
stall      send ``after_bytes``, then nothing for ``seconds``
slow       send ``bytes_per_s``
wrong      flip one byte at ``after_bytes`` of the body
short      answer with ``after_bytes`` bytes less, correctly framed
page       answer 200 with an HTML page (a captive portal)
no_range   ignore the Range header (200 and the whole file)
status     answer ``status`` (5xx, 416, 403, 429 ...; with ``retry_after`` if given)
wait       wait ``seconds`` before the answer
========== ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import random
import threading
import time
import typing as t
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Rule:
    kind: str
    match: str = "*"
    times: int = 1
    share: float = 1.0
    after_bytes: int = 0
    per_mib: float = 0.0
    bytes_per_s: int = 0
    seconds: float = 0.0
    status: int = 503
    retry_after: int = 0


@dataclasses.dataclass(frozen=True)
class Settings:
    link_bytes_per_s: int = 0
    page_size: int = 1000
    link_life_s: int = 3600
    tokens: t.Mapping[str, t.Sequence[str]] = dataclasses.field(default_factory=dict)
    gated: t.Sequence[str] = ()
    rules: tuple[Rule, ...] = ()


def parse(text: str) -> Settings:
    data = json.loads(text)
    rules = tuple(Rule(**rule) for rule in data.pop("rules", []))
    return Settings(rules=rules, **data)


class Faults:
    """The control file and the counters of its rules."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: object = None
        self._settings = Settings()
        self._left: list[int] = []
        self._lock = threading.Lock()
        self._random = random.Random(1)

    @property
    def settings(self) -> Settings:
        with self._lock:
            self._refresh()
            return self._settings

    def take(self, path: str, kinds: t.Container[str]) -> Rule | None:
        """Return the first live rule of these kinds for this path, and count it."""
        with self._lock:
            self._refresh()
            for number, rule in enumerate(self._settings.rules):
                if rule.kind not in kinds or self._left[number] == 0 or not fnmatch.fnmatchcase(path, rule.match):
                    continue
                if rule.share < 1.0 and self._random.random() >= rule.share:
                    continue
                self._left[number] -= 1
                return rule
        return None

    def chance(self, share: float) -> bool:
        """Throw the dice."""
        with self._lock:
            return self._random.random() < share

    def _refresh(self) -> None:
        try:
            stat = self._path.stat() if self._path else None
        except FileNotFoundError:
            stat = None
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None
        if seen == self._seen:
            return
        self._settings = parse(self._path.read_text()) if self._path and stat else Settings()
        # A negative number never reaches 0: the rule stays alive.
        self._left = [rule.times or -1 for rule in self._settings.rules]
        self._seen = seen


class Link:
    """One shaped link shared by all connections (token bucket of 50 ms)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pass_bytes(self, count: int, bytes_per_s: int) -> None:
        """Wait until ``count`` bytes have passed at ``bytes_per_s`` (0: no limit)."""
        if bytes_per_s <= 0:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.05) + count / bytes_per_s
            wait_s = self._free_at - now
        if wait_s > 0:
            time.sleep(wait_s)
