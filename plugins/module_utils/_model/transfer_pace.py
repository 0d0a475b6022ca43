# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions of a transfer about its ways and its pace.

A way is a place that has the files: the sources in their order, and the hub as the last one. An early way is left only with a
reason, because it is near and costs nothing, and the last one may be the internet.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .transfer_plan import MIB

# A way that has brought bytes may be silent this long (a reboot of the peer, a cable) before the next one is taken.
WORKED_PATIENCE_S = 60.0
# One that has brought nothing yet is given this long.
NEW_PATIENCE_S = 10.0
# After that it is left alone for a while, and then tried again.
REST_S = 60.0
# Bytes without a stall after which one connection more is allowed.
CALM_BYTES = 64 * MIB
SHORT_STRETCH_BYTES = 4 * MIB


@dataclasses.dataclass
class _Way:
    began_s: float | None = None
    byte_s: float | None = None
    rests_until_s: float = 0.0
    problem: str = ""
    received_bytes: int = 0
    barred: bool = False


class SourceChoice:
    """Chooses the source of a piece; the caller holds the lock.

    :param names: what to call the ways, in order of preference.
    :param patience_s: of the whole transfer; a silent way must not use it up.
    """

    def __init__(self, names: t.Sequence[str], patience_s: float) -> None:
        self.names = tuple(names)
        self._new_patience_s = min(NEW_PATIENCE_S, patience_s / 4)
        self._worked_patience_s = min(WORKED_PATIENCE_S, patience_s / 4)
        self._ways = [_Way() for _name in names]
        self._unfit: dict[tuple[str, int], str] = {}
        self._brought: dict[str, set[int]] = {}

    def choose(self, path: str, now_s: float) -> int:
        """Return the first way that is not at rest and not unfit for the file; the last one if there is none."""
        last = len(self._ways) - 1
        fit = [number for number in range(last) if (path, number) not in self._unfit and not self._ways[number].barred]
        chosen = next((number for number in fit if self._ways[number].rests_until_s <= now_s), last)
        way = self._ways[chosen]
        way.began_s = now_s if way.began_s is None else way.began_s
        return chosen

    def worked(self, number: int, path: str, count: int, now_s: float) -> None:
        """Note bytes that came."""
        way = self._ways[number]
        way.byte_s, way.problem = now_s, ""
        way.received_bytes += count
        self._brought.setdefault(path, set()).add(number)

    def failed(self, number: int, problem: str, now_s: float) -> None:
        """Note that a try broke off; a way that has been silent for too long is put to rest."""
        way = self._ways[number]
        way.problem = problem
        patience_s = self._new_patience_s if way.byte_s is None else self._worked_patience_s
        since_s = way.byte_s if way.byte_s is not None else way.began_s
        if number < len(self._ways) - 1 and now_s - (now_s if since_s is None else since_s) >= patience_s:
            way.rests_until_s = now_s + REST_S
            # After the rest it gets a new chance of the short kind.
            way.began_s = way.byte_s = None

    def unfit(self, number: int, path: str, problem: str) -> bool:
        """Note that a way does not have a file, or another one under its name; False if it is the last way."""
        if number >= len(self._ways) - 1:
            return False
        self._unfit[path, number] = self._ways[number].problem = problem
        return True

    def close_off(self, number: int, problem: str) -> bool:
        """Note that a way is closed for good (its login is refused); False if it is the last way."""
        if number >= len(self._ways) - 1:
            return False
        self._ways[number].barred, self._ways[number].problem = True, problem
        return True

    def hopeless(self, path: str) -> bool:
        """Tell whether no way but the last will ever have the file."""
        return all((path, number) in self._unfit or way.barred for number, way in enumerate(self._ways[:-1]))

    def reasons(self, path: str) -> str:
        """Return why none of the ways before the last has the file."""
        early = zip(self.names[:-1], self._ways, strict=False)
        return "; ".join(f"{name}: {self._unfit.get((path, number), way.problem)}" for number, (name, way) in enumerate(early))

    def distrust(self, path: str) -> bool:
        """Note that a whole file had wrong content: the ways before the last that brought bytes of it are unfit for it.

        Returns False if it was the last way alone.
        """
        early = self._brought.pop(path, set()) - {len(self._ways) - 1}
        self._unfit |= dict.fromkeys(((path, number) for number in early), "its content is wrong")
        return bool(early)

    def received(self) -> dict[str, int]:
        """Return the bytes that came by each way that brought any."""
        return {name: way.received_bytes for name, way in zip(self.names, self._ways, strict=True) if way.received_bytes}

    def troubles(self) -> list[str]:
        """Return a sentence for each way before the last that could not be used in the end."""
        early = zip(self.names[:-1], self._ways, strict=False)
        return [f"{name} could not be used: {way.problem}" for name, way in early if way.problem and not way.received_bytes]


class ConnectionLimit:
    """How many connections are open at once: fewer where they stall, more again while bytes flow. Not locked.

    Many boxes between here and a hub let only a few connections through and starve the others without a word.
    """

    def __init__(self, connections: int) -> None:
        self._most = self.allowed = connections
        self._calm_bytes = 0

    def stalled(self) -> bool:
        """Note a connection on which nothing came at all; True if it was the only one, so that shorter ranges are left to try."""
        alone = self.allowed == 1
        self.allowed = max(1, self.allowed // 2)
        self._calm_bytes = 0
        return alone

    def flowed(self, count: int) -> None:
        """Note bytes that came."""
        if self.allowed >= self._most:
            return
        self._calm_bytes += count
        if self._calm_bytes >= CALM_BYTES:
            self._calm_bytes = 0
            self.allowed += 1
