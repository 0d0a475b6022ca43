# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import random
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.claims import Guest, read_guest
from ansible_collections.kpro.llm.plugins.module_utils._pve.giving import Request, give_out
from ansible_collections.kpro.llm.plugins.module_utils._pve.gpus import read_cards, read_gpus

BUSES = ("0000:01:00.0", "0000:41:00.0", "0000:61:00.0", "0000:c1:00.0")
# As on a real node the minors are not in the order of the bus ids.
GPUS = read_gpus({"uuid": f"GPU-{place}aaa", "minor": minor, "bus_id": BUSES[place], "name": "NVIDIA RTX A6000"} for place, minor in enumerate((2, 0, 1, 3)))
MINORS = [gpu.minor for gpu in GPUS]


def has(vmid: int, *places: int, kind: str = "container") -> Guest:
    keys = "".join(f"dev{number}: /dev/nvidia{MINORS[place]}\n" for number, place in enumerate(places))
    buses = "".join(f"hostpci{number}: {BUSES[place]}\n" for number, place in enumerate(places))
    return read_guest(vmid, kind, f"hostname: ct{vmid}\n{keys}" if kind == "container" else f"name: vm{vmid}\n{buses}")


def ask(vmid: int, wanted: t.Any, share: bool = False, in_run: bool = True) -> Request:
    return Request(vmid, f"host{vmid}", wanted, share, in_run)


def given(requests: t.Sequence[Request], guests: t.Sequence[Guest] = (), count: int = 2) -> dict[int, list[int] | str]:
    """Return places, or the sentence of the problem, by container; whatever the order in which it is asked."""
    gpus = GPUS[:count]

    def answer(order: t.Sequence[Request]) -> dict[int, list[int] | str]:
        grants = give_out(order, gpus, guests)
        return {vmid: grant.problem.sentence if grant.problem else [gpus.index(gpu) for gpu in grant.gpus] for vmid, grant in grants.items()}

    for order in itertools.permutations(requests):
        assert answer(order) == answer(requests)
    return answer(requests)


@pytest.mark.parametrize(
    ("requests", "guests", "count", "places"),
    [
        # Two that ask for one each, and the same again once the first, or both, have theirs.
        ([ask(129, 1), ask(130, 1)], [], 2, {129: [0], 130: [1]}),
        ([ask(129, 1), ask(130, 1)], [has(129, 0)], 2, {129: [0], 130: [1]}),
        ([ask(129, 1), ask(130, 1)], [has(130, 0)], 2, {129: [1], 130: [0]}),
        ([ask(129, 1), ask(130, 1)], [has(129, 1), has(130, 0)], 2, {129: [1], 130: [0]}),
        # What earlier versions made: both have the first one.
        ([ask(129, 1), ask(130, 1)], [has(129, 0), has(130, 0)], 2, {129: [0], 130: [1]}),
        # A number on the command line is a text.
        ([ask(129, "1"), ask(130, " 1 ")], [], 2, {129: [0], 130: [1]}),
        # Lists come first, by index, bus id or UUID.
        ([ask(129, 1), ask(130, [0])], [], 2, {129: [1], 130: [0]}),
        ([ask(129, 1), ask(130, [BUSES[0]])], [], 2, {129: [1], 130: [0]}),
        ([ask(129, 1), ask(130, "01:00")], [], 2, {129: [1], 130: [0]}),
        ([ask(129, 1), ask(130, ["gpu-0AAA"])], [], 2, {129: [1], 130: [0]}),
        ([ask(129, 2), ask(130, [0, "GPU-2aaa", BUSES[2]])], [], 4, {129: [1, 3], 130: [0, 2]}),
        ([ask(129, 1), ask(130, 2), ask(131, 1)], [], 4, {129: [0], 130: [1, 2], 131: [3]}),
        ([ask(129, 1), ask(130, 2), ask(131, [1])], [has(130, 0)], 4, {129: [3], 130: [0, 2], 131: [1]}),
        # More or fewer than before: what stays is kept.
        ([ask(129, 2)], [has(129, 1)], 3, {129: [0, 1]}),
        ([ask(129, 1), ask(130, 1)], [has(129, 0, 1)], 2, {129: [0], 130: [1]}),
        ([ask(129, 1), ask(130, [0])], [has(129, 0, 1)], 2, {129: [1], 130: [0]}),
        ([ask(129, 0), ask(130, 2)], [has(129, 0)], 2, {129: [], 130: [0, 1]}),
        ([ask(129, None), ask(130, "none"), ask(131, []), ask(132, "all")], [], 2, {129: [], 130: [], 131: [], 132: [0, 1]}),
        # Two exchange theirs in one run.
        ([ask(129, [1]), ask(130, [0])], [has(129, 0), has(130, 1)], 2, {129: [1], 130: [0]}),
        # Somebody else's is passed over, running or not.
        ([ask(129, 1), ask(130, 1)], [has(300, 0, kind="VM")], 3, {129: [1], 130: [2]}),
        ([ask(129, 1)], [has(129, 0), has(300, 0, kind="VM")], 2, {129: [1]}),
        # A VM of the container's number is another guest.
        ([ask(129, 1)], [has(129, 0, kind="VM")], 2, {129: [1]}),
        # Sharing needs both, and happens only if nothing is free.
        ([ask(129, 1, True), ask(130, 1, True)], [], 2, {129: [0], 130: [1]}),
        ([ask(129, 1, True), ask(130, 1, True)], [], 1, {129: [0], 130: [0]}),
        ([ask(129, "all", True), ask(130, [0], True)], [has(129, 0, 1)], 2, {129: [0, 1], 130: [0]}),
        ([ask(129, 1, True)], [has(300, 0)], 2, {129: [1]}),
        ([ask(129, 2, True)], [has(300, 0)], 2, {129: [0, 1]}),
        ([ask(129, [0], True)], [has(300, 0, kind="VM")], 2, {129: [0]}),
        # One that is left out of the run keeps its claim, made or not.
        ([ask(129, 1, in_run=False), ask(130, 1)], [], 2, {129: [0], 130: [1]}),
        ([ask(129, [1], in_run=False), ask(130, 1)], [], 2, {129: [1], 130: [0]}),
        # One that can't be satisfied takes nothing from the others.
        ([ask(129, 3), ask(130, 1)], [], 2, {130: [0]}),
        ([ask(129, [7]), ask(130, 2)], [], 2, {130: [0, 1]}),
        ([ask(129, -1), ask(130, {"a": 1}), ask(131, True), ask(132, 1)], [], 2, {132: [0]}),
    ],
)
def test_who_gets_what(requests: list[Request], guests: list[Guest], count: int, places: dict[int, list[int]]) -> None:
    found = given(requests, guests, count)
    assert {vmid: answer for vmid, answer in found.items() if not isinstance(answer, str)} == places


