# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a container gets, by which device nodes, and who else claims them."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._gpu.claims import BUS_ID, Guest
from . import property as prop

# CUDA opens nvidia-uvm-tools too (driver 570 and later): without it the runtime answers error 304.
SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU of the node, as ``gpu_info`` reports it; ``uuid`` is empty before there is a driver, ``index`` is NVML's."""

    uuid: str
    minor: int
    bus_id: str
    name: str = ""
    index: int = 0

    @property
    def node(self) -> str:
        """Path of the GPU's device node."""
        return f"/dev/nvidia{self.minor}"

    @property
    def label(self) -> str:
        """Name for people: ``NVIDIA RTX A6000 GPU-... (0000:01:00.0)``."""
        return f"{self.name or 'GPU'} {self.uuid} ({self.bus_id})" if self.uuid else f"{self.name or 'GPU'} {self.bus_id}"


def read_gpus(rows: t.Iterable[t.Mapping[str, t.Any]]) -> tuple[Gpu, ...]:
    """Return the node's GPUs ordered by bus id (the order of ``nvidia-smi``).

    :raises KproError: if a row lacks its UUID, minor or bus id.
    """
    gpus = []
    for row in rows:
        missing = [key for key in ("uuid", "minor", "bus_id") if row.get(key) is None]
        if missing:
            raise KproError("list of the node's GPUs", f"an entry lacks {', '.join(missing)}", "Pass gpu_node__result.gpus unchanged")
        gpus.append((Gpu(str(row["uuid"]), int(row["minor"]), str(row["bus_id"]), str(row.get("name") or "")), row.get("index")))
    gpus.sort(key=lambda pair: bus_address(pair[0].bus_id))
    # NVML counts by bus id too, but also the GPUs that are not handed on because something is wrong with them.
    return tuple(dataclasses.replace(gpu, index=place if index is None else int(index)) for place, (gpu, index) in enumerate(gpus))


def read_cards(rows: t.Iterable[t.Mapping[str, t.Any]]) -> tuple[Gpu, ...]:
    """Return what a node's PCI bus shows before there is a driver, in order of the bus ids.

    The driver will number the device nodes; that it does so in order of the bus ids is assumed here, so that this is good for
    foreseeing only.

    :raises KproError: if a row lacks its bus id.
    """
    buses = sorted((str(row.get("bus_id") or "") for row in rows), key=bus_address)
    return tuple(Gpu("", place, bus, "", place) for place, bus in enumerate(buses))


def bus_address(text: str) -> tuple[int, int, int, int]:
    """Return a PCI address as numbers; domain and function may be left out (both 0), the domain may have 4 or 8 digits."""
    match = BUS_ID.match(text.strip())
    if not match:
        raise KproError(f"PCI address '{text}'", "it is not of the form 0000:01:00.0")
    return (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16), int(match[4] or "0", 16))


def nodes_for(gpus: t.Sequence[Gpu]) -> tuple[str, ...]:
    """Return the device nodes that CUDA needs for these GPUs, in the order in which they are passed."""
    return (*(gpu.node for gpu in gpus), *SHARED_NODES) if gpus else ()


def is_nvidia_node(path: str) -> bool:
    """Tell whether a path is a device node of the NVIDIA driver."""
    return path.startswith("/dev/nvidia")


def device_path(text: str) -> str:
    """Return the path of a ``dev[n]`` value."""
    return prop.parse(text, prop.DEVICE).get("path", "")


def claims(gpu: Gpu, guests: t.Iterable[Guest], certain: bool = True) -> list[str]:
    """Return one sentence part for each guest that has this GPU (or, without ``certain``, may have it)."""
    found = ((guest, guest.claim_on(gpu)) for guest in guests)
    return [f"{guest.words} by {claim.key}" for guest, claim in found if claim and claim.certain == certain]


def listing(gpus: t.Sequence[Gpu]) -> str:
    """Return GPUs with their indexes, for messages."""
    return "; ".join(f"{gpu.index}: {gpu.label}" for gpu in gpus) or "it reports no GPU at all"
