# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._driver import checks
from ansible_collections.kpro.llm.plugins.module_utils._driver.converge import make_plan, resolved
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import DriverVersion
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.driver_cases import (
    CONTAINER,
    ENGINE,
    FRESH,
    GOOD,
    OLDER,
    USERLAND,
    VERSION,
    WANTED,
    but,
)

REPLACE = dataclasses.replace(WANTED, replace=True)
OLD = but(GOOD, loaded=DriverVersion(OLDER, "open"), on_disk=DriverVersion(OLDER, "open"), nvml_library=OLDER, cuda_library=OLDER)


@pytest.mark.parametrize("version", ["580", "580.*", "latest", "", "580.1", "v580.173.02"])
def test_only_full_versions(version: str) -> None:
    with pytest.raises(KproError, match="full version"):
        checks.check_version(version)


@pytest.mark.parametrize("version", ["580.173.02", "580.142", "1010.43.02"])
def test_full_versions(version: str) -> None:
    checks.check_version(version)


def test_older_driver_needs_consent() -> None:
    with pytest.raises(KproError) as caught:
        make_plan(WANTED, OLD)
    assert caught.value.reason == f"{OLDER} (loaded, on disk, its libraries) is there, {VERSION} is wanted"
    assert "gpu_node__replace_driver" in caught.value.remedy
    assert make_plan(REPLACE, OLD).changes


def test_driver_in_use_is_not_replaced() -> None:
    with pytest.raises(KproError) as caught:
        make_plan(REPLACE, but(OLD, users=(ENGINE,)))
    assert "pid 4711, kpro-sglang.service, uid 100999, 41200 MiB of GPU memory) of container 129 (qwen)" in caught.value.reason
    assert caught.value.remedy == "Stop them (pct exec 129 -- systemctl stop kpro-sglang.service), then run again"


def test_driver_in_use_is_not_installed_again() -> None:
    with pytest.raises(KproError, match="can't be installed again"):
        make_plan(WANTED, but(GOOD, cuda_library=None, users=(ENGINE,)))


def test_users_are_no_hindrance_where_nothing_is_replaced() -> None:
    assert make_plan(WANTED, but(GOOD, users=(ENGINE,))).changes == ()


def test_all_gpus_at_vfio() -> None:
    gpus = (PciGpu("0000:41:00.0", "0x2230", "vfio-pci"),)
    with pytest.raises(KproError, match=r"0000:41:00\.0: it is bound to vfio-pci"):
        make_plan(WANTED, but(FRESH, pci=gpus))


def test_one_gpu_at_vfio_leaves_the_other_to_us() -> None:
    gpus = (PciGpu("0000:41:00.0", "0x2230", "vfio-pci"), PciGpu("0000:61:00.0", "0x2230", None))
    assert make_plan(WANTED, but(FRESH, pci=gpus)).changes


def test_no_gpu_at_all() -> None:
    with pytest.raises(KproError, match="PCI bus"):
        make_plan(WANTED, but(FRESH, pci=()))


@pytest.mark.parametrize(
    ("device_id", "flavour", "version", "result"),
    [
        ("0x2230", "auto", VERSION, "open"),
        ("0x1e30", "auto", VERSION, "open"),
        ("0x1db6", "auto", VERSION, "proprietary"),
        ("0x1b06", "auto", "570.148.08", "proprietary"),
        ("0x2230", "proprietary", VERSION, "proprietary"),
        ("0x2230", "open", "620.10.01", "open"),
    ],
)
def test_flavour_by_generation(device_id: str, flavour: str, version: str, result: str) -> None:
    wanted = dataclasses.replace(WANTED, flavour=flavour, version=version)
    assert checks.wanted_flavour(wanted, but(FRESH, pci=(PciGpu("0000:41:00.0", device_id, None),))) == result


@pytest.mark.parametrize(
    ("device_id", "flavour", "version", "words"),
    [
        ("0x1db6", "auto", "595.10.01", "no longer supports"),
        ("0x2230", "proprietary", "620.10.01", "no proprietary kernel module"),
    ],
)
def test_flavour_that_can_not_be(device_id: str, flavour: str, version: str, words: str) -> None:
    wanted = dataclasses.replace(WANTED, flavour=flavour, version=version)
    with pytest.raises(KproError, match=words):
        checks.wanted_flavour(wanted, but(FRESH, pci=(PciGpu("0000:41:00.0", device_id, None),)))


def test_open_is_refused_for_a_lone_old_gpu() -> None:
    wanted = dataclasses.replace(WANTED, flavour="open")
    with pytest.raises(KproError, match="can't drive it"):
        checks.wanted_flavour(wanted, but(FRESH, pci=(PciGpu("0000:41:00.0", "0x1db6", None),)))


def test_container_takes_what_the_kernel_runs() -> None:
    wanted = dataclasses.replace(USERLAND, version="")
    assert resolved(wanted, CONTAINER, False).version == VERSION


def test_container_refuses_another_version_and_no_driver() -> None:
    with pytest.raises(KproError, match="node's kernel runs"):
        resolved(dataclasses.replace(USERLAND, version=OLDER), CONTAINER, False)
    with pytest.raises(KproError, match="runs no driver"):
        resolved(USERLAND, but(CONTAINER, loaded=None), False)


def test_check_mode_believes_what_the_node_is_going_to_run() -> None:
    assert resolved(dataclasses.replace(USERLAND, version=OLDER), CONTAINER, True).version == OLDER
    assert resolved(USERLAND, but(CONTAINER, loaded=None), True).version == VERSION


def test_foreign_guests_are_those_that_run_here_without_our_tag() -> None:
    rows = [
        {"vmid": 129, "type": "lxc", "node": "kpro5", "status": "running", "name": "qwen", "tags": "kpro-llm;llm"},
        {"vmid": 100, "type": "qemu", "node": "kpro5", "status": "running", "name": "web"},
        {"vmid": 101, "type": "lxc", "node": "kpro5", "status": "stopped", "name": "old"},
        {"vmid": 102, "type": "lxc", "node": "kpro6", "status": "running", "name": "far"},
        {"vmid": 103, "type": "lxc", "node": "kpro5", "status": "running", "name": "alike", "tags": "kpro-llm-test"},
    ]
    assert checks.running_foreign_guests(json.dumps(rows), "kpro5") == ("VM 100 (web)", "container 103 (alike)")
