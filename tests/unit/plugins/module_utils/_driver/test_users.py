# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._driver.users import end_command, gpu_users
from ansible_collections.kpro.llm.plugins.module_utils._gpu.holders import Holder
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import GpuContainer, GpuProcess, NvmlReport

SERVER = Holder(4711, 100999, "python3", 129, None, ("/dev/nvidia0", "/dev/nvidia-uvm"))
SERVICE = Holder(4712, 100999, "python", 129, "kpro-sglang.service", ("/dev/nvidia0",))
ON_NODE = Holder(800, 0, "nvtop", None, "session-3.scope", ("/dev/nvidia0",))
PERSISTENCE = Holder(7, 110, "nvidia-persiste", None, "nvidia-persistenced.service", ("/dev/nvidia0",))


def test_a_server_started_by_hand_is_named_with_its_owner_and_memory() -> None:
    report = NvmlReport("nvml", processes=(GpuProcess("GPU-1", 4711, 41200), GpuProcess("GPU-2", 4711, 41000)))
    containers = (GpuContainer(129, "qwen", ("/dev/nvidia0",), True),)
    (user,) = gpu_users((SERVER, PERSISTENCE), report, containers, "nvidia-persistenced.service")
    assert user.words == "python3 (pid 4711, uid 100999, 82200 MiB of GPU memory) of container 129 (qwen)"
    assert user.end == "kill 4711"


def test_how_each_is_ended() -> None:
    assert end_command(SERVICE) == "pct exec 129 -- systemctl stop kpro-sglang.service"
    assert end_command(PERSISTENCE) == "systemctl stop nvidia-persistenced.service"
    assert end_command(ON_NODE) == "kill 800", "a session is no unit to be stopped"


@pytest.mark.parametrize(
    "unit", ["ssh.service", "ssh@3-10.0.0.1:22-10.0.0.2:5.service", "sshd.service", "user@1000.service", "console-getty.service", "pvedaemon.service"]
)
def test_the_way_in_is_never_stopped(unit: str) -> None:
    assert end_command(dataclasses.replace(ON_NODE, unit=unit)) == "kill 800"
