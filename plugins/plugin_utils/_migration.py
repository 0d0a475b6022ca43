# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a deployment moves from one node to another, judged from where its container is. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ..module_utils._core.errors import KproError

CLUSTER = "cluster"  # Proxmox moves the container; it does not answer meanwhile
SEPARATE = "separate"  # a new container beside the old one, which answers until the new one does
FRESH = "fresh"  # the old node is there and has no such container
GONE = "gone"  # the old node does not answer
DONE = "done"  # the container is at its place, and the old node has none that could serve

Values = t.Mapping[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Seen:
    """The observation.

    :param source: inventory name of the old node.
    :param target: inventory name of the new node.
    :param there: answer of ``lxc_container_info`` on the old node; empty if it does not answer.
    :param here: the same on the new node.
    :param declared_address: the container's declared IPv4 address, empty for DHCP.
    :param adopt: whether a container that is not ours may be taken.
    """

    source: str
    target: str
    there: Values
    here: Values
    declared_address: str = ""
    adopt: bool = False


@dataclasses.dataclass(frozen=True)
class Way:
    """How to move: ``name`` is one of the constants of this file.

    :param peer: whether the old node can be asked for the model.
    """

    name: str
    sentence: str
    peer: bool


def choose_way(seen: Seen) -> Way:
    """Return the way that both nodes allow.

    :raises KproError: if there is none, with what a person can do.
    """
    vmid = seen.here["vmid"]
    if seen.here["kind"] == "qemu":
        raise KproError(f"guest {vmid}", f"it is a virtual machine on {seen.here['node']}", "Choose another id (pct_vmid)")
    peer = bool(seen.there)
    if seen.here["exists"] and not seen.here["here"]:
        return _in_the_cluster(seen)
    if _has_its_own(seen):
        return _separate(seen)
    if seen.here["here"]:
        return Way(DONE, f"Container {vmid} is on {seen.target}", peer)
    if not peer:
        return Way(GONE, f"{seen.source} does not answer: a new container {vmid} is made on {seen.target} from inventory and hub alone", False)
    return Way(FRESH, f"{seen.source} has no container {vmid}: a new one is made on {seen.target}", True)


def _has_its_own(seen: Seen) -> bool:
    return bool(seen.there) and seen.there["here"]


def _in_the_cluster(seen: Seen) -> Way:
    vmid, node = seen.here["vmid"], seen.here["node"]
    what = f"container {vmid}"
    if seen.there and seen.there["queried_node"] == node:
        _check_owner(seen)
        sentence = f"Container {vmid} moves from {seen.source} to {seen.target} in their cluster, and does not answer from its shutdown to its start"
        return Way(CLUSTER, sentence, True)
    if not seen.there:
        reason = f"the cluster has it on {node}, and {seen.source} does not answer"
        remedy = (
            f"Bring {node} back and run the same command; if it is gone for good, take it out of the cluster (pvecm delnode {node}) and free the id, "
            "then a new container is made"
        )
        raise KproError(what, reason, remedy)
    raise KproError(what, f"it is on {node}, not on {seen.source}", f"Name that node: -e migrate_from={node} (and list it in llm_node_previous)")


def _separate(seen: Seen) -> Way:
    vmid = seen.here["vmid"]
    there = seen.there
    if seen.here["here"] and not there["running"] and not there["onboot"]:
        return Way(DONE, f"Container {vmid} is on {seen.target}; the one on {seen.source} is stopped and stays off", True)
    _check_owner(seen)
    if there["running"] and seen.declared_address and there["address"] == seen.declared_address:
        what = f"address {seen.declared_address}"
        reason = f"container {vmid} on {seen.source} has it, and both containers run side by side until the new one answers"
        raise KproError(what, reason, "Declare another one for the new container (gpu_container__network), or dhcp")
    return Way(SEPARATE, f"A new container {vmid} is made on {seen.target}; the one on {seen.source} answers until the new one does", True)


def _check_owner(seen: Seen) -> None:
    if seen.there["ours"] or seen.adopt:
        return
    what = f"container {seen.here['vmid']} on {seen.source}"
    raise KproError(what, "it lacks the tag kpro-llm, so it is not ours", "Allow it with gpu_container__adopt: true if it is the one that is meant")
