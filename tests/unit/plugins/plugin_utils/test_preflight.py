# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
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


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("0000:41:00.0", preflight.OK),
        ("61:00.0", preflight.OK),
        ("0000:99:00.0", preflight.NEEDS_YOU),
        ("7", preflight.NEEDS_YOU),
        (7, preflight.NEEDS_YOU),
        ("GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641", preflight.NOTE),
    ],
)
def test_names_of_gpus_before_there_is_a_driver(name: t.Any, state: str) -> None:
    node = {**NODE, "gpus": [], "driver": {"loaded": None}}
    wanted = dataclasses.replace(WANTED, gpus=[name], tp_size=1)
    assert states(wanted, node=node)["GPUs"][0] == state
    assert state != preflight.NEEDS_YOU or "The node has 0000:41:00.0, 0000:61:00.0" in sentences(wanted, node=node)


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
        (
            {},
            {
                "container": {
                    "vmid": 129,
                    "exists": True,
                    "here": True,
                    "restart_needed": True,
                    "notes": ["container 129 needs a restart so that dev0 takes effect"],
                }
            },
            "129 needs a restart",
        ),
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


CLAIMED = {"kind": "claimed_by_vm", "level": "error", "what": "GPU 0000:41:00.0", "reason": "it would be taken away when a VM starts", "remedy": ""}


@pytest.mark.parametrize("kind", ["claimed_by_vm", "gpu_not_started"])
def test_a_gpu_that_can_not_be_had_is_in_the_way_only_if_it_is_wanted(kind: str) -> None:
    node = {**NODE, "findings": [{**CLAIMED, "kind": kind}]}
    assert preflight.NEEDS_YOU in states(dataclasses.replace(WANTED, gpus=2), node=node)["GPUs"]
    assert states(dataclasses.replace(WANTED, gpus=1, tp_size=1), node=node)["GPUs"] == [preflight.NOTE, preflight.OK]
    assert states(dataclasses.replace(WANTED, gpus=["0000:61:00.0"], tp_size=1), node=node)["GPUs"] == [preflight.NOTE, preflight.OK]
    assert preflight.NEEDS_YOU in states(dataclasses.replace(WANTED, gpus=["0000:41:00.0"], tp_size=1), node=node)["GPUs"]


def test_what_a_person_should_know_about_the_container_stops_nothing() -> None:
    note = "In container 129 process 88 (python3 server.py) on /dev/nvidia0 was started by hand"
    assert states(container={"vmid": 129, "exists": True, "here": True, "plan": [], "notes": [note]})["container"] == [preflight.OK, preflight.NOTE]


def test_nouveau_is_for_the_node_phase_to_put_aside() -> None:
    nouveau = {**CLAIMED, "kind": "nouveau_bound"}
    assert states(node={**NODE, "findings": [nouveau]})["GPUs"] == [preflight.OK]


def test_another_driver_is_replaced_only_with_consent() -> None:
    other = {**NODE, "driver": {"loaded": "575.57.08"}}
    assert "gpu_node__replace_driver: true" in sentences(node=other)
    assert states(dataclasses.replace(WANTED, replace_driver=True), node=other)["driver"] == [preflight.WILL_FIX]


def test_a_store_without_room_is_found_before_the_download() -> None:
    assert "has 20 GB free and 55.6 GB of Qwen/Qwen3.6-27B are missing" in sentences(
        model={**MODEL, "missing_bytes": 55_600_000_000, "free_bytes": 20_000_000_000}
    )
    assert states(model={**MODEL, "missing_bytes": 0, "free_bytes": 20_000_000_000})["model"] == [preflight.OK]


def test_what_was_not_looked_at_is_not_called_free() -> None:
    assert "port" not in states(service={"msg": "module failed"})


