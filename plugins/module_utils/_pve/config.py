# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's configuration as Proxmox stores it, key by key.

Defaults and normalisation follow exchanges recorded on PVE 9.2 (scenarios config-scalars, config-tags, config-description).
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from . import property as prop

NUMBERED = re.compile(r"^(dev|mp|net|unused)(\d+)$")
INTEGERS = frozenset({"cores", "memory", "swap", "cpuunits", "tty"})
BOOLEANS = frozenset({"onboot", "protection", "template", "console", "debug", "unprivileged"})
# Meaning of an absent key (PVE::LXC::Config): swap absent in a file is 0, whatever create would fill in.
DEFAULTS = {"memory": "512", "swap": "0", "onboot": "0", "protection": "0", "template": "0", "console": "1"}
DEFAULTS |= {"debug": "0", "unprivileged": "0", "tty": "2", "cmode": "tty", "cpulimit": "0", "description": ""}
READ_ONLY = frozenset({"unprivileged", "rootfs", "arch", "ostype", "template"})
HOT = frozenset({"description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "tags", "lock"})
HOT |= {"cpulimit", "cpuunits", "memory", "swap"}
FORMATS = {"dev": prop.DEVICE, "mp": prop.MOUNT, "net": prop.NET, "features": prop.FEATURES, "startup": prop.STARTUP}
FIRST_PVE_WITH_HOT_DEVICES = 9


@dataclasses.dataclass(frozen=True)
class Setting:
    """One key of the configuration that has to change; ``after`` None means: remove the key."""

    key: str
    before: str | None
    after: str | None


@dataclasses.dataclass(frozen=True)
class Config:
    """One reading of a container's configuration.

    :param keys: plain keys as text, without digest and raw lines.
    :param raw: the ``lxc.*`` lines in stored order.
    :param digest: checksum of the file, sent back with a change.
    """

    keys: t.Mapping[str, str]
    raw: tuple[tuple[str, str], ...] = ()
    digest: str = ""

    def volumes(self) -> set[str]:
        """Return the volumes that it names: root file system, mount points and unused ones, no folders of the node."""
        kinds = {"mp", "unused", "rootfs"}
        found = {prop.parse(value, prop.MOUNT).get("volume", "") for key, value in self.keys.items() if kind_of(key) in kinds}
        return {volume for volume in found if volume and not volume.startswith("/")}

    def numbered(self, kind: str) -> dict[str, str]:
        """Return the keys of one numbered kind (``dev``, ``mp``, ``net``) in order of their numbers."""
        found = [(int(match[2]), key) for key in self.keys if (match := NUMBERED.match(key)) and match[1] == kind]
        return {key: self.keys[key] for _number, key in sorted(found)}


def read_config(data: t.Mapping[str, t.Any]) -> Config:
    """Return the answer of ``GET .../config`` as a :class:`Config`."""
    raw = tuple((str(key), str(value)) for key, value in data.get("lxc") or ())
    plain = {key: _text(value) for key, value in data.items() if key not in ("lxc", "digest")}
    return Config(plain, raw, str(data.get("digest", "")))


def read_config_file(text: str) -> Config:
    """Return the current section of a container's configuration file; pending and snapshot sections are left out."""
    keys: dict[str, str] = {}
    raw: list[tuple[str, str]] = []
    for line in text.split("\n"):
        if line.startswith("["):
            break
        if match := re.match(r"^(lxc\.[a-z0-9_.\-]+)\s*[:=]\s*(.*?)\s*$", line):
            raw.append((match[1], match[2]))
        elif match := re.match(r"^([a-z][a-z_]*\d*):\s*(.*?)\s*$", line):
            keys[match[1]] = match[2]
    return Config(keys, tuple(raw))


def same(key: str, left: str | None, right: str | None) -> bool:
    """Tell whether two stored values of a key mean the same to Proxmox (None: the key is absent)."""
    return canonical(key, left) == canonical(key, right)


def canonical(key: str, value: str | None) -> t.Any:
    """Return the meaning of a stored value; an absent key means its default."""
    value = DEFAULTS.get(key) if value is None else value
    if value is None:
        return () if key in ("tags", "features", "startup") else None
    form = FORMATS.get(kind_of(key))
    if form is not None:
        return prop.canonical(value, form)
    if key == "tags":
        return split_tags(value)
    if key == "description":
        return value.rstrip("\n")
    if key in BOOLEANS:
        return prop.flag(value)
    if key in INTEGERS and value.isdecimal():
        return int(value)
    if key == "cpulimit" and re.fullmatch(r"\d+(\.\d*)?", value):
        return float(value)
    return value.split() if key == "nameserver" else value


def kind_of(key: str) -> str:
    """Return the key without its number (``dev3`` -> ``dev``)."""
    match = NUMBERED.match(key)
    return match[1] if match else key


def split_tags(text: str) -> tuple[str, ...]:
    """Return tags as Proxmox stores them: lower case, each once, sorted."""
    return tuple(sorted({tag.lower() for tag in re.split(r"[,;\s]+", text) if tag}))


def differences(stored: Config, wanted: t.Mapping[str, str | None]) -> list[Setting]:
    """Return the keys whose stored meaning is not the wanted one, in order of the keys."""
    changed = (key for key in wanted if not same(key, stored.keys.get(key), wanted[key]))
    return [Setting(key, stored.keys.get(key), wanted[key]) for key in sorted(changed, key=_order)]


def needs_restart(key: str, running: str | None, after: str | None, pve_major: int) -> bool:
    """Tell whether a change of a running container's key waits for its next start.

    :param running: value the container runs with (None: absent).
    """
    kind = kind_of(key)
    if kind == "net" or key in HOT or same(key, running, after):
        return False
    if running is None and kind in ("mp", "dev"):
        return kind == "dev" and pve_major < FIRST_PVE_WITH_HOT_DEVICES
    return True


def free_key(kind: str, taken: t.Container[str]) -> str:
    """Return the lowest unused key of a numbered kind (0 to 255)."""
    return next(key for number in range(256) if (key := f"{kind}{number}") not in taken)


def _order(key: str) -> tuple[str, int]:
    match = NUMBERED.match(key)
    return (match[1], int(match[2])) if match else (key, -1)


def _text(value: t.Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