@pytest.mark.parametrize(
    ("requests", "guests", "count", "refused"),
    [
        ([ask(129, [0]), ask(130, ["GPU-0aaa"])], [], 2, {129: "container 130 (host130)", 130: "container 129 (host129)"}),
        ([ask(129, [0]), ask(130, [0])], [has(129, 0)], 2, {130: "container 129 (host129), which has it and asks for it too"}),
        ([ask(129, [0]), ask(130, [0])], [has(129, 0), has(130, 0)], 2, {129: "container 130", 130: "container 129"}),
        # A number that has it keeps it: nothing is taken from a serving engine.
        ([ask(129, 1), ask(130, [0])], [has(129, 0)], 2, {130: "container 129 (host129), which has it and asks for 1 GPU"}),
        ([ask(129, 2), ask(130, 1)], [], 2, {130: "container 129 (host129)"}),
        ([ask(129, 2), ask(130, 1)], [has(130, 1)], 2, {129: "0000:41:00.0 to container 130 (host130)"}),
        ([ask(129, "all"), ask(130, 1)], [], 2, {130: "container 129 (host129)"}),
        ([ask(129, "all"), ask(130, "all")], [], 2, {129: "container 130", 130: "container 129"}),
        ([ask(129, [0], True), ask(130, [0])], [], 2, {129: "share_gpus: true for both", 130: "share_gpus: true for both"}),
        ([ask(129, [0])], [has(300, 0, kind="VM")], 2, {129: "VM 300 (vm300) by hostpci0"}),
        ([ask(129, [0]), ask(130, 1)], [has(300, 0)], 2, {129: "container 300 (ct300) by dev0"}),
        ([ask(129, 2)], [has(300, 0), has(301, 1, kind="VM")], 2, {129: "2 of 2 are given to other guests"}),
        # What another container still has, and gives up only in a run of its own.
        ([ask(129, [1], in_run=False), ask(130, [0])], [has(129, 0)], 2, {130: "container 129 (host129) still has it"}),
        ([ask(129, 0, in_run=False), ask(130, 2)], [has(129, 0)], 2, {130: "container 129 (host129), which still has it"}),
        ([ask(129, [7]), ask(130, [0])], [has(129, 0)], 2, {129: "no such GPU", 130: "container 129 (host129) still has it"}),
        ([ask(129, "all")], [], 0, {129: "no GPU at all"}),
        ([ask(129, -2)], [], 2, {129: "can't be negative"}),
    ],
)
def test_who_is_refused_with_whose_names(requests: list[Request], guests: list[Guest], count: int, refused: dict[int, str]) -> None:
    found = {vmid: answer for vmid, answer in given(requests, guests, count).items() if isinstance(answer, str)}
    assert found.keys() == refused.keys(), found
    assert all(words in found[vmid] for vmid, words in refused.items()), found


