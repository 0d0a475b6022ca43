# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu.nvidia_smi_edge import ask_nvidia_smi, report_of_csv
from ansible_collections.kpro.llm.plugins.module_utils._linux.command_edge import Command

# nvidia-smi of Debian's nvidia-driver 535 and 550 on a machine without a driver (facts: rc 9 and 12).
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."
CSV = (
    "0, GPU-1, NVIDIA RTX A6000, 00000000:41:00.0, 49140, 3, 48601, 8.6, Enabled, Disabled, 300.00, 580.173.02\n"
    "1, GPU-2, NVIDIA RTX A6000, 00000000:61:00.0, 49140, [N/A], 48601, [N/A], Disabled, [N/A], [N/A], 580.173.02\n"
)


def test_csv() -> None:
    report = report_of_csv(CSV)
    assert (report.driver_version, len(report.gpus)) == ("580.173.02", 2)
    first, second = report.gpus
    assert (first.bus_id, first.memory_mib, first.memory_free_mib, first.compute_capability) == ("0000:41:00.0", 49140, 48601, "8.6")
    assert (first.ecc, first.persistence, first.power_limit_w) == (False, True, 300.0)
    assert (second.memory_used_mib, second.compute_capability, second.ecc, second.power_limit_w) == (None, None, None, None)


def program(folder: pathlib.Path, text: str, rc: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\ncat << 'END'\n{text}\nEND\nexit {rc}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_no_driver(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, NO_DRIVER, 9, monkeypatch)
    report = ask_nvidia_smi(Command())
    assert (report.error_code, report.gpus) == (9, ())
    assert report.error.startswith("NVIDIA-SMI has failed because it couldn't communicate")


def test_answer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, CSV.strip(), 0, monkeypatch)
    assert [gpu.uuid for gpu in ask_nvidia_smi(Command()).gpus] == ["GPU-1", "GPU-2"]


def test_absent(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_nvidia_smi(Command()).error == "the program is not there"
