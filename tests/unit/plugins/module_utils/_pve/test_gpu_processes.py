# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._pve.gpu_processes import (
    GpuProcess,
    ends_with_restart,
    short_command,
    started_by_hand,
    started_by_service,
)

BY_HAND = GpuProcess(4711, 88, "python3 -m sglang.launch_server", "", ("/dev/nvidia0", "/dev/nvidia1"))
SERVICE = GpuProcess(4712, 90, "python -m sglang", "kpro-sglang.service", ("/dev/nvidia0",))


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/usr/bin/python3", "-m", "sglang.launch_server", "--api-key", "secret"], "python3 -m sglang.launch_server"),
        (["sglang::scheduler_TP0"], "sglang::scheduler_TP0"),
        (["/root/venv/bin/python", "a.py", "b", "c", "d"], "python a.py b c"),
        ([], "a process that has ended"),
    ],
)
def test_a_command_is_shown_without_its_options(argv: list[str], shown: str) -> None:
    assert short_command(argv) == shown


def test_a_login_or_a_scope_is_a_person() -> None:
    assert started_by_service("kpro-sglang.service") == "kpro-sglang.service"
    assert started_by_service("session-3.scope") == started_by_service("user@0.service") == started_by_service("") == ""


def test_what_was_started_by_hand_is_named_with_the_command_that_ends_it() -> None:
    (sentence,) = started_by_hand(129, "kpro5", (BY_HAND, SERVICE))
    assert "process 88 (python3 -m sglang.launch_server)" in sentence and "'pct exec 129 -- kill 88' on kpro5" in sentence


def test_a_stop_says_what_it_ends() -> None:
    assert "kpro-sglang.service" in ends_with_restart("container 129", (SERVICE,)) and ends_with_restart("container 129", ()) == ""