def test_before_there_is_a_driver_bus_ids_are_given_out() -> None:
    cards = read_cards([{"bus_id": "0000:41:00.0"}, {"bus_id": "0000:01:00.0"}])
    grants = give_out([ask(129, 1), ask(130, 1)], cards)
    assert [gpu.bus_id for grant in grants.values() for gpu in grant.gpus] == ["0000:01:00.0", "0000:41:00.0"]
    assert give_out([ask(129, 2), ask(130, 1)], cards)[130].problem
    assert [gpu.bus_id for gpu in give_out([ask(129, ["41:00.0"]), ask(130, 1)], cards)[130].gpus] == ["0000:01:00.0"]
    assert give_out([ask(129, 1)], cards, [has(300, 0, kind="VM")])[129].gpus[0].bus_id == "0000:41:00.0"
    # Which card a UUID is nobody knows yet, but it is one of them.
    assert give_out([ask(129, ["GPU-0aaa"]), ask(130, 1)], cards)[130].problem is None
    assert give_out([ask(129, ["GPU-0aaa"]), ask(130, 2)], cards)[130].problem


def test_a_gpu_that_somebody_may_use_is_taken_last_and_told() -> None:
    open_to_all = read_guest(300, "container", "hostname: docker\nlxc.cgroup2.devices.allow: a\n[old]\n")
    by_variable = read_guest(301, "container", "lxc.environment: NVIDIA_VISIBLE_DEVICES=0\n")
    assert [gpu.index for gpu in give_out([ask(129, 1)], GPUS[:2], [by_variable])[129].gpus] == [1]
    grant = give_out([ask(129, 2)], GPUS[:2], [open_to_all])[129]
    assert not grant.problem and "container 300 (docker) by lxc.cgroup2.devices.allow" in grant.notes[0]


def test_random_nodes_never_give_a_gpu_twice_and_stay_as_they_are() -> None:
    """2,000 nodes: no card for two without both consenting, none of a foreign guest, and the same answer once it is carried out."""
    dice = random.Random(7)
    for _unused in range(2000):
        count = dice.randrange(1, 5)
        wishes: list[t.Any] = [0, 1, 2, "1", "all", None, [0], [dice.randrange(4)], [BUSES[1]], "GPU-2aaa", ["nonsense"]]
        requests = [ask(vmid, dice.choice(wishes), dice.random() < 0.2, dice.random() < 0.8) for vmid in range(129, 129 + dice.randrange(1, 5))]
        guests = [has(vmid, *dice.sample(range(4), dice.randrange(3))) for vmid in (129, 130, 300)] + [
            has(400, *dice.sample(range(4), dice.randrange(2)), kind="VM")
        ]
        grants = give_out(requests, GPUS[:count], guests)
        share = {request.vmid: request.share for request in requests}
        for one, other in itertools.combinations(grants, 2):
            assert not set(grants[one].gpus) & set(grants[other].gpus) or (share[one] and share[other])
        foreign = {place for guest in guests if guest.vmid not in grants or guest.kind == "VM" for place, gpu in enumerate(GPUS[:count]) if guest.claim_on(gpu)}
        assert all(share[vmid] or not {GPUS.index(gpu) for gpu in grant.gpus} & foreign for vmid, grant in grants.items())
        if any(grant.problem for grant in grants.values()):
            continue
        after = [has(vmid, *(GPUS.index(gpu) for gpu in grant.gpus)) for vmid, grant in grants.items()]
        again = give_out(requests, GPUS[:count], [*after, *(guest for guest in guests if guest.vmid not in grants)])
        assert {vmid: grant.gpus for vmid, grant in again.items()} == {vmid: grant.gpus for vmid, grant in grants.items()}
