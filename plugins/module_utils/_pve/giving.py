# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives a node's GPUs out among all containers that ask for some. Pure.

The same requests, guests and GPUs give the same answer to whoever asks, so that each container can be treated by itself:

1. A list of GPUs (or ``all``) gets exactly these. What somebody else has is refused, by name.
2. A number keeps what its container has, if nobody else has it, and is filled up with GPUs that nobody has, in order of ids.

A GPU goes to two containers only if both consent, and to a guest that is not among them only if the container consents.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._core.errors import KproError
from .._gpu.claims import BUS_ID, Guest, slot_of
from . import gpus as gpu_rules
from .gpus import Gpu

UUID = re.compile(r"^GPU-[0-9a-f-]+$", re.IGNORECASE)
_REMEDY = "Choose another GPU, take it away there, or allow sharing with share_gpus: true"
_REMEDY_OF_BOTH = "Choose another GPU for one of them, or allow sharing with share_gpus: true for both"


@dataclasses.dataclass(frozen=True)
class Request:
    """One container's request.

    :param name: its name in the inventory.
    :param wanted: ``all``, a number, or a list of UUIDs, bus ids and indexes (NVML's, by bus id); None is none.
    :param share: it consents to GPUs that others have too.
    :param in_run: this run brings it to its declaration too, so that it gives up what it no longer gets.
    """

    vmid: int
    name: str = ""
    wanted: t.Any = None
    share: bool = False
    in_run: bool = True

    @property
    def words(self) -> str:
        """The container, as part of a sentence."""
        return f"container {self.vmid}{f' ({self.name})' if self.name else ''}"


@dataclasses.dataclass(frozen=True)
class Grant:
    """One container's GPUs.

    :param problem: why it can't get what it asks for.
    :param notes: sentences for people.
    """

    gpus: tuple[Gpu, ...] = ()
    problem: KproError | None = None
    notes: tuple[str, ...] = ()


def give_out(requests: t.Sequence[Request], gpus: t.Sequence[Gpu], guests: t.Iterable[Guest] = ()) -> dict[int, Grant]:
    """Return what each container gets, by its id.

    :param gpus: the node's GPUs in order of their bus ids.
    :param guests: all guests of the node, also those that ask.
    """
    return _Giving(requests, gpus, tuple(guests)).grants()


def count_of(wanted: t.Any) -> int | None:
    """Return the number of GPUs that are asked for, None if they are named.

    :raises KproError: if it is a number that none can be.
    """
    if wanted is None or wanted in ("", [], (), "none"):
        return 0
    text = str(wanted).strip() if isinstance(wanted, (str, int)) and not isinstance(wanted, bool) else ""
    if re.fullmatch(r"-?\d{1,9}", text):
        if int(text) < 0:
            raise KproError(f"{text} GPUs for the container", "a number of GPUs can't be negative", "Ask for 0 or more")
        return int(text)
    return None


