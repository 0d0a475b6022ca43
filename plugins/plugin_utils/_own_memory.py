# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The free GPU memory that a new start of our own service would find."""

from __future__ import annotations

import typing as t

Values = t.Mapping[str, t.Any]


def cards_after_stop(seen: Values, vmid: int, uuids: t.Collection[str]) -> list[dict[str, t.Any]]:
    """Return a container's GPUs as ``sglang_launch`` takes them, each with ``free_mib``, where what the container's processes hold counts as free.

    :param seen: answer of ``gpu_info`` on the node.
    :param vmid: the container, whose engine ends before another one starts.
    :param uuids: the container's GPUs; empty for all of the node.
    """
    own_mib: dict[str, int] = {}
    for process in seen.get("processes") or []:
        if process.get("container") == vmid:
            own_mib[process["gpu_uuid"]] = own_mib.get(process["gpu_uuid"], 0) + int(process.get("used_mib") or 0)
    return [
        {**gpu, "free_mib": _free_mib(gpu, own_mib.get(gpu["uuid"], 0))}
        for gpu in seen.get("gpus") or []
        if gpu.get("uuid") and (not uuids or gpu["uuid"] in uuids)
    ]


def _free_mib(gpu: Values, own_mib: int) -> int | None:
    """None where the driver does not tell the memory."""
    total, free = gpu.get("memory_mib"), gpu.get("memory_free_mib")
    return None if total is None or free is None else min(total, free + own_mib)
