# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one reader of a guest's claims on GPUs. Pure.

A guest's file belongs to somebody else: what can't be understood claims nothing, and nothing here raises. A guest claims its
GPUs while it is off too, because it takes them at its next start; snapshots and templates, which don't start, claim nothing.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._linux.system_folders import plain_path
from . import raw_lines
from .raw_lines import MountLine, RawLine, ReadFiles

BUS_ID = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?$", re.IGNORECASE)
NVIDIA_MAJOR = 195
MOST_MINORS = 64  # more GPUs than any node has
# LXC reads this for every container (through common.conf), so a hook there is a hook of all.
COMMON_INCLUDE = "/usr/share/lxc/config/common.conf.d"
KINDS = {"lxc": "container", "qemu-server": "VM"}

_NODE = re.compile(r"^/dev/nvidia(\d+)$")
_CHAR_NODE = re.compile(rf"^/dev/char/{NVIDIA_MAJOR}:(\d+)$")
_RULE_KEY = re.compile(r"^lxc\.cgroup2?\.devices\.(allow|deny)$")
_RULE = re.compile(r"^([abc])(?:\s+(\*|\d{1,9}(?:-\d{1,9})?)\s*:\s*(\*|\d{1,9}(?:-\d{1,9})?))?(?:\s+([rwm]+))?$")
_PENDING = {"[PENDING]", "[pve:pending]"}

Slot = tuple[int, int, int]


class Card(t.Protocol):
    """The GPU that a claim is compared with; ``index`` is NVML's, by bus id."""

    @property
    def uuid(self) -> str: ...
    @property
    def minor(self) -> int: ...
    @property
    def bus_id(self) -> str: ...
    @property
    def index(self) -> int: ...


# A PCI address in a text, quoted or not.
_ADDRESS = re.compile(r"(?<![0-9a-f:.])(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Claim:
    """One way in which a guest has GPUs.

    :param key: what says so (``dev0``, ``hostpci1``, ``lxc.hook.mount with NVIDIA_VISIBLE_DEVICES=all``).
    :param kind: what ``value`` is: a device node's minor, a PCI slot, the beginning of a UUID, an index; ``all`` needs none.
    :param certain: False for what allows the guest a GPU without showing that it takes one.
    """

    key: str
    kind: t.Literal["minor", "slot", "uuid", "index", "all"]
    value: int | str | Slot = 0
    certain: bool = True

    def covers(self, card: Card) -> bool:
        """Tell whether a GPU is among those that are claimed."""
        if self.kind == "uuid":
            return bool(card.uuid) and card.uuid.lower().startswith(str(self.value).lower())
        if self.kind == "slot":
            return slot_of(card.bus_id) == self.value
        return self.kind == "all" or self.value == (card.minor if self.kind == "minor" else card.index)


@dataclasses.dataclass(frozen=True)
class Guest:
    """A container or VM of the node, with what matters about its GPUs.

    :param kind: ``container`` or ``VM``.
    :param nodes: NVIDIA device nodes that are passed by their paths, shared ones too.
    :param driver_files: mounts of the node's driver files over the guest's own.
    """

    vmid: int
    name: str
    kind: str
    claims: tuple[Claim, ...] = ()
    nodes: tuple[str, ...] = ()
    driver_files: tuple[MountLine, ...] = ()

    @property
    def words(self) -> str:
        """The guest, as part of a sentence."""
        return f"{self.kind} {self.vmid}{f' ({self.name})' if self.name else ''}"

    @property
    def uses_driver(self) -> bool:
        """True if it works with the node's own driver."""
        return self.kind == "container" and bool(self.nodes or any(claim.certain for claim in self.claims))

    def claim_on(self, card: Card) -> Claim | None:
        """Return the strongest claim on a GPU, None if there is none."""
        found = [claim for claim in self.claims if claim.covers(card)]
        return min(found, key=lambda claim: not claim.certain, default=None)


def slot_of(text: str) -> Slot | None:
    """Return domain, bus and device of a PCI address, None if it is none; a card is one slot, whatever its functions are."""
    match = BUS_ID.match(text.strip())
    return (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)) if match else None


def read_guest(vmid: int, kind: str, text: str, mappings: t.Mapping[str, t.Sequence[str]] | None = None, read: ReadFiles = lambda path: ()) -> Guest:
    """Return what a guest's configuration file says about GPUs.

    :param kind: ``container`` or ``VM``.
    :param mappings: the node's PCI addresses by the name of their resource mapping.
    :param read: reads what the file includes.
    """
    keys, lines, waiting = _sections(text)
    return guest_of(vmid, kind, keys, lines, mappings or {}, read, waiting)


