# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a container is and how it stands, as values of a result."""

from __future__ import annotations

import typing as t

from .._pve import config as cfg
from .._pve.api_edge import PveApi
from .declared import OWNER_TAG, static_address
from .observe import Observer


def sentence(answer: t.Mapping[str, t.Any]) -> str:
    """Return how it stands in words."""
    if not answer["exists"]:
        return f"{answer['queried_node']} has no container {answer['vmid']}"
    if not answer["here"]:
        return f"Guest {answer['vmid']} is on {answer['node']}"
    state = "runs" if answer["running"] else "is stopped"
    return f"Container {answer['vmid']} {state} on {answer['node']} and {'starts with it' if answer['onboot'] else 'stays off at its boot'}"


def look(vmid: int, node: str, api: PveApi) -> dict[str, t.Any]:
    """Return the result of ``lxc_container_info``.

    :param node: the node that is asked, as Proxmox knows it.
    :raises PveError: if Proxmox refuses a read.
    """
    answer = _looked(vmid, node, api)
    return answer | {"sentence": sentence(answer)}


def _looked(vmid: int, node: str, api: PveApi) -> dict[str, t.Any]:
    observer = Observer(api, node, None, None)
    present = observer.present(vmid)
    rows = api.get("/cluster/status") or []
    nodes = sorted(str(row["name"]) for row in rows if row.get("type") == "node")
    answer: dict[str, t.Any] = {"vmid": vmid, "queried_node": node, "cluster_nodes": nodes or [node]}
    answer |= {"ours": False, "onboot": False, "lock": "", "address": ""}
    if present is None:
        elsewhere = observer.elsewhere(vmid)
        answer |= {"exists": elsewhere is not None, "here": False, "kind": "", "node": "", "hostname": "", "running": False}
        if elsewhere is not None:
            answer |= {"kind": elsewhere.kind, "node": elsewhere.node, "hostname": elsewhere.name, "running": elsewhere.running}
        return answer
    keys = present.config.keys
    address = static_address(keys.get("net0", ""))
    return answer | {
        "exists": True,
        "here": True,
        "kind": "lxc",
        "node": node,
        "running": present.running,
        "ours": OWNER_TAG in cfg.split_tags(keys.get("tags", "")),
        "onboot": keys.get("onboot", "0") == "1",
        "lock": present.lock,
        "hostname": keys.get("hostname", ""),
        "address": address or (observer.address(vmid, present.config) if present.running and "net0" in keys else ""),
    }