def named(wanted: t.Any, gpus: t.Sequence[Gpu]) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that are named, each once in order of the bus ids, and names that can't be looked up before there is a driver.

    :raises KproError: if one of them is not there.
    """
    if isinstance(wanted, str) and wanted.strip() == "all":
        if not gpus:
            raise KproError("all GPUs for the container", f"the node has none to give: {gpu_rules.listing(gpus)}", "Look at the node's driver")
        return list(gpus), []
    if isinstance(wanted, dict):
        raise KproError(f"GPUs '{wanted}'", "that is neither a number nor a list", "Ask for all, a number, or a list of UUIDs and bus ids")
    items = [str(item).strip() for item in wanted] if isinstance(wanted, (list, tuple)) else re.split(r"[,\s]+", str(wanted).strip())
    unknown = [item for item in items if UUID.match(item) and not any(gpu.uuid for gpu in gpus)]
    found = {id(gpu) for gpu in (_one(item, gpus) for item in items if item not in unknown)}
    return [gpu for gpu in gpus if id(gpu) in found], unknown


def _one(item: str, gpus: t.Sequence[Gpu]) -> Gpu:
    for gpu in gpus:
        if (gpu.uuid and item.lower() == gpu.uuid.lower()) or (item.isdecimal() and len(item) < 4 and int(item) == gpu.index):
            return gpu
        if BUS_ID.match(item) and slot_of(item) == slot_of(gpu.bus_id):
            return gpu
    raise KproError(f"GPU '{item}'", f"the node has no such GPU: {gpu_rules.listing(gpus)}", "Name a GPU by its UUID or bus id as listed")


class _Giving:
    """One giving out; GPUs are known by their places in the node's list."""

    def __init__(self, requests: t.Sequence[Request], gpus: t.Sequence[Gpu], guests: tuple[Guest, ...]) -> None:
        self._gpus = gpus
        self._requests = {request.vmid: request for request in sorted(requests, key=lambda each: each.vmid)}
        asking = [guest for guest in guests if guest.kind == "container" and guest.vmid in self._requests]
        others = [guest for guest in guests if guest not in asking]
        self._foreign = {place: gpu_rules.claims(gpu, others) for place, gpu in enumerate(gpus)}
        self._doubtful = {place: gpu_rules.claims(gpu, others, certain=False) for place, gpu in enumerate(gpus)}
        self._has: dict[int, set[int]] = {vmid: set() for vmid in self._requests}
        for guest in asking:
            claims = [(place, guest.claim_on(gpu)) for place, gpu in enumerate(gpus)]
            self._has[guest.vmid] |= {place for place, claim in claims if claim and claim.certain}
        self._named: dict[int, set[int]] = {}
        self._counts: dict[int, int] = {}
        self._unknown: dict[int, int] = {}
        self._problems: dict[int, KproError] = {}
        self._given: dict[int, set[int]] = {}

    def grants(self) -> dict[int, Grant]:
        """Return what each container gets."""
        for request in self._requests.values():
            try:
                self._read(request)
            except KproError as error:
                self._problems[request.vmid] = error
        self._keep()
        for vmid in self._named:
            self._check_named(self._requests[vmid])
        for vmid in sorted(self._counts, key=lambda vmid: (not self._given[vmid], vmid)):
            self._fill(self._requests[vmid])
        return {vmid: self._grant(request) for vmid, request in self._requests.items()}

    def _read(self, request: Request) -> None:
        count = count_of(request.wanted)
        if count is not None:
            self._counts[request.vmid] = count
            return
        found, unknown = named(request.wanted, self._gpus)
        self._named[request.vmid] = self._given[request.vmid] = {place for place, gpu in enumerate(self._gpus) if gpu in found}
        self._unknown[request.vmid] = len(unknown)

    def _keep(self) -> None:
        """Let each number keep what its container has, as far as nobody else has it."""
        for vmid, count in self._counts.items():
            request = self._requests[vmid]
            rivals = {place: self._rivals(request, place) for place in self._has[vmid]}
            free = [place for place in self._has[vmid] if not rivals[place] and (request.share or not self._foreign[place])]
            # Of more than it asks for it keeps what no other container names.
            free.sort(key=lambda place: (any(place in others for other, others in self._named.items() if other != vmid), place))
            self._given[vmid] = set(free[:count])

    def _rivals(self, request: Request, place: int) -> list[Request]:
        """Return the containers that have a GPU, are to keep it, and don't share it with this one."""
        before = [other for other in self._requests.values() if other.vmid != request.vmid and place in self._has[other.vmid]]
        keeps = [other for other in before if place in self._given.get(other.vmid, set())]
        return [other for other in keeps if not (other.share and request.share)]

    def _check_named(self, request: Request) -> None:
        reasons = []
        remedy = _REMEDY
        for place in sorted(self._named[request.vmid]):
            parts = [] if request.share else list(self._foreign[place])
            others = [other for other in self._requests.values() if other.vmid != request.vmid and place in self._given.get(other.vmid, set())]
            for other in others:
                mine, theirs = place in self._has[request.vmid], place in self._has[other.vmid]
                if (other.share and request.share) or (mine and not theirs):
                    continue  # who has it keeps it, and the other one is told
                remedy = _REMEDY_OF_BOTH
                parts.append(f"{other.words}, which {'has it and ' if theirs else ''}asks for {self._asks(other)}")
            if parts:
                reasons.append(f"{self._gpus[place].label} is already given to {' and to '.join(parts)}")
        if reasons:
            self._problems[request.vmid] = KproError(f"GPUs of {request.words}", "; ".join(reasons), remedy)

    def _asks(self, request: Request) -> str:
        count = self._counts.get(request.vmid)
        return "it too" if count is None else f"{count} GPU{'s' if count != 1 else ''}"

    def _fill(self, request: Request) -> None:
        """Give a number what it lacks, the least contested GPUs first."""
        given, count = self._given[request.vmid], self._counts[request.vmid]
        users = {place: self._users(request, place) for place in range(len(self._gpus))}
        open_places = [place for place in users if place not in given and self._may_have(request, place, users[place])]
        rank = {
            place: (len(users[place]) + len(self._foreign[place]), bool(self._holders(request, place)), bool(self._doubtful[place])) for place in open_places
        }
        open_places.sort(key=lambda place: (rank[place], place))
        reserved = sum(number for vmid, number in self._unknown.items() if vmid != request.vmid)
        if reserved and not request.share:
            open_places = open_places[: max(len(open_places) - reserved, 0)]
        if len(given) + len(open_places) < count:
            # Nothing is reserved for a container that has to wait: another one may still be satisfied.
            self._problems[request.vmid] = self._too_few(request, len(given) + len(open_places), users)
            return
        given |= set(open_places[: count - len(given)])

    def _may_have(self, request: Request, place: int, users: t.Sequence[Request]) -> bool:
        if self._foreign[place] and not request.share:
            return False
        if any(not (request.share and user.share) for user in users):
            return False
        return not any(not (holder.in_run or (holder.share and request.share)) for holder in self._holders(request, place))

    def _users(self, request: Request, place: int) -> list[Request]:
        return [self._requests[vmid] for vmid, places in self._given.items() if vmid != request.vmid and place in places]

    def _holders(self, request: Request, place: int) -> list[Request]:
        """Return the containers that have a GPU now and will not keep it."""
        return [
            other
            for other in self._requests.values()
            if other.vmid != request.vmid and place in self._has[other.vmid] and place not in self._given.get(other.vmid, set())
        ]

    def _too_few(self, request: Request, there: int, users: t.Mapping[int, t.Sequence[Request]]) -> KproError:
        count, total = self._counts[request.vmid], len(self._gpus)
        taken = []
        for place, gpu in enumerate(self._gpus):
            owners = [*self._foreign[place], *(user.words for user in users[place])]
            owners += [f"{holder.words}, which still has it" for holder in self._holders(request, place) if not holder.in_run]
            if owners and place not in self._given[request.vmid]:
                taken.append(f"{gpu.bus_id} to {' and to '.join(owners)}")
        unknown = [self._requests[vmid].words for vmid, number in self._unknown.items() if number and vmid != request.vmid]
        words = f" ({len(taken)} of {total} are given to other guests: {', '.join(taken)})" if taken else ""
        words += f", and {' and '.join(unknown)} name some by UUID" if unknown else ""
        return KproError(
            f"{count} GPU{'s' if count != 1 else ''} for {request.words}",
            f"the node has {there} to give{words}: {gpu_rules.listing(self._gpus)}",
            "Ask for fewer GPUs, take one away there, or allow sharing with share_gpus: true"
            if taken
            else "Ask for fewer GPUs, or look at the node's driver if one is missing",
        )

    def _grant(self, request: Request) -> Grant:
        places = sorted(self._given.get(request.vmid, set()))
        gpus = tuple(self._gpus[place] for place in places)
        problem = self._problems.get(request.vmid) or self._not_let_go(request, places)
        if problem:
            return Grant((), problem)
        notes = [f"{self._gpus[place].label} may also be used by {', '.join(self._doubtful[place])}" for place in places if self._doubtful[place]]
        for place in places:
            notes += [f"{self._gpus[place].label} is still passed to {other.words}, which gives it up in this run" for other in self._leaving(request, place)]
        return Grant(gpus, None, tuple(notes))

    def _leaving(self, request: Request, place: int) -> list[Request]:
        if place in self._has[request.vmid]:
            return []  # both have it: the other one's turn to go
        return [other for other in self._holders(request, place) if not (other.share and request.share)]

    def _not_let_go(self, request: Request, places: t.Iterable[int]) -> KproError | None:
        for place in places:
            stays = [other for other in self._leaving(request, place) if not other.in_run or other.vmid in self._problems]
            if stays:
                names = " and ".join(other.words for other in stays)
                return KproError(
                    f"GPUs of {request.words}",
                    f"{self._gpus[place].label} is declared for it, and {names} still has it",
                    "Deploy that one too, so that it gives the GPU up: run without --limit",
                )
        return None