def guest_of(
    vmid: int,
    kind: str,
    keys: t.Mapping[str, str],
    lines: t.Iterable[RawLine],
    mappings: t.Mapping[str, t.Sequence[str]] | None = None,
    read: ReadFiles = lambda path: (),
    waiting: t.Mapping[str, str] | None = None,
) -> Guest:
    """Return the same for a configuration that is read already.

    :param waiting: changes that take effect at the guest's next start.
    """
    name = keys.get("hostname") or keys.get("name") or ""
    if keys.get("template", "0").strip() in ("1", "yes", "on", "true"):
        return Guest(vmid, name, kind)
    pending = {f"{key} (pending)": value for key, value in (waiting or {}).items() if keys.get(key) != value}
    if kind == "VM":
        return Guest(vmid, name, kind, tuple(_of_vm({**keys, **pending}, mappings or {})))
    every = raw_lines.expanded((("lxc.include", COMMON_INCLUDE), *lines), read)
    return _container(vmid, name, {**keys, **pending}, every)


def pci_mappings(text: str, node: str) -> dict[str, tuple[str, ...]]:
    """Return a node's PCI addresses by the name of their resource mapping (``/etc/pve/mapping/pci.cfg``).

    A mapping with several cards gives a VM whichever is free, so that all of them are claimed.
    """
    found: dict[str, tuple[str, ...]] = {}
    for section in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name, _unused, body = section.partition("\n")
        rows = [dict(part.strip().partition("=")[::2] for part in value.split(",")) for value in re.findall(r"^\s+map\s+(.+)$", body, re.MULTILINE)]
        paths = tuple(path.strip() for row in rows if row.get("node") == node for path in row.get("path", "").split(";") if slot_of(path))
        if paths and not name.startswith("#"):
            found[name.strip()] = paths
    return found


def _sections(text: str) -> tuple[dict[str, str], list[RawLine], dict[str, str]]:
    """Return keys, raw lines and pending keys of a guest's file; snapshots are left out."""
    keys: dict[str, str] = {}
    lines: list[RawLine] = []
    waiting: dict[str, str] = {}
    now: dict[str, str] | None = keys
    for line in text.split("\n"):
        line = line.rstrip("\r")
        if line.startswith("["):
            now = waiting if line.strip() in _PENDING else None
        elif now is not None and line.startswith("lxc."):
            lines += raw_lines.read_lines(line) if now is keys else []
        elif now is not None and (match := re.match(r"^([A-Za-z][\w-]*):\s*(.*?)\s*$", line)):
            now[match[1]] = match[2]
    waiting.pop("delete", None)
    return keys, lines, waiting


def _of_vm(keys: t.Mapping[str, str], mappings: t.Mapping[str, t.Sequence[str]]) -> t.Iterator[Claim]:
    for key, value in keys.items():
        if re.match(r"^hostpci\d+\b", key):
            parts = dict(part.strip().partition("=")[::2] if "=" in part else ("host", part.strip()) for part in value.split(","))
            addresses = [*parts.get("host", "").split(";"), *mappings.get(parts.get("mapping", ""), ())]
        elif key.startswith("args"):
            # QEMU's own options, by which cards were passed before Proxmox had a key for it.
            addresses = _ADDRESS.findall(value) if "vfio-pci" in value else []
        else:
            continue
        for slot in dict.fromkeys(slot for each in addresses if (slot := slot_of(each))):
            yield Claim(key, "slot", slot)


def _container(vmid: int, name: str, keys: t.Mapping[str, str], lines: t.Sequence[RawLine]) -> Guest:
    paths = _passed(keys, lines)
    found = [claim for path, key in paths if (claim := _of_path(path, key))]
    nodes = tuple(dict.fromkeys(path for path, _key in paths if path.startswith("/dev/nvidia")))
    files = tuple(mount for line in lines if (mount := raw_lines.driver_file(line)))
    named = [*found, *_of_hooks(lines, keys)]
    if not any(claim.certain for claim in named):
        # Rules say which nodes may be opened, not which are there: they count where nothing else names a card. The usual
        # hand-made container has one mount and a rule for all.
        variables = any(raw_lines.is_hook_environment(line) for line in lines)
        named += _of_rules(lines, sign=bool(nodes or files or variables), privileged=keys.get("unprivileged", "0") != "1")
    return Guest(vmid, name, "container", tuple(dict.fromkeys(named)), nodes, files)


