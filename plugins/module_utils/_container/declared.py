# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The declaration of a container, and the configuration keys that follow from it."""

from __future__ import annotations

import dataclasses
import posixpath
import re
import typing as t

from .._core.errors import KproError
from .._linux.system_folders import check_source
from .._pve import config as cfg
from .._pve import property as prop
from .._pve.giving import Request
from .._pve.gpus import Gpu, device_path, is_nvidia_node, nodes_for
from .._pve.raw import RawLine

OWNER_TAG = "kpro-llm"
DEVICE_MODE = re.compile(r"^0[0-7]{3}$")
ALLOCATED = re.compile(r"^[^/:]+:(\d+)$")  # STORAGE:GIB, an order to allocate, not a state


@dataclasses.dataclass(frozen=True)
class Mount:
    """A folder of the node or a volume inside the container; None leaves a flag as it is.

    ``read_only`` has a default, as others decide by it who keeps what is in the folder: no word of it must mean the same everywhere.
    """

    source: str
    target: str
    read_only: bool = False
    shared: bool | None = None
    backup: bool | None = None

    @property
    def is_bind(self) -> bool:
        """True for a folder of the node."""
        return self.source.startswith("/")


@dataclasses.dataclass(frozen=True)
class Declared:
    """The declared container; None always means: not declared, leave it as it is.

    :param scalars: plain configuration keys with their values.
    :param network: parts of net0 (None: take the part out).
    :param neighbours: what other containers of the same deployment ask of the node's GPUs.
    :param devices: further device nodes with their properties.
    :param raw_lines: raw ``lxc.*`` lines; of each key among them these are all that it has.
    """

    vmid: int
    state: str = "started"
    scalars: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    features: t.Mapping[str, str | None] | None = None
    startup: t.Mapping[str, str | None] | None = None
    tags: tuple[str, ...] | None = None
    network: t.Mapping[str, str | None] | None = None
    mounts: tuple[Mount, ...] | None = None
    gpus: t.Any = None
    devices: tuple[t.Mapping[str, str], ...] | None = None
    device_mode: str = "0666"
    unprivileged: bool = True
    template: str = ""
    template_storage: str = "local"
    storage: str = ""
    rootfs_gib: int | None = None
    adopt: bool = False
    restart: bool = False
    share_gpus: bool = False
    require_devices: bool = True
    raw_lines: tuple[RawLine, ...] = ()
    neighbours: tuple[Request, ...] = ()

    @property
    def name(self) -> str:
        """The container in messages."""
        return f"container {self.vmid}"


def check_declared(declared: Declared) -> None:
    """Stop on values that contradict each other or that the free options may not set.

    :raises KproError: naming the value.
    """
    targets = [posixpath.normpath(mount.target) for mount in declared.mounts or ()]
    for mount, target in zip(declared.mounts or (), targets, strict=True):
        if not mount.target.startswith("/") or target == "/":
            raise KproError(f"mount {mount.source}", f"target '{mount.target}' is not an absolute path inside the container")
        if not mount.is_bind and ":" not in mount.source:
            raise KproError(f"mount {mount.target}", f"source '{mount.source}' is neither an absolute path nor a volume")
        if mount.is_bind:
            check_source(f"mount source '{mount.source}'", mount.source)
        if targets.count(target) > 1:
            raise KproError(f"mount {mount.target}", "it is declared twice")
    for key in declared.scalars:
        if key.startswith("lxc."):
            raise KproError(f"option '{key}'", "it is a raw line, not a key of Proxmox", f"Write '{key}: ...' into raw_lines")
        if key in ("unprivileged", "rootfs") or cfg.NUMBERED.match(key):
            raise KproError(f"option '{key}'", "it has an option of its own, or can't be set through the API", "Use that option")
    for mode in (declared.device_mode, *(extra["mode"] for extra in declared.devices or () if "mode" in extra)):
        if not DEVICE_MODE.match(mode):
            raise KproError(f"device mode '{mode}'", "it has to be four octal digits that begin with 0", 'Put it in quotes: "0666"')
    gateway = (declared.network or {}).get("gw")
    if gateway and (declared.network or {}).get("ip") in (None, "dhcp", "manual"):
        raise KproError(f"network of {declared.name}", f"gateway {gateway} needs a static ip with its prefix length (10.0.0.5/24)")


