# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failure cases of driver and device nodes from the field, each with its own recorded input: what is found, said and done."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._cuda.model import PeerCheck
from ansible_collections.kpro.llm.plugins.module_utils._cuda.verdict import p2p_verdict
from ansible_collections.kpro.llm.plugins.module_utils._driver import explain, repository
from ansible_collections.kpro.llm.plugins.module_utils._driver.plan import node_plan, userland_plan
from ansible_collections.kpro.llm.plugins.module_utils._gpu.findings import Versions, boot_findings, node_findings, version_findings
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import Gpu, PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import character_majors, dkms_entries, library_version, loaded_driver, loaded_modules
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.driver_cases import CONTAINER, FRESH, GOOD, USERLAND, WANTED, but, device

_LINES = (Path(__file__).parents[1] / "fixtures" / "node_failure_cases.jsonl").read_text(encoding="utf-8").splitlines()
CASES = {case["id"]: case for case in map(json.loads, _LINES)}


def holds(number: str, text: str) -> None:
    """The message says what it has to, and claims nothing that is wrong."""
    expect = CASES[f"LLMX-{number}"]["expect"]
    for words in expect["must_mention"]:
        assert words.lower() in text.lower(), text
    for words in expect["must_not_claim"]:
        assert words.lower() not in text.lower(), text


def repro(number: str) -> dict[str, t.Any]:
    return dict(CASES[f"LLMX-{number}"]["repro"])


def test_one_exact_version_that_both_sides_have() -> None:
    """LLMX-008: the newest that the host could have is not what the container gets."""
    given = repro("008")
    repository.check_offered("590.48.01", given["host_candidates"], "https://example.org/")
    with pytest.raises(KproError) as caught:
        repository.check_offered("595.45.04", given["container_candidates"], "https://example.org/")
    holds("008", caught.value.sentence)
    assert "Pin: version 590.48.01-*" in repository.pin_text("", "590.48.01")


@pytest.mark.parametrize("number", ["016", "084", "156"])
def test_container_with_another_userland(number: str) -> None:
    """LLMX-016, LLMX-084, LLMX-156: all components of a version have to be the same; it is put right before anything else is tuned."""
    given = repro(number)
    text = given.get("proc_driver_nvidia_version") or f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {given['host_version']}"
    there = given["container_version"] if "container_version" in given else library_version(given["container_libs"][-1])
    loaded = loaded_driver(text)
    assert loaded is not None and there is not None
    (finding,) = version_findings(Versions(loaded, None, there, None), "container")
    holds(number, finding.sentence)
    plan = userland_plan(dataclasses.replace(USERLAND, version=loaded.version), but(CONTAINER, loaded=loaded, nvml_library=there, cuda_library=there))
    assert [(change.before, change.after) for change in plan.changes] == [(there, loaded.version)]


def test_versions_of_two_and_three_parts() -> None:
    """LLMX-038: open and proprietary wording, and dates elsewhere in the line."""
    case = CASES["LLMX-038"]
    found = [loaded_driver(line) for line in case["repro"]["lines"]]
    assert [each and each.version for each in found] == case["expect"]["value"]
    assert [each and each.flavour for each in found] == ["open", "proprietary"]


def test_nouveau_holds_the_gpu_until_the_next_boot() -> None:
    """LLMX-033: no GPU step is taken, and nobody is told that an installation failed."""
    modules = loaded_modules(f"Module Size Used by\n{repro('033')['lsmod']}\n")
    plan = node_plan(WANTED, but(FRESH, modules=modules, pci=(PciGpu("0000:01:00.0", "0x2230", "nouveau"),)))
    holds("033", f"node-a needs a reboot: {plan.reboot}")
    assert "0000:01:00.0" in plan.reboot and not {"install", "load"} & {change.action[0] for change in plan.changes}


def test_nodes_with_the_major_of_another_boot() -> None:
    """LLMX-049: the kernel's table decides, not what was written down."""
    majors = {**character_majors(f"Character devices:\n{repro('049')['proc_devices']}\n"), "nvidia": 195, "nvidiactl": 195}
    nodes = (*(node for node in GOOD.nodes if "uvm" not in node.path), device("/dev/nvidia-uvm", 510, 0), device("/dev/nvidia-uvm-tools", 510, 1))
    found = node_findings(nodes, majors, (Gpu("GPU-1", minor=0), Gpu("GPU-2", minor=1)), "node")
    assert {finding.kind for finding in found} == {"wrong_major"}
    holds("049", found[0].sentence)
    assert [change.sentence for change in node_plan(WANTED, but(GOOD, nodes=nodes, majors=majors)).changes] == ["Enable and start kpro-nvidia-devnodes.service"]


