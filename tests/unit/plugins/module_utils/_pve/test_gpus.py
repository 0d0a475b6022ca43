# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._gpu.claims import read_guest
from ansible_collections.kpro.llm.plugins.module_utils._pve import gpus as gpu_rules
from ansible_collections.kpro.llm.plugins.module_utils._pve.giving import Request, give_out
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import failure_case

ROWS = [
    {"uuid": "GPU-bbbb", "minor": 0, "bus_id": "0000:C1:00.0", "name": "NVIDIA RTX A6000"},
    {"uuid": "GPU-aaaa", "minor": 1, "bus_id": "00000000:41:00.0", "name": "NVIDIA RTX A6000"},
]
GPUS = gpu_rules.read_gpus(ROWS)


def choose(wanted: object, gpus: tuple[gpu_rules.Gpu, ...] = GPUS, own: str = "", other: str = "") -> tuple[gpu_rules.Gpu, ...]:
    """Return what container 129 gets, with configurations of its own and of another container."""
    guests = [read_guest(vmid, "container", text) for vmid, text in ((129, own), (210, other)) if text]
    grant = give_out([Request(129, "qwen", wanted)], gpus, guests)[129]
    if grant.problem:
        raise grant.problem
    return grant.gpus


def test_gpus_are_ordered_by_bus_id() -> None:
    assert [gpu.uuid for gpu in GPUS] == ["GPU-aaaa", "GPU-bbbb"]


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        ("all", ["GPU-aaaa", "GPU-bbbb"]),
        (1, ["GPU-aaaa"]),
        ("2", ["GPU-aaaa", "GPU-bbbb"]),
        (0, []),
        ([], []),
        (None, []),
        (["GPU-BBBB"], ["GPU-bbbb"]),
        (["c1:00.0"], ["GPU-bbbb"]),
        (["0000:41:00"], ["GPU-aaaa"]),
        ([1], ["GPU-bbbb"]),
        ("GPU-bbbb,GPU-aaaa", ["GPU-aaaa", "GPU-bbbb"]),
    ],
)
def test_what_is_asked_for_is_what_is_chosen(wanted: object, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in choose(wanted)] == uuids


@pytest.mark.parametrize("wanted", [3, ["GPU-cccc"], [2], ["0000:03:00.0"]])
def test_a_gpu_that_is_not_there_is_an_error_that_lists_those_that_are(wanted: object) -> None:
    with pytest.raises(KproError) as caught:
        choose(wanted)
    assert "GPU-aaaa" in caught.value.sentence and "0000:C1:00.0" in caught.value.sentence


def test_all_of_none_is_an_error() -> None:
    with pytest.raises(KproError, match="no GPU at all"):
        choose("all", ())


def test_a_count_takes_what_the_container_has_and_passes_over_what_others_have() -> None:
    assert [gpu.uuid for gpu in choose(1, own="dev0: /dev/nvidia0\n")] == ["GPU-bbbb"]
    assert [gpu.uuid for gpu in choose(1, other="dev0: /dev/nvidia1\n")] == ["GPU-bbbb"]
    with pytest.raises(KproError, match="1 of 2 are given to other guests"):
        choose(2, other="dev0: /dev/nvidia1\n")


def test_cuda_needs_the_shared_nodes_too() -> None:
    assert gpu_rules.nodes_for(GPUS) == ("/dev/nvidia1", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    assert gpu_rules.nodes_for(()) == ()


def test_claims_are_told_with_guest_and_key() -> None:
    by_dev = read_guest(210, "container", "hostname: llm-b\ndev0: mode=0666,path=/dev/nvidia1\n")
    by_raw = read_guest(305, "container", "hostname: old\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\n")
    by_pci = read_guest(400, "VM", "name: win\nhostpci0: 0000:41:00,pcie=1\n")
    assert gpu_rules.claims(GPUS[0], [by_dev, by_raw, by_pci]) == ["container 210 (llm-b) by dev0", "VM 400 (win) by hostpci0"]
    assert gpu_rules.claims(GPUS[1], [by_dev, by_raw, by_pci]) == ["container 305 (old) by lxc.mount.entry"]


def test_selection_by_bus_id_is_not_by_minor() -> None:
    """LLMX-072: the card at 0000:93:00.0 is nvidia1."""
    repro = failure_case("LLMX-072")["repro"]
    rows = [{"uuid": f"GPU-{minor}", "minor": minor, "bus_id": bus} for bus, minor in repro["pci_to_minor"].items()]
    chosen = choose(repro["selection"], gpu_rules.read_gpus(rows))
    assert gpu_rules.nodes_for(chosen)[0] == "/dev/nvidia1" and len(chosen) == 1


def test_a_row_without_its_minor_is_refused() -> None:
    with pytest.raises(KproError, match="lacks minor"):
        gpu_rules.read_gpus([{"uuid": "GPU-a", "bus_id": "0000:01:00.0"}])