@pytest.mark.parametrize(
    ("seen", "subject"),
    [
        ({"container": {}}, "container"),
        ({"model": {}}, "model"),
        ({"container": {**SEEN.container, "running": True}, "service": {}}, "port"),
        ({"container": {**SEEN.container, "running": True}, "service": {"failed": True, "msg": "no module", "rc": 1}}, "port"),
        ({"service": {"unreachable": True, "msg": "Container 129 on kpro5 can't be entered"}}, "way"),
        ({"service": {}, "entry": {"entered": False, "reason": "needs root on kpro5"}}, "way"),
        ({"errors": {"node": "kpro5 can't be reached: no route"}, "node": {}}, "node"),
    ],
)
def test_a_look_that_dropped_out_is_a_finding(seen: dict[str, t.Any], subject: str) -> None:
    assert preflight.NEEDS_YOU in states(**seen)[subject]


def test_a_plan_that_was_not_made_is_a_finding_where_it_could_be() -> None:
    cards = {**NODE, "gpus": [{**gpu, "memory_mib": 49140} for gpu in NODE["gpus"]]}  # type: ignore[attr-defined]
    wanted = dataclasses.replace(WANTED, plan=True)
    assert states(wanted, node=cards)["memory"] == [preflight.NEEDS_YOU]
    for changes in ({"plan": False}, {"lane": "cpu"}, {"gpus": 3, "tp_size": 3}):
        assert "memory" not in states(dataclasses.replace(wanted, **changes), node=cards)  # type: ignore[arg-type]


def test_a_container_without_python_is_no_obstacle() -> None:
    service = {"failed": True, "rc": 127, "module_stdout": "/bin/sh: 1: /usr/bin/python3: not found"}
    assert states(container={**SEEN.container, "running": True}, service=service)["port"] == [preflight.NOTE]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, ""),
        ({"failed": False, "msg": "x"}, ""),
        ({"failed": True, "msg": "Task failed: Action failed: no space"}, "no space"),
        ({"unreachable": True, "msg": "Nothing was changed. gone"}, "gone"),
        ({"failed": True, "msg": "One or more items failed", "results": [{"failed": False}, {"failed": True, "msg": "the second"}]}, "the second"),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Traceback\n  File\nKeyError: 'x'\n"}, "MODULE FAILURE: KeyError: 'x'"),
        ({"failed": True}, "It failed without a message"),
    ],
)
def test_the_reason_is_found_in_whatever_failed(answer: dict[str, t.Any], words: str) -> None:
    assert preflight.reason(answer) == words


def test_a_previous_node_that_does_not_answer_is_a_note() -> None:
    assert states(previous={"kpro6": {"unreachable": True, "msg": "no route"}})["container"] == [preflight.OK, preflight.NOTE]


def test_a_plan_with_little_slack_is_worth_a_note() -> None:
    assert states(plan={"verdict": "RISK", "max_total_num_tokens": 1000, "max_running_requests": 2})["memory"] == [preflight.NOTE]


def test_what_the_deployment_will_do_is_no_obstacle() -> None:
    found = states(node={**NODE, "driver": {"loaded": None}}, container={"vmid": 129, "exists": False, "here": True, "plan": ["Create container 129"]})
    assert found["driver"] == [preflight.WILL_FIX]
    assert found["container"] == [preflight.WILL_FIX]


def test_all_findings_are_reported_at_once() -> None:
    found = sentences(dataclasses.replace(WANTED, lane="cu14", gpus=5, tp_size=4), errors={"model": "hub: no answer"}, model={})
    assert found.count(" | ") == 3


def test_the_rung_that_the_plan_begins_with_is_named() -> None:
    rungs = [{"name": "speculation", "passed_over": "48 requests need 17.2 GiB"}, {"name": "plain", "passed_over": ""}]
    plan = {"verdict": "OK", "rung": 1, "rungs": rungs, "max_total_num_tokens": 244332, "max_running_requests": 8}
    found = [finding for finding in preflight.findings(WANTED, dataclasses.replace(SEEN, plan=plan)) if finding.subject == "memory"]
    assert [finding.state for finding in found] == [preflight.NOTE, preflight.OK]
    assert found[0].sentence == "Rung 'speculation' is passed over: 48 requests need 17.2 GiB"
    assert found[1].sentence == "OK: rung 'plain': 244,332 tokens, 8 requests"


