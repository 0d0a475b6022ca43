# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The doctor's page for each link that can be broken."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.plugin_utils import _doctor as doctor

NAMES = {"node": "kpro5", "vmid": 129, "port": 30000}
STATE = {"load_state": "loaded", "active_state": "active", "n_restarts": 0, "result": "success"}
HEALTHY = doctor.Seen(
    node={"host": {"pve_version": "9.1.2"}, "driver": {"loaded": "580.173.02"}, "gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}], "findings": []},
    container={"exists": True, "here": True, "running": True, "address": "10.77.0.129", "plan": [], "gpus": []},
    environment={
        "failed": False,
        "base": {"plan": []},
        "userland": {"plan": []},
        "cuda": {"usable": True, "error": ""},
        "environment": {"plan": [], "package_version": "0.5.23", "venv": "/opt/kpro-llm/sglang/envs/x"},
    },
    model={"path": "/srv/models/x", "repository": "Qwen/Qwen3.6-27B", "commit": "c" * 40, "plan": []},
    service={"state": STATE, "running": True, "port_taken": True, "port_is_ours": True, "port_owner": "pid 812"},
    diagnosis={},
    answer={"answer": "Paris", "warnings_found": []},
)
UNREACHABLE = {"unreachable": True, "msg": "Failed to connect to the host via ssh: No route to host"}
FATAL = {"failed": True, "msg": "something went wrong", "remedy": "do this"}
FINDING = {"kind": "k", "level": "error", "what": "/dev/nvidia-uvm", "reason": "the device node is missing", "remedy": "Load the module"}
CRASHED = {
    "state": {**STATE, "active_state": "failed", "result": "exit-code"},
    "running": False,
    "port_taken": False,
    "port_is_ours": False,
    "port_owner": "",
}
DIAGNOSIS = {"class": "graph_capture_oom", "cause": "out of memory in graph capture", "remedy": "Lower mem_fraction_static", "evidence": ["a line"]}


def seen(**changes: t.Any) -> list[doctor.Link]:
    return doctor.chain(NAMES, dataclasses.replace(HEALTHY, **changes))


def but(name: str, **changes: t.Any) -> dict[str, t.Any]:
    return {name: {**getattr(HEALTHY, name), **changes}}


def test_a_healthy_deployment() -> None:
    links = seen()
    assert [(link.name, link.state) for link in links] == [(name, doctor.OK) for name in ("node", "container", "environment", "model", "service")]
    lines = doctor.page("qwen", links)
    assert lines[-1] == "Nothing is broken." and "2 GPU(s)" in lines[2] and "answered 'Paris'" in lines[6]
    assert doctor.report("qwen", links)["healthy"] is True


@pytest.mark.parametrize(
    ("changes", "broken", "cause", "remedy"),
    [
        ({"node": UNREACHABLE, "container": {}, "service": {}}, "node", "No route to host", "Check power and network"),
        ({"node": {"msg": "/usr/bin/python3: not found"}, "container": {}, "service": {}}, "node", "python3", "python3"),
        ({"node": {"host": {}}, "container": FATAL, "service": {}}, "node", "no Proxmox VE node", "ansible_host"),
        (but("node", findings=[FINDING]), "node", "/dev/nvidia-uvm: the device node is missing", "Load the module"),
        ({"container": FATAL, "service": {}}, "container", "something went wrong", "do this"),
        ({**but("container", exists=False), "service": {}}, "container", "does not exist on kpro5", "Run the deployment"),
        ({**but("container", here=False, notes=["It is on kpro6"]), "service": {}}, "container", "It is on kpro6", "pct_node"),
        ({**but("container", running=False), "service": {}}, "container", "container 129 is stopped", "pct start 129"),
        ({"service": UNREACHABLE}, "environment", "No route to host", "pct enter"),
        ({"environment": FATAL}, "environment", "something went wrong", "do this"),
        (but("environment", environment={"plan": ["Build x"]}), "environment", "Build x", "Run the deployment again"),
        (but("environment", userland={"plan": ["Install userland"]}), "environment", "Install userland", "Run the deployment again"),
        (but("environment", cuda={"usable": False, "error": "cuInit says 999. Restart it."}), "environment", "cuInit says 999", "Restart it"),
        ({"model": FATAL}, "model", "something went wrong", "do this"),
        (but("model", plan=["Download 1 file"]), "model", "missing or damaged: Download 1 file", "fetches only"),
        (but("service", state={"load_state": "not-found"}, running=False), "service", "never set up", "Run the deployment"),
        ({"service": CRASHED, "diagnosis": DIAGNOSIS, "answer": {}}, "service", "out of memory in graph capture", "Lower mem_fraction_static"),
        ({"service": CRASHED, "diagnosis": {}, "answer": {}}, "service", "(result exit-code), and its log does not say why", "Run the deployment"),
        (but("service", port_is_ours=False, port_owner="pid 7 (ollama)"), "service", "held by pid 7 (ollama)", "sglang_server__port"),
        (
            {**but("service", port_taken=False, port_is_ours=False), "diagnosis": {"phase": "weights"}, "answer": {}},
            "service",
            "does not listen yet (phase 'weights')",
            "Wait",
        ),
        ({"answer": {"failed": True, "reason": "the answer was 'ege ##atan'", "remedy": "do not use it"}}, "service", "'ege ##atan'", "do not use it"),
    ],
)
def test_the_first_broken_link_has_cause_and_remedy(changes: dict[str, t.Any], broken: str, cause: str, remedy: str) -> None:
    links = seen(**changes)
    worst = doctor.first_broken(links)
    assert worst is not None and worst.name == broken
    assert cause in worst.cause and remedy in worst.remedy
    assert [link.name for link in links] == ["node", "container", "environment", "model", "service"]
    before = links[: links.index(worst)]
    assert all(link.state in (doctor.OK, doctor.NOT_LOOKED_AT) for link in before)
    lines = "\n".join(doctor.page("qwen", links))
    assert f"First broken link: {broken}" in lines and cause in lines and remedy in lines
    report = json.loads(json.dumps(doctor.report("qwen", links)))
    assert (report["healthy"], report["first_broken"]) == (False, broken)
    assert cause in doctor.sentence(worst)


def test_what_lies_behind_a_node_that_cannot_be_reached_is_not_looked_at() -> None:
    links = seen(node=UNREACHABLE, container={}, environment={}, model={}, service={}, answer={})
    assert [link.state for link in links] == [doctor.BROKEN] + [doctor.NOT_LOOKED_AT] * 4


def test_a_difference_is_not_broken() -> None:
    links = seen(**but("container", plan=["Set memory of container 129 to 98304 MiB"]))
    assert doctor.first_broken(links) is None
    lines = doctor.page("qwen", links)
    assert "Nothing is broken. What differs from the inventory:" in lines
    assert "Set memory of container 129" in lines[-1]


def test_the_lines_that_decided_are_shown() -> None:
    lines = doctor.page("qwen", seen(service=CRASHED, diagnosis=DIAGNOSIS, answer={}))
    assert lines[-1] == "  log:    a line"