def wanted_keys(declared: Declared, stored: cfg.Config, gpus: t.Sequence[Gpu] | None) -> dict[str, str | None]:
    """Return the wanted value of every key that the declaration speaks about (None: the key has to go).

    :param stored: the configuration now; parts of property strings that are not declared are kept from it.
    :param gpus: the chosen GPUs; None leaves NVIDIA devices alone.
    """
    wanted: dict[str, str | None] = dict(declared.scalars)
    for key, parts, form in (("features", declared.features, prop.FEATURES), ("startup", declared.startup, prop.STARTUP)):
        if parts is not None:
            wanted[key] = prop.merged(stored.keys.get(key, ""), parts, form) or None
    tags = declared.tags if declared.tags is not None else cfg.split_tags(stored.keys.get("tags", ""))
    wanted["tags"] = ";".join(cfg.split_tags(";".join((*tags, OWNER_TAG))))
    if declared.network is not None:
        wanted["net0"] = wanted_network(declared, stored.keys.get("net0", ""))
    if declared.mounts is not None:
        wanted |= _mounts(declared.mounts, stored)
    return wanted | _devices(declared, stored, gpus)


def create_parameters(declared: Declared, wanted: t.Mapping[str, str | None], template: str) -> dict[str, str]:
    """Return the parameters of the call that creates the container, privilege level always spelled out (PVE 8 and 9 differ)."""
    keys = {key: value for key, value in wanted.items() if value is not None}
    first = {"vmid": str(declared.vmid), "ostemplate": template, "rootfs": f"{declared.storage}:{declared.rootfs_gib}"}
    return {**first, "unprivileged": "1" if declared.unprivileged else "0", **keys}


def size_gib(text: str) -> float | None:
    """Return the size in a volume string (``size=32G``) in GiB; None if it names none."""
    match = re.search(r"(?:^|,)size=(\d+(?:\.\d+)?)([KMGT]?)", text)
    if not match:
        return None
    exponent = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}[match[2]]
    return float(match[1]) * 1024.0**exponent / 1024.0**3


def static_address(net0: str) -> str:
    """Return the IPv4 address that net0 configures, empty for DHCP, manual or none."""
    value = prop.parse(net0, prop.NET).get("ip", "")
    return value.split("/")[0] if "/" in value else ""


def wanted_network(declared: Declared, stored: str) -> str:
    """Return net0 as declared; the stored text where nothing is declared."""
    if declared.network is None:
        return stored
    old = prop.parse(stored, prop.NET)
    new = dict(declared.network)
    # An address and its gateway are one declaration: switching to DHCP must not keep the old gateway.
    for address, gateway in (("ip", "gw"), ("ip6", "gw6")):
        if address in new and gateway not in new:
            new[gateway] = None
    name: dict[str, str | None] = {} if old.get("name") else {"name": "eth0"}
    return prop.merged(stored, {**name, **new}, prop.NET)


def _mounts(mounts: t.Sequence[Mount], stored: cfg.Config) -> dict[str, str | None]:
    present = {key: prop.parse(value, prop.MOUNT) for key, value in stored.numbered("mp").items()}
    by_target = {posixpath.normpath(parts.get("mp", "")): key for key, parts in present.items()}
    declared = {posixpath.normpath(mount.target) for mount in mounts}
    # Volumes hold data and stay; a folder of the node loses nothing when its mount goes.
    wanted: dict[str, str | None] = {
        key: None for target, key in by_target.items() if target not in declared and present[key].get("volume", "").startswith("/")
    }
    taken = set(present) | {key for key in stored.keys if key.startswith("unused")}
    for mount in mounts:
        key = by_target.get(posixpath.normpath(mount.target)) or cfg.free_key("mp", taken)
        taken.add(key)
        flags = {"ro": mount.read_only, "shared": mount.shared, "backup": mount.backup}
        parts: dict[str, str | None] = {name: "1" if value else None for name, value in flags.items() if value is not None}
        if not (key in present and ALLOCATED.match(mount.source)):
            parts["volume"] = mount.source
        wanted[key] = prop.merged(stored.keys.get(key, ""), {**parts, "mp": mount.target}, prop.MOUNT)
    return wanted


def _devices(declared: Declared, stored: cfg.Config, gpus: t.Sequence[Gpu] | None) -> dict[str, str | None]:
    entries: dict[str, dict[str, str | None]] = {}
    if gpus is not None:
        entries |= {path: {"path": path, "mode": declared.device_mode} for path in nodes_for(gpus)}
    for extra in declared.devices or ():
        entries[extra["path"]] = dict(extra)
    wanted: dict[str, str | None] = {}
    present = stored.numbered("dev")
    free = dict(entries)
    for key, value in present.items():
        path = device_path(value)
        if path in free:
            wanted[key] = prop.merged(value, free.pop(path), prop.DEVICE)
        elif path in entries or (gpus is not None if is_nvidia_node(path) else declared.devices is not None):
            wanted[key] = None
    gone = {key for key, value in wanted.items() if value is None}
    taken = set(present) - gone
    # A slot that is being emptied is filled again at once: one change of dev0 instead of a removal and a new dev5.
    for parts in free.values():
        key = cfg.free_key("dev", taken)
        taken.add(key)
        wanted[key] = prop.render({name: value for name, value in parts.items() if value is not None}, prop.DEVICE)
    return wanted