def test_uvm_that_nothing_loads_at_boot() -> None:
    """LLMX-119: it works because somebody has used a GPU by hand."""
    given = repro("119")
    assert not given["modules_load_d"] and not given["units"]
    (finding,) = boot_findings(given["lsmod"], at_boot=False)
    holds("119", finding.sentence)
    bare = but(GOOD, files={path: text for path, text in GOOD.files.items() if "modules-load" not in path and "devnodes" not in path})
    sentences = " ".join(change.sentence for change in node_plan(WANTED, bare).changes)
    assert "/etc/modules-load.d/kpro-nvidia.conf" in sentences and "Enable and start kpro-nvidia-devnodes.service" in sentences


def test_package_is_installed_and_the_build_was_skipped() -> None:
    """LLMX-121: apt's success is not the module's; the exact headers are installed and the module is built."""
    given = repro("121")
    wanted = dataclasses.replace(WANTED, version="550.54.14")
    dkms = dkms_entries(given["dkms_status"].replace("550.54", "550.54.14"))
    running = given["uname_r"]
    present = but(
        GOOD, kernel=running, kernels=(running,), kernels_without_headers=(running,), dkms=dkms, nvml_library="550.54.14", cuda_library="550.54.14",
        loaded=None, on_disk=None, modules=frozenset(), nodes=(), majors={},
    )  # fmt: skip
    sentences = [change.sentence for change in node_plan(wanted, present).changes]
    assert sentences[:3] == [f"Install the packages proxmox-headers-{running}", f"Build the kernel module for {running}", "Load the kernel modules"]
    holds("121", " ".join(sentences))


def test_driver_that_is_older_than_the_kernels_interfaces() -> None:
    """LLMX-128: two ways out, a newer driver or the kernel that has a module."""
    given = repro("128")
    entries = dkms_entries(given["dkms_status"])
    kernel, version = given["uname_r"], entries[0].version
    head = f"DKMS make.log for nvidia-{version} for kernel {kernel} (x86_64)"
    logs = {
        "make": f"{head}\n{given['dkms_make_log_tail']}\n", "make_path": "/x/make.log", "version": version, "running": kernel, "newest": kernel,
        "built": " ".join(entry.kernel for entry in entries if entry.state == "installed"),
    }  # fmt: skip
    error = explain.failure("dkms", f"Build the kernel module for {kernel}", f"Error! Bad return status for module build on kernel: {kernel} (x86_64)\n", logs)
    holds("128", error.sentence)
    assert "Take driver 580.82 or newer" in error.remedy and "proxmox-boot-tool kernel pin 6.14.11-4-pve" in error.remedy


def test_headers_of_a_kernel_that_is_not_the_newest_any_more() -> None:
    """LLMX-140: running kernel, newest kernel and package sources disagree, and it is said which."""
    given = repro("140")
    newest = given["dpkg_kernels"][-1].removeprefix("pve-kernel-")
    output = f"Reading package lists...\nE: Unable to locate package proxmox-headers-{given['uname_r']}\n"
    error = explain.failure("apt", "Install the packages", output, {"running": given["uname_r"], "newest": newest, "version": "535.54.03"})
    holds("140", error.sentence)


def test_gpus_without_peer_access() -> None:
    """LLMX-032: neither NCCL nor the engine's own all-reduce may count on it."""
    ways = [(0, 1), (1, 0)]
    checks = [PeerCheck(f"GPU-{one}", f"GPU-{other}", "ok" if repro("032")["can_access_peer"][one][other] else "none") for one, other in ways]
    verdict = p2p_verdict(checks, 2)
    assert verdict.disable
    holds("032", verdict.reason)


def test_copies_between_gpus_that_arrive_as_other_bytes() -> None:
    """LLMX-134: the driver reports success, the bytes are others."""
    given = repro("134")["copy_checksum"]
    assert given["sent"] != given["received"]
    verdict = p2p_verdict([PeerCheck("GPU-0", "GPU-1", "corrupt", f"{given['bytes']} bytes"), PeerCheck("GPU-1", "GPU-0", "ok")], 2)
    assert (verdict.p2p, verdict.disable) == ("corrupt", True)
    holds("134", verdict.reason)


def test_every_case_of_the_fixture_is_used() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [case for case in CASES if case not in text] == []
