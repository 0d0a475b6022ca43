# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One list of GPUs out of what several sources say."""

from __future__ import annotations

import dataclasses
import typing as t

from .model import Gpu, NvmlReport, PciGpu


def merged_gpus(report: NvmlReport, known: t.Sequence[Gpu], pci: t.Sequence[PciGpu], passed: t.Collection[str] | None) -> tuple[str, tuple[Gpu, ...]]:
    """Return the source and the GPUs, sorted by bus id.

    :param report: NVML's or nvidia-smi's.
    :param known: what /proc/driver/nvidia/gpus has; fills in what the report lacks, and stands for it if there is none.
    :param pci: NVIDIA's controllers on the bus, the last resort (no driver at all).
    :param passed: device nodes of a container, which sees all of the node's GPUs in /proc; None on a node.
    """
    by_bus = {gpu.bus_id: gpu for gpu in known}
    if report.gpus:
        return report.source, _sorted(_filled(gpu, by_bus.get(gpu.bus_id)) for gpu in report.gpus)
    if known:
        return "proc", _sorted(gpu for gpu in known if passed is None or f"/dev/nvidia{gpu.minor}" in passed)
    if pci and passed is None:
        return "pci", _sorted(Gpu(uuid=None, bus_id=gpu.bus_id) for gpu in pci)
    return "none", ()


def _filled(gpu: Gpu, other: Gpu | None) -> Gpu:
    """Return a GPU with the other source's values where it has none."""
    if other is None:
        return gpu
    values = dataclasses.asdict(gpu)
    return Gpu(**{key: getattr(other, key) if value is None else value for key, value in values.items()})


def _sorted(gpus: t.Iterable[Gpu]) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.bus_id or ""))


def described(gpu: Gpu, pci: t.Sequence[PciGpu]) -> dict[str, t.Any]:
    """Return a GPU as the module returns it, with the kernel driver that holds it."""
    drivers = {each.bus_id: each.driver for each in pci}
    return {**dataclasses.asdict(gpu), "driver": drivers.get(gpu.bus_id or "")}