ELSEWHERE = {"vmid": 129, "exists": True, "here": False, "node": "kpro6", "notes": ["Container 129 lives on kpro6"], "plan": []}
BESIDE = {"vmid": 129, "here": True, "ours": True, "running": True}


def test_a_container_that_is_about_to_be_moved_is_no_obstacle() -> None:
    assert states(container=ELSEWHERE)["container"] == [preflight.NEEDS_YOU]
    told = "Container 129 lives on kpro6. To move it: kpro.llm.migrate_qwen with -e migrate_from=kpro6, and kpro6 in the group llm_node_previous"
    assert told in sentences(container=ELSEWHERE)
    moving = dataclasses.replace(WANTED, moves_from="kpro6")
    assert states(moving, container=ELSEWHERE)["container"] == [preflight.WILL_FIX]
    assert states(dataclasses.replace(WANTED, moves_from="kpro7"), container=ELSEWHERE)["container"] == [preflight.NEEDS_YOU]


def test_a_second_container_that_serves_is_named_with_both_remedies() -> None:
    text = sentences(previous={"kpro6": BESIDE})
    assert "129 also runs on kpro6" in text and "migrate_from=kpro6" in text and "onboot" in text


@pytest.mark.parametrize("changes", [{"running": False}, {"ours": False}, {"here": False}])
def test_a_previous_node_without_a_serving_container_is_no_obstacle(changes: dict[str, t.Any]) -> None:
    assert not sentences(previous={"kpro6": {**BESIDE, **changes}})
    assert not sentences(previous={"kpro6": {"unreachable": True}})


def test_what_the_node_phase_would_stop_for_is_told_at_once() -> None:
    """A blacklist of nvidia, and Secure Boot without the key, which only a person can settle."""
    blocked = {"kind": "module_blocked", "level": "error", "what": "NVIDIA kernel module", "reason": "b.conf keeps it from loading", "remedy": "Remove it"}
    host = {**NODE["host"], "secure_boot": True, "mok_enrolled": False}  # type: ignore[dict-item]
    node = {**NODE, "host": host, "driver": {"loaded": None}, "findings": [blocked]}
    needs = [row.sentence for row in preflight.findings(WANTED, dataclasses.replace(SEEN, node=node)) if row.state == preflight.NEEDS_YOU]
    assert any("b.conf keeps it from loading" in sentence for sentence in needs)
    assert any("Secure Boot is on" in sentence for sentence in needs)
    enrolled = {**node, "host": {**host, "mok_enrolled": True}, "findings": []}
    assert not [row for row in preflight.findings(WANTED, dataclasses.replace(SEEN, node=enrolled)) if row.state == preflight.NEEDS_YOU]


def test_gpus_that_a_derived_division_leaves_idle_are_told_and_stop_nothing() -> None:
    three = [*NODE["gpus"], {"uuid": "GPU-c", "name": "NVIDIA RTX A6000"}]  # type: ignore[misc]
    wanted = dataclasses.replace(WANTED, gpus="all", tp_chosen=True)
    found = preflight.findings(wanted, dataclasses.replace(SEEN, node={**NODE, "gpus": three}))
    told = [(row.state, row.sentence) for row in found if row.subject == "GPUs"]
    assert told == [
        (preflight.NOTE, "1 of 3 stay idle: 2 is what divides the model's heads"),
        (preflight.OK, "3 on the node (NVIDIA RTX A6000), 3 for the container"),
    ]
    assert preflight.NEEDS_YOU not in [row.state for row in preflight.findings(dataclasses.replace(wanted, lane="cpu", tp_size=1), SEEN)]


@pytest.mark.parametrize(("level", "state"), [(None, preflight.OK), (1, preflight.NEEDS_YOU), (2, preflight.OK), (4, preflight.OK)])
def test_processor(level: int | None, state: str) -> None:
    node = {**NODE, "host": {**NODE["host"], "cpu_level": level}}
    assert states(node=node)["node"][-1] == state
    assert state == preflight.OK or "x86-64-v1" in sentences(node=node)


