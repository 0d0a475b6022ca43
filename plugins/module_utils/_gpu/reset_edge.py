# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that resets GPUs: the last resort, on the node only, and only while nobody has one open."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command
from .._linux.processes import Process, process_words
from .host_edge import GpuHost


def check_reset(gpus: t.Sequence[str], root: str = "/") -> None:
    """See that a reset may be asked for here.

    :raises KproError: if this is no node, or no GPU is named: a reset of "all that can be seen" would be one of somebody else's, too.
    """
    if GpuHost(Command(), root).place() != "node":
        raise KproError("GPU reset", "it works only on the node, which sees who has a GPU open", "Run this on the node (delegate_to), or without reset")
    if not gpus:
        raise KproError("GPU reset", "no GPU is named", "Give the UUIDs in gpus")


def to_reset(gpus: t.Sequence[str], used_mib: t.Mapping[str, int], limit_mib: int) -> list[str]:
    """Return the named GPUs that hold memory although they should not."""
    return [uuid for uuid in gpus if used_mib.get(uuid, 0) > limit_mib]


def reset(gpus: t.Sequence[str], clients: t.Sequence[Process], command: Command | None = None) -> None:
    """Reset GPUs.

    :param clients: processes with any NVIDIA device open.
    :raises KproError: if there is one (a reset would end its work), or if the driver refuses.
    """
    if clients:
        who = "; ".join(process_words(process) for process in clients)
        raise KproError(f"GPU {', '.join(gpus)}", f"it is not reset while somebody has a GPU open: {who}", "End that where it belongs first")
    for uuid in gpus:
        done = (command or Command()).run(["nvidia-smi", "--gpu-reset", "-i", uuid], timeout_s=120)
        if done.rc:
            raise KproError(f"GPU {uuid}", f"the driver refuses a reset ({done.last_error_line})", "Load the driver's modules again, or reboot the node")
