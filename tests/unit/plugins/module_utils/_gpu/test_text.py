# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu import text

DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
509 nvidia-uvm

Block devices:
  7 loop
259 blkext
"""


@pytest.mark.parametrize(
    ("line", "version", "flavour"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build  (builder@host)  Tue Mar  3 2026",
            "580.142",
            "open",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 2024", "550.54.14", "proprietary"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jul  1 12:00:00 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)",
            "535.261.03",
            "proprietary",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  1010.43.02  Release Build", "1010.43.02", "open"),
    ],
)
def test_loaded_driver(line: str, version: str, flavour: str) -> None:
    assert text.loaded_driver(line) == text.DriverVersion(version, flavour)  # type: ignore[arg-type]


def test_no_driver_in_other_text() -> None:
    assert text.loaded_driver("") is None
    assert text.loaded_driver("GCC version:  gcc version 580.142 (Debian)") is None


@pytest.mark.parametrize(("licence", "flavour"), [("Dual MIT/GPL\n", "open"), ("NVIDIA\n", "proprietary")])
def test_flavour_of_license(licence: str, flavour: str) -> None:
    assert text.flavour_of_license(licence) == flavour


@pytest.mark.parametrize(
    ("name", "version"),
    [("libcuda.so.580.173.02", "580.173.02"), ("libnvidia-ml.so.580.142", "580.142"), ("libcuda.so.1", None), ("libcuda.so", None)],
)
def test_library_version(name: str, version: str | None) -> None:
    assert text.library_version(name) == version


def test_dkms_entries_of_both_generations() -> None:
    output = (
        "nvidia/580.173.02, 6.14.8-2-pve, x86_64: installed\n"
        "nvidia/580.173.02, 6.17.2-1-pve, x86_64: built\n"
        "nvidia/580.178.04: added\n"
        "nvidia, 535.261.03, 6.1.0-50-amd64, x86_64: installed (original_module exists)\n"
        "r8125/9.013.02, 6.14.8-2-pve, x86_64: installed\n"
        "Error! something else\n"
    )
    assert text.dkms_entries(output) == (
        text.DkmsEntry("580.173.02", "6.14.8-2-pve", "installed"),
        text.DkmsEntry("580.173.02", "6.17.2-1-pve", "built"),
        text.DkmsEntry("580.178.04", "", "added"),
        text.DkmsEntry("535.261.03", "6.1.0-50-amd64", "installed"),
    )


def test_character_majors_leave_block_devices_out() -> None:
    majors = text.character_majors(DEVICES)
    assert majors == {"mem": 1, "nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-uvm": 509}


def test_gpu_information() -> None:
    rows = text.gpu_information("Model: \t\t NVIDIA RTX A6000\nGPU UUID: \t GPU-1-2\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 0\n")
    assert rows == {"Model": "NVIDIA RTX A6000", "GPU UUID": "GPU-1-2", "Bus Location": "0000:41:00.0", "Device Minor": "0"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("00000000:41:00.0", "0000:41:00.0"),
        ("0000:41:00.0", "0000:41:00.0"),
        ("41:00.0", "0000:41:00.0"),
        ("00000001:C1:00.0", "0001:c1:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
    ],
)
def test_bus_id(given: str, wanted: str) -> None:
    assert text.bus_id(given) == wanted


def test_containers_whose_monitor_listens() -> None:
    sockets = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 26371 @/var/lib/lxc/129/command\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 26372 /run/systemd/private\n"
        "0000000000000000: 00000003 00000000 00000000 0001 03 26373 @/var/lib/lxc/201/command\n"
    )
    assert text.active_containers(sockets) == {129, 201}


def test_every_packager_s_name_of_the_driver_in_dkms() -> None:
    status = "nvidia-current-open/550.163.01, 6.14.11-4-pve, x86_64: installed\nnvidia-current-open/550.163.01: added\nzfs/2.3.3: added\n"
    assert [(entry.name, entry.kernel, entry.state) for entry in text.dkms_entries(status)] == [
        ("nvidia-current-open", "6.14.11-4-pve", "installed"),
        ("nvidia-current-open", "", "added"),
    ]


def test_checksum_of_the_vendors_file() -> None:
    digest = "32c85d99b0f640c9501f61b39ddad208fd0288d015c4fbc5fd0435c07783fa77"
    name = "NVIDIA-Linux-x86_64-580.159.03.run"
    assert text.checksum_of(f"{digest}  {name}\n", name) == digest
    assert text.checksum_of(f"{'0' * 64}  other.run\n{digest.upper()} *{name}\n", name) == digest
    assert text.checksum_of(digest, name) == digest
    assert text.checksum_of(f"{digest}  other.run\n", name) is None
    assert text.checksum_of("<html>not found</html>", name) is None


def test_versions_sort_by_number() -> None:
    kernels = ["6.8.12-9-pve", "6.8.12-11-pve", "6.14.8-2-pve"]
    assert sorted(kernels, key=text.version_key)[-1] == "6.14.8-2-pve"
    assert max(["580.95.05", "580.173.02"], key=text.version_key) == "580.173.02"


def test_pve_version() -> None:
    assert text.pve_version("pve-manager/9.0.3/025864202ebb6109 (running kernel: 6.14.8-2-pve)\n") == "9.0.3"
    assert text.pve_version("command not found") is None


def test_loaded_modules() -> None:
    assert text.loaded_modules("Module                  Size  Used by\nnvidia_uvm  1785856  0\nnvidia 60694528 1 nvidia_uvm\n") == {"nvidia", "nvidia_uvm"}
