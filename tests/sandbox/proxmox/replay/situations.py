# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scenario takes for granted beside its steps: a lock held by somebody else, a refusing environment."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kpro_standin_pve.node import Node

HELD_S = 0.5
FIXTURE_950 = """arch: amd64
cores: 1
features: nesting=1
hostname: ct950
memory: 512
ostype: debian
rootfs: local:950/vm-950-disk-0.raw,size=1G
swap: 0
unprivileged: 1
"""
# The texts of the recording environment, which had neither AppArmor nor memory controller.
REFUSALS = {
    "memory": "trying to change memory cgroup values: container not running",
    "dev": "failed to change apparmor profile: Invalid argument",
    "mp": "failed to change apparmor profile: Invalid argument",
}


@contextmanager
def of(scenario: str, node: Node) -> Iterator[None]:
    """Hold while the scenario is played what its recorded state says."""
    driver: Any = node.driver
    if scenario == "running-hotplug-error-refuses-all" and hasattr(driver, "refusals"):
        driver.refusals = REFUSALS
        yield
        driver.refusals = {}
    elif scenario == "lock-flock-held":
        descriptor = _hold(node)
        yield
        os.close(descriptor)
    elif scenario == "lock-flock-released":
        descriptor = _hold(node)
        before, node.lock_wait_s = node.lock_wait_s, 10.0
        timer = threading.Timer(HELD_S, os.close, (descriptor,))
        timer.start()
        yield
        timer.join()
        node.lock_wait_s = before
    elif scenario == "life-token-cycle":
        # On the recording node a scenario that is left out here had put the fixture's configuration back.
        node.config_path("950").write_text(FIXTURE_950, encoding="utf-8")
        yield
    else:
        yield


def _hold(node: Node) -> int:
    path = node.path("/run/lock/lxc/pve-config-911.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
