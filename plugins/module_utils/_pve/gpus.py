# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a container gets, by which device nodes, and who else claims them."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._core.errors import KproError
from . import property as prop
from .config import Config

# CUDA opens nvidia-uvm-tools too (driver 570 and later): without it the runtime answers error 304.
SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
GPU_NODE = re.compile(r"^/dev/nvidia(\d+)$")
BUS_ID = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?$", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU of the node, as ``gpu_info`` reports it."""

    uuid: str
    minor: int
    bus_id: str
    name: str = ""

    @property
    def node(self) -> str:
        """Path of the GPU's device node."""
        return f"/dev/nvidia{self.minor}"

    @property
    def label(self) -> str:
        """Name for people: ``NVIDIA RTX A6000 GPU-... (0000:01:00.0)``."""
        return f"{self.name or 'GPU'} {self.uuid} ({self.bus_id})"


@dataclasses.dataclass(frozen=True)
class Guest:
    """Another container or VM of the node, with what matters about its GPUs.

    :param nodes: device node -> the key that passes it (``dev0``, ``lxc.mount.entry``).
    :param bus_ids: PCI address -> the key that passes it (``hostpci0``).
    """

    vmid: int
    name: str
    kind: str
    nodes: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    bus_ids: t.Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_gpus(rows: t.Iterable[t.Mapping[str, t.Any]]) -> tuple[Gpu, ...]:
    """Return the node's GPUs ordered by bus id (the order of ``nvidia-smi``).

    :raises KproError: if a row lacks its UUID, minor or bus id.
    """
    gpus = []
    for row in rows:
        missing = [key for key in ("uuid", "minor", "bus_id") if row.get(key) is None]
        if missing:
            raise KproError("list of the node's GPUs", f"an entry lacks {', '.join(missing)}", "Pass gpu_node__result.gpus unchanged")
        gpus.append(Gpu(str(row["uuid"]), int(row["minor"]), str(row["bus_id"]), str(row.get("name") or "")))
    return tuple(sorted(gpus, key=lambda gpu: bus_address(gpu.bus_id)))


def bus_address(text: str) -> tuple[int, int, int, int]:
    """Return a PCI address as numbers; domain and function may be left out (both 0), the domain may have 4 or 8 digits."""
    match = BUS_ID.match(text.strip())
    if not match:
        raise KproError(f"PCI address '{text}'", "it is not of the form 0000:01:00.0")
    return (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16), int(match[4] or "0", 16))


def choose(wanted: t.Any, gpus: t.Sequence[Gpu], avoid: t.Collection[str] = (), prefer: t.Collection[str] = ()) -> tuple[Gpu, ...]:
    """Return the wanted GPUs of a node in order of their bus ids.

    :param wanted: ``all``, a number of GPUs, or a list of UUIDs, bus ids and indexes (by bus id, from 0); None is none.
    :param avoid: device nodes that a count passes over because somebody else has them.
    :param prefer: device nodes that a count takes first because the container has them already.
    :raises KproError: if a GPU that is asked for is not there.
    """
    if wanted is None or wanted in ("", [], "none"):
        return ()
    if isinstance(wanted, str) and wanted.strip().isdecimal():
        wanted = int(wanted)
    if wanted == "all":
        return _some(len(gpus) or 1, gpus, (), ())
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return _some(wanted, gpus, avoid, prefer)
    items = wanted if isinstance(wanted, (list, tuple)) else re.split(r"[,\s]+", str(wanted))
    found = {gpu.uuid: gpu for gpu in (_one(str(item).strip(), gpus) for item in items)}
    return tuple(gpu for gpu in gpus if gpu.uuid in found)


def nodes_for(gpus: t.Sequence[Gpu]) -> tuple[str, ...]:
    """Return the device nodes that CUDA needs for these GPUs, in the order in which they are passed."""
    return (*(gpu.node for gpu in gpus), *SHARED_NODES) if gpus else ()


def is_nvidia_node(path: str) -> bool:
    """Tell whether a path is a device node of the NVIDIA driver."""
    return path.startswith("/dev/nvidia")


def device_path(text: str) -> str:
    """Return the path of a ``dev[n]`` value."""
    return prop.parse(text, prop.DEVICE).get("path", "")


def guest_of(vmid: int, kind: str, config: Config) -> Guest:
    """Return what another guest's configuration passes of the node's GPUs."""
    nodes = {device_path(value): key for key, value in config.numbered("dev").items()}
    for key, value in config.raw:
        source = value.split(maxsplit=1)[0] if value.strip() else ""
        if key == "lxc.mount.entry" and is_nvidia_node(source):
            nodes.setdefault(source, key)
    buses: dict[str, str] = {}
    for key, value in config.keys.items():
        if re.match(r"^hostpci\d+$", key):
            buses |= {part: key for part in re.split(r"[,;=]", value) if BUS_ID.match(part)}
    name = config.keys.get("hostname") or config.keys.get("name") or ""
    return Guest(vmid, name, kind, {path: key for path, key in nodes.items() if is_nvidia_node(path)}, buses)


def claims(gpu: Gpu, guests: t.Iterable[Guest]) -> list[str]:
    """Return one sentence part for each other guest that has this GPU."""
    found = []
    for guest in guests:
        key = guest.nodes.get(gpu.node)
        same_slot = [key for bus, key in guest.bus_ids.items() if bus_address(bus)[:3] == bus_address(gpu.bus_id)[:3]]
        key = key or (same_slot[0] if same_slot else None)
        if key:
            found.append(f"{guest.kind} {guest.vmid}{f' ({guest.name})' if guest.name else ''} by {key}")
    return found


def check_claims(gpus: t.Iterable[Gpu], guests: t.Collection[Guest]) -> None:
    """Stop if another guest has one of these GPUs.

    :raises KproError: naming the GPU, the guest and its key.
    """
    for gpu in gpus:
        others = claims(gpu, guests)
        if others:
            raise KproError(
                gpu.label,
                f"it is already given to {' and to '.join(others)}",
                "Choose another GPU, take it away there, or allow sharing with share_gpus: true",
            )


def _some(count: int, gpus: t.Sequence[Gpu], avoid: t.Collection[str], prefer: t.Collection[str]) -> tuple[Gpu, ...]:
    free = [gpu for gpu in gpus if gpu.node not in avoid or gpu.node in prefer]
    if count > len(free):
        taken = f" ({len(gpus) - len(free)} of {len(gpus)} are given to other guests)" if len(free) < len(gpus) else ""
        raise KproError(
            f"{count} GPU{'s' if count != 1 else ''} for the container",
            f"the node has {len(free)} to give{taken}: {_listing(gpus)}",
            "Ask for fewer GPUs, or look at the node's driver if one is missing",
        )
    # Stable sort: first what the container has already, then by bus id.
    chosen = sorted(free, key=lambda gpu: gpu.node not in prefer)[:count]
    return tuple(gpu for gpu in gpus if gpu in chosen)


def _one(item: str, gpus: t.Sequence[Gpu]) -> Gpu:
    if item.isdecimal() and int(item) < len(gpus):
        return gpus[int(item)]
    for gpu in gpus:
        if item.lower() == gpu.uuid.lower():
            return gpu
        if BUS_ID.match(item) and bus_address(item) == bus_address(gpu.bus_id):
            return gpu
    raise KproError(f"GPU '{item}'", f"the node has no such GPU: {_listing(gpus)}", "Name a GPU by its UUID or bus id as listed")


def _listing(gpus: t.Sequence[Gpu]) -> str:
    return "; ".join(f"{number}: {gpu.label}" for number, gpu in enumerate(gpus)) or "it reports no GPU at all"