@pytest.mark.parametrize(
    ("level", "iommu", "state"),
    [("NV4", "DMA-FQ", preflight.OK), ("NODE", "identity", preflight.OK), ("PHB", "off", preflight.OK), ("NODE", "DMA-FQ", preflight.NOTE)],
)
def test_ways_between_the_gpus(level: str, iommu: str, state: str) -> None:
    node = {**NODE, "host": {**NODE["host"], "iommu": iommu}, "topology": [{"one": "GPU-a", "other": "GPU-b", "level": level}]}
    assert states(node=node)["P2P"] == [state]
    assert "P2P" not in states(dataclasses.replace(WANTED, tp_size=1, gpus=1), node=node)
    assert "P2P" not in states(dataclasses.replace(WANTED, lane="cpu"), node=node)


def test_packages_that_apt_cannot_have_are_a_finding_before_anything_changes() -> None:
    apt = {
        "missing": ["dkms", "proxmox-default-headers"],
        "problem": "E: Unable to locate package proxmox-default-headers. 401 Unauthorized",
        "remedy": "Enable it.",
    }
    rows = [row for row in preflight._packages({"apt": apt}) if row.state == preflight.NEEDS_YOU]
    assert [row.sentence for row in rows] == [
        "apt can't install dkms, proxmox-default-headers: E: Unable to locate package proxmox-default-headers. 401 Unauthorized. Enable it"
    ]
    assert preflight._packages({"apt": {**apt, "problem": ""}}) == [] == preflight._packages({})


ASKED = {"lane": "cu13", "driver_version": "580.173.02", "driver_source": "runfile", "gpus": "all", "tp_size": "auto", "port": "30000"}


def test_the_division_is_the_one_that_was_decided_and_else_follows_from_the_cards_on_the_bus() -> None:
    without_driver = dataclasses.replace(SEEN, node={**NODE, "gpus": [], "pci": [{"bus_id": f"0000:{bus}:00.0"} for bus in (41, 61, 81)]})
    assert preflight.wanted_of(ASKED, SEEN, 1).tp_size == 1
    wanted = preflight.wanted_of(ASKED, without_driver, None)
    assert (wanted.tp_size, wanted.tp_chosen, wanted.port) == (2, True, 30000)
    assert preflight.wanted_of({**ASKED, "lane": "cpu"}, SEEN, None).tp_size == 1
    given = preflight.wanted_of({**ASKED, "tp_size": "4"}, SEEN, None)
    assert (given.tp_size, given.tp_chosen) == (4, False)
    with pytest.raises(KproError, match="no number of GPUs"):
        preflight.wanted_of({**ASKED, "tp_size": "two"}, SEEN, None)


def test_gpus_that_tell_no_memory_are_named() -> None:
    wanted, silent = dataclasses.replace(WANTED, plan=True), {**SEEN.container, "gpus": NODE["gpus"]}
    found = [row.sentence for row in preflight.findings(wanted, dataclasses.replace(SEEN, container=silent)) if row.subject == "memory"]
    assert found == ["It is not planned: the driver does not tell the memory of NVIDIA RTX A6000"]
    assert "memory" not in states(wanted, errors={"container": "no answer"}, container={})


def test_an_error_of_the_division_is_told_once() -> None:
    one = {**SEEN.container, "gpus": [{"uuid": "GPU-a", "memory_mib": 49140}]}
    told = sentences(dataclasses.replace(WANTED, gpus=1, plan=True), container=one, errors={"plan": "option tp_size: tp_size is 2, and there is 1 GPU"})
    assert told.count(" | ") == 0 and "make both the same" in told


def test_without_a_plan_the_remedy_does_not_offer_to_leave_it_out() -> None:
    errors = {"plan": "engine option colour: SGLang 0.5.23 does not know it."}
    assert sentences(errors=errors).endswith("does not know it. Change that")
    assert sentences(dataclasses.replace(WANTED, plan=True), errors=errors).endswith("(sglang_server__plan: off)")