def _passed(keys: t.Mapping[str, str], lines: t.Iterable[RawLine]) -> list[tuple[str, str]]:
    """Return the paths of the node that a container is given, each with its key."""
    found = []
    for key, value in keys.items():
        if match := re.match(r"^(dev|mp)\d+\b", key):
            first = {"dev": "path", "mp": "volume"}[match[1]]
            parts = dict(part.strip().partition("=")[::2] if "=" in part else (first, part.strip()) for part in value.split(","))
            found.append((plain_path(parts.get(first) or "-"), key))
    found += [(mount.source, "lxc.mount.entry") for line in lines if (mount := raw_lines.mount_of(line))]
    return found


def _of_path(path: str, key: str) -> Claim | None:
    if path == "/dev":
        return Claim(key, "all")
    match = _NODE.match(path) or _CHAR_NODE.match(path)
    return Claim(key, "minor", int(match[1])) if match and len(match[1]) < 4 and int(match[1]) < 254 else None


def _of_hooks(lines: t.Sequence[RawLine], keys: t.Mapping[str, str]) -> t.Iterator[Claim]:
    hooks = [line for line in lines if raw_lines.may_pass(line)]
    variables = dict(pair for line in lines if (pair := raw_lines.environment_of(line)))
    # Of each of LXC's keys the last setting counts; which of the keys the hook gets depends on LXC's version.
    last = {line[0]: pair[1] for line in lines if (pair := raw_lines.environment_of(line)) and pair[0] == "NVIDIA_VISIBLE_DEVICES"}
    values = set(last.values())
    # Proxmox VE 9.1 has a key for the environment, separated by zero bytes.
    own = dict(word.partition("=")[::2] for word in keys.get("env", "").split("\0"))
    values |= {own["NVIDIA_VISIBLE_DEVICES"]} if "NVIDIA_VISIBLE_DEVICES" in own else set()
    key = hooks[0][0] if hooks else "lxc.environment"
    for value in sorted(values):
        yield from (
            dataclasses.replace(claim, certain=claim.certain and bool(hooks)) for claim in _of_devices(f"{key} with NVIDIA_VISIBLE_DEVICES={value}", value)
        )
    if values or not hooks:
        return
    if "CUDA_VERSION" in variables and "NVIDIA_REQUIRE_CUDA" not in variables:
        yield Claim(f"{key} with CUDA_VERSION", "all")  # what the hook does for images that are older than the variable
    elif not all(line[1].split()[0].endswith("/hooks/nvidia") for line in hooks):
        yield Claim(key, "all", certain=False)


def _of_devices(key: str, value: str) -> t.Iterator[Claim]:
    """Return the claims of NVIDIA_VISIBLE_DEVICES; none, void and an empty text name no GPU."""
    for word in (part.strip() for part in value.split(",")):
        if word.lower() == "all":
            yield Claim(key, "all")
        elif found := re.match(r"^(\d{1,3})(?::\d+)?$", word):
            yield Claim(key, "index", int(found[1]))
        elif found := re.match(r"^(?:MIG-)?(GPU-[0-9a-f][0-9a-f-]*)", word, re.IGNORECASE):
            yield Claim(key, "uuid", found[1])
        elif word.upper().startswith("MIG-"):
            yield Claim(key, "all", certain=False)  # a part of one card, and only the driver knows of which
        elif slot := slot_of(word):
            yield Claim(key, "slot", slot)


def _of_rules(lines: t.Iterable[RawLine], sign: bool, privileged: bool) -> list[Claim]:
    """Return the claims of device rules; the last rule that fits a node counts.

    :param sign: something else shows that the container works with the driver.
    """
    allowed: dict[int, tuple[str, bool]] = {}
    for key, value in lines:
        found = _RULE_KEY.match(key)
        if found and not value:
            allowed = {}
        rule = _RULE.match(value) if found else None
        if not found or not rule or rule[1] == "b" or not _fits(rule[2], NVIDIA_MAJOR) or (rule[4] and not set(rule[4]) & set("rw")):
            continue
        certain = rule[2] not in (None, "*") or sign
        minors = [minor for minor in range(MOST_MINORS) if _fits(rule[3], minor)]
        if found[1] == "deny":
            allowed = {minor: how for minor, how in allowed.items() if minor not in minors}
        elif certain or privileged:
            allowed |= dict.fromkeys(minors, (key, certain))
    if len(allowed) == MOST_MINORS and len(set(allowed.values())) == 1:
        key, certain = allowed[0]
        return [Claim(key, "all", certain=certain)]
    return [Claim(key, "minor", minor, certain) for minor, (key, certain) in sorted(allowed.items())]


def _fits(pattern: str | None, number: int) -> bool:
    if pattern in (None, "*"):
        return True
    first, _unused, last = str(pattern).partition("-")
    return int(first) <= number <= int(last or first)
