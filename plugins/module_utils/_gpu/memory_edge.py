# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the GPUs' memory in use, by UUID."""

from __future__ import annotations

import time
import typing as t

from .._linux.command_edge import Command
from .model import NvmlReport
from .nvidia_smi_edge import ask_nvidia_smi
from .nvml_edge import Nvml, NvmlError

# The driver has no event for freed memory; one question takes about a millisecond.
_PERIOD_S = 0.05


class GpuMemory:
    """Asks NVML, or nvidia-smi where the library cannot be loaded."""

    def __init__(self, command: Command | None = None) -> None:
        self._command = command or Command()

    def wait_until_free(self, gpus: t.Collection[str], limit_mib: int, wait_s: float) -> dict[str, int]:
        """Return the memory in use (MiB) by UUID as soon as none exceeds the limit, or after ``wait_s`` seconds.

        :param gpus: UUIDs; empty: all that can be seen.
        """
        try:
            with Nvml.session() as nvml:
                return _wait(nvml.report, gpus, limit_mib, wait_s)
        except NvmlError:
            return _wait(lambda: ask_nvidia_smi(self._command), gpus, limit_mib, wait_s)


def _wait(ask: t.Callable[[], NvmlReport], gpus: t.Collection[str], limit_mib: int, wait_s: float) -> dict[str, int]:
    deadline = time.monotonic() + wait_s
    while True:
        used = {gpu.uuid: gpu.memory_used_mib for gpu in ask().gpus if gpu.uuid and gpu.memory_used_mib is not None and (not gpus or gpu.uuid in gpus)}
        if all(mib <= limit_mib for mib in used.values()) or time.monotonic() >= deadline:
            return used
        time.sleep(_PERIOD_S)
