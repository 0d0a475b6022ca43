# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a GPU, in words, and how each is ended."""

from __future__ import annotations

import re
import typing as t

from .._gpu.holders import Holder
from .._gpu.model import GpuContainer, NvmlReport
from .model import GpuUser

# Never advise stopping these: they hold login shells.
_SHELLS = re.compile(r"(sshd?|user|(console-|serial-|container-)?getty|cron|atd|pve\w*|lxc\S*)(@\S*)?\.service$")


def gpu_users(holders: t.Sequence[Holder], report: NvmlReport, containers: t.Sequence[GpuContainer], apart: str) -> tuple[GpuUser, ...]:
    """Return the users of GPUs.

    :param holders: processes with an open device node, or with memory by NVML.
    :param report: NVML's, for the memory.
    :param containers: for their names.
    :param apart: a unit that does not count (the persistence daemon).
    """
    mib: dict[int, int] = {}
    for process in report.processes:
        mib[process.pid] = mib.get(process.pid, 0) + (process.used_mib or 0)
    names = {container.vmid: container.words for container in containers}
    return tuple(GpuUser(_words(each, mib.get(each.pid, 0), names), end_command(each)) for each in holders if each.unit != apart)


def _words(holder: Holder, used_mib: int, names: t.Mapping[int, str]) -> str:
    where = "the node" if holder.container is None else names.get(holder.container, f"container {holder.container}")
    parts = [f"pid {holder.pid}"]
    if holder.unit:
        parts.append(holder.unit)
    if holder.uid is not None:
        parts.append(f"uid {holder.uid}")
    if used_mib:
        parts.append(f"{used_mib} MiB of GPU memory")
    return f"{holder.name or 'a process'} ({', '.join(parts)}) of {where}"


def end_command(holder: Holder) -> str:
    """Return the command on the node that ends a user: of its unit, or of the process itself where it was started by hand."""
    if holder.unit and holder.unit.endswith(".service") and not _SHELLS.match(holder.unit):
        stop = f"systemctl stop {holder.unit}"
        return stop if holder.container is None else f"pct exec {holder.container} -- {stop}"
    return f"kill {holder.pid}"
