# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A broken GPU that nobody asked for is no reason to stop."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.findings import Finding, xid_events, xid_findings
from ansible_collections.kpro.llm.plugins.plugin_utils._gpu_problems import judge

GOOD, BAD = "GPU-aaaa", "GPU-bbbb"
ROWS = [
    {"uuid": GOOD, "bus_id": "0000:41:00.0", "minor": 0, "index": 0},
    {"uuid": BAD, "bus_id": "0000:61:00.0", "minor": 1, "index": 1},
]
FALLEN = xid_findings(xid_events("NVRM: Xid (PCI:0000:61:00): 79, pid=1, GPU has fallen off the bus"))[0]
MISSING = Finding("node_missing", "error", "/dev/nvidia1", "the device node is missing", "Run nvidia-modprobe")
CLAIMED = Finding("claimed_by_vm", "error", "GPU 0000:61:00.0", "it would be taken away when a VM starts", "Remove it")
LOST = Finding("gpu_lost", "error", "GPUs", "the kernel knows 3, NVML lists 2", "Look")
SHARED = Finding("node_missing", "error", "/dev/nvidia-uvm", "the device node is missing", "Run nvidia-modprobe")
WARNING = Finding("node_mode", "warning", "/dev/nvidia0", "its mode is 0660", "Pass it with mode=0666")


def seen(*findings: Finding) -> dict[str, t.Any]:
    return {"gpus": ROWS, "findings": [dataclasses.asdict(finding) for finding in findings]}


@pytest.mark.parametrize("finding", [FALLEN, MISSING, CLAIMED], ids=lambda finding: finding.kind)
@pytest.mark.parametrize("wanted", [1, "1", [GOOD], ["gpu-AAAA"], ["41:00.0"], ["0000:41:00"], [0], ["0"]], ids=str)
def test_a_problem_of_another_gpu_is_only_told_and_that_gpu_is_not_handed_on(finding: Finding, wanted: t.Any) -> None:
    found = judge(seen(finding, WARNING), wanted)
    assert found.in_the_way == ()
    assert found.others == (finding.sentence,)
    assert [gpu["uuid"] for gpu in found.usable] == [GOOD]


@pytest.mark.parametrize("wanted", ["all", 2, [BAD], ["0000:61:00.0"], [GOOD, BAD], [1]], ids=str)
def test_a_problem_of_a_wanted_gpu_stands_in_the_way(wanted: t.Any) -> None:
    found = judge(seen(FALLEN), wanted)
    assert found.in_the_way == (FALLEN.sentence,)
    assert found.others == ()


@pytest.mark.parametrize(("wanted", "in_the_way"), [(2, False), ([GOOD], False), (3, True), ("all", True), (["GPU-cccc"], True)], ids=str)
def test_a_lost_gpu_matters_only_if_it_is_missed(wanted: t.Any, in_the_way: bool) -> None:
    assert bool(judge(seen(LOST), wanted).in_the_way) is in_the_way


@pytest.mark.parametrize("wanted", [1, [GOOD], "all"], ids=str)
def test_a_problem_of_the_driver_always_stands_in_the_way(wanted: t.Any) -> None:
    assert judge(seen(SHARED), wanted).in_the_way == (SHARED.sentence,)


def test_a_name_that_no_gpu_has_stands_in_the_way() -> None:
    found = judge(seen(), ["GPU-cccc", GOOD, "61:00.0"])
    assert [sentence.split(":")[0] for sentence in found.in_the_way] == ["GPU 'GPU-cccc'"]
    assert GOOD in found.in_the_way[0] and "0000:61:00.0" in found.in_the_way[0]
    assert judge({"gpus": [], "findings": []}, ["GPU-cccc"]).in_the_way == ()  # without a driver nobody knows


def test_warnings_are_no_problems() -> None:
    found = judge(seen(WARNING), "all")
    assert (found.in_the_way, found.others, len(found.usable)) == ((), (), 2)


def test_a_number_that_is_more_than_there_are() -> None:
    (sentence,) = judge({"gpus": ROWS[:1], "findings": []}, "2").in_the_way
    assert "2 are wanted, and the driver shows 1 (0000:41:00.0)" in sentence
    assert judge({"gpus": ROWS, "findings": []}, 2).in_the_way == ()
