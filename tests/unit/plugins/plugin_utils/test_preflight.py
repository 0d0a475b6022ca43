# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.plugin_utils import _preflight as preflight

NODE = {
    "host": {"pve_version": "9.2.11", "kernel": "6.17.13-1-pve", "euid": 0},
    "driver": {"loaded": "580.173.02"},
    "gpus": [{"uuid": "GPU-a", "name": "NVIDIA RTX A6000"}, {"uuid": "GPU-b", "name": "NVIDIA RTX A6000"}],
    "pci": [{"bus_id": "0000:41:00.0"}, {"bus_id": "0000:61:00.0"}],
    "findings": [],
}
WANTED = preflight.Wanted(lane="cu13", driver_version="580.173.02", driver_source="runfile", gpus=2, tp_size=2, port=30000)
MODEL = {
    "repository": "Qwen/Qwen3.6-27B",
    "commit": "0" * 40,
    "size_bytes": 55_600_000_000,
    "config": {"model_type": "qwen3_5", "text_config": {"num_attention_heads": 24, "linear_num_value_heads": 48}},
}
PLAN_FAILS = {
    "verdict": "FAIL",
    "cause": {"kind": "state_copies", "message": "48 requests need 17.2 GiB"},
    "advice": [
        {
            "option": "max_running_requests",
            "from": "48 (implicit)",
            "to": 8,
            "predicted": {"verdict": "OK", "max_total_num_tokens": 370315, "max_running_requests": 8},
        }
    ],
}
SEEN = preflight.Observed(
    node=NODE,
    container={"vmid": 129, "exists": True, "here": True, "plan": []},
    model=MODEL,
    service={"port_taken": False, "port_is_ours": False, "port_owner": ""},
    plan={},
    errors={},
)


def states(wanted: preflight.Wanted = WANTED, **seen: t.Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in preflight.findings(wanted, dataclasses.replace(SEEN, **seen)):
        found.setdefault(finding.subject, []).append(finding.state)
    return found


def sentences(wanted: preflight.Wanted = WANTED, **seen: t.Any) -> str:
    found = preflight.findings(wanted, dataclasses.replace(SEEN, **seen))
    return " | ".join(finding.sentence for finding in found if finding.state == preflight.NEEDS_YOU)


def test_a_deployment_with_nothing_in_its_way() -> None:
    assert {state for found in states().values() for state in found} == {preflight.OK}


@pytest.mark.parametrize(
    ("wanted", "seen", "mention"),
    [
        ({}, {"node": {**NODE, "host": {"pve_version": None, "euid": 0}}}, "not a Proxmox VE node"),
        ({}, {"node": {**NODE, "host": {"pve_version": "7.4.3", "euid": 0}}}, "Proxmox VE 7.4.3 is too old"),
        ({}, {"node": {**NODE, "host": {"pve_version": "8.4.1", "euid": 1000}}}, "uid 1000"),
        ({"gpus": 3, "tp_size": 3}, {}, "3 are asked for (gpu_container__gpus) and the node has 2"),
        ({"tp_size": 1}, {}, "The container gets 2 (gpu_container__gpus) and the engine is to use 1 (sglang_server__tp_size)"),
        ({}, {"node": {**NODE, "gpus": [], "pci": []}}, "no NVIDIA GPU"),
        ({"lane": "cu14"}, {}, "lane cu14: there is no such lane"),
        ({"driver_version": "570.211.01"}, {}, "needs NVIDIA driver 580 or newer"),
        ({}, {"model": {**MODEL, "config": {"num_attention_heads": 25}}}, "25 attention heads, which 2 GPUs"),
        ({}, {"errors": {"model": "hub: no answer"}, "model": {}}, "hub: no answer"),
        ({}, {"errors": {"container": "container 129: taken by a VM"}, "container": {}}, "taken by a VM"),
        ({}, {"container": {"vmid": 129, "exists": True, "here": False, "notes": ["Container 129 is on kpro6"]}}, "is on kpro6"),
        ({}, {"service": {"port_taken": True, "port_is_ours": False, "port_owner": "pid 7 (nginx)"}}, "30000 is held by pid 7 (nginx)"),
        ({}, {"plan": PLAN_FAILS}, "48 requests need 17.2 GiB. Set max_running_requests to 8 (now 48 (implicit)): predicted OK, 370,315 tokens, 8 requests"),
        ({}, {"plan": {**PLAN_FAILS, "advice": []}}, "No single change makes it work"),
        (
            {},
            {"node": {**NODE, "findings": [{"kind": "claimed_by_vm", "level": "error", "what": "GPU 0000:41:00.0", "reason": "VM 105", "remedy": "x"}]}},
            "GPU 0000:41:00.0: VM 105",
        ),
    ],
)
def test_what_needs_a_person(wanted: dict[str, t.Any], seen: dict[str, t.Any], mention: str) -> None:
    assert mention in sentences(dataclasses.replace(WANTED, **wanted), **seen)


def test_what_the_deployment_will_do_is_no_obstacle() -> None:
    found = states(node={**NODE, "driver": {"loaded": None}}, container={"vmid": 129, "exists": False, "here": True, "plan": ["Create container 129"]})
    assert found["driver"] == [preflight.WILL_FIX]
    assert found["container"] == [preflight.WILL_FIX]


def test_all_findings_are_reported_at_once() -> None:
    found = sentences(dataclasses.replace(WANTED, lane="cu14", gpus=5, tp_size=4), errors={"model": "hub: no answer"}, model={})
    assert found.count(" | ") == 3
