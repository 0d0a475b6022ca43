# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The free GPU memory that a new start of our own service would find."""

from __future__ import annotations

import typing as t

Values = t.Mapping[str, t.Any]


def cards_without(seen: Values, vmid: int, uuids: t.Collection[str]) -> list[dict[str, t.Any]]:
    """Return a container's GPUs as ``sglang_plan`` takes them, with what its own processes hold counted as free.

    :param seen: answer of ``gpu_info`` on the node.
    :param vmid: the container, whose engine ends before another one starts.
    :param uuids: the container's GPUs; empty for all of the node.
    """
    own_mib: dict[str, int] = {}
    for process in seen.get("processes") or []:
        if process.get("container") == vmid:
            own_mib[process["gpu_uuid"]] = own_mib.get(process["gpu_uuid"], 0) + int(process.get("used_mib") or 0)
    return [
        {
            "name": str(gpu.get("name") or "").removeprefix("NVIDIA "),
            "total_mib": gpu["memory_mib"],
            "free_mib": min(gpu["memory_mib"], gpu["memory_free_mib"] + own_mib.get(gpu["uuid"], 0)),
        }
        for gpu in seen.get("gpus") or []
        if gpu.get("memory_mib") and gpu.get("memory_free_mib") is not None and (not uuids or gpu.get("uuid") in uuids)
    ]
