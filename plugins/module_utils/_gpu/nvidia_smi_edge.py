# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi in NVML's place, where Python can't load the library."""

from __future__ import annotations

import re
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command
from .model import Gpu, NvmlReport
from .text import bus_id

FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_cap",
    "persistence_mode",
    "ecc.mode.current",
    "power.limit",
    "driver_version",
)
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")


def report_of_csv(text: str) -> NvmlReport:
    """Return what the answer to ``QUERY`` says; a field in brackets (``[N/A]``) is unknown."""
    lines = (line.split(",") for line in text.splitlines())
    rows = [dict(zip(FIELDS, (word.strip() for word in words), strict=True)) for words in lines if len(words) == len(FIELDS)]
    version = next((row["driver_version"] for row in rows), None)
    return NvmlReport("nvidia-smi", version, gpus=tuple(_gpu(row) for row in rows))


def _gpu(row: t.Mapping[str, str]) -> Gpu:
    return Gpu(
        uuid=row["uuid"],
        name=row["name"],
        bus_id=bus_id(row["pci.bus_id"]),
        index=_whole(row["index"]),
        memory_mib=_whole(row["memory.total"]),
        memory_used_mib=_whole(row["memory.used"]),
        memory_free_mib=_whole(row["memory.free"]),
        compute_capability=row["compute_cap"] if re.fullmatch(r"\d+\.\d+", row["compute_cap"]) else None,
        ecc=_switch(row["ecc.mode.current"]),
        persistence=_switch(row["persistence_mode"]),
        power_limit_w=float(row["power.limit"]) if re.fullmatch(r"[\d.]+", row["power.limit"]) else None,
    )


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


def ask_nvidia_smi(command: Command) -> NvmlReport:
    """Return nvidia-smi's report; its failure becomes part of it."""
    try:
        result = command.run(QUERY, timeout_s=60.0)
    except KproError as error:
        return NvmlReport("nvidia-smi", error=error.reason)
    if result.rc != 0:
        lines = (result.stdout.strip() or result.stderr.strip()).splitlines()
        return NvmlReport("nvidia-smi", error=lines[0] if lines else f"exit code {result.rc}", error_code=result.rc)
    return report_of_csv(result.stdout)
