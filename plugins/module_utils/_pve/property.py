# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox property strings (``name=eth0,bridge=vmbr0``): parse, compare, merge, render.

Rules taken from exchanges recorded on PVE 9.2: net and mp strings come back re-sorted, dev, startup and features verbatim;
defaults may be spelled out or absent; booleans may be stored as typed (``on``).
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import typing as t

from .._core.errors import KproError

TRUE_WORDS = frozenset({"1", "on", "yes", "true"})
FALSE_WORDS = frozenset({"0", "off", "no", "false"})


@dataclasses.dataclass(frozen=True)
class Format:
    """How one kind of property string is read and written.

    :param default_key: key of a part without ``=`` (None: every part needs a key).
    :param first: keys that are written first, in this order; the rest is sorted.
    :param booleans: keys whose values are 0 or 1, whatever word was stored.
    :param defaults: value that Proxmox takes for an absent key; spelled out or absent is the same.
    :param fold: keys whose values are compared without regard to case.
    :param paths: keys whose absolute paths are compared without trailing or double slashes.
    """

    default_key: str | None = None
    first: tuple[str, ...] = ()
    booleans: frozenset[str] = frozenset()
    defaults: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    fold: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()


NET = Format(
    first=("name", "bridge"),
    booleans=frozenset({"firewall", "link_down", "host-managed"}),
    defaults={"type": "veth", "firewall": "0", "link_down": "0", "host-managed": "0"},
    fold=frozenset({"hwaddr", "ip6", "gw6"}),
)
MOUNT = Format(
    default_key="volume",
    first=("volume", "mp"),
    booleans=frozenset({"ro", "backup", "quota", "replicate", "shared", "acl", "keepattrs"}),
    defaults={"ro": "0", "backup": "0", "quota": "0", "shared": "0", "acl": "0", "replicate": "1", "keepattrs": "0"},
    paths=frozenset({"volume", "mp"}),
)
DEVICE = Format(
    default_key="path",
    first=("path",),
    booleans=frozenset({"deny-write"}),
    defaults={"mode": "0660", "uid": "0", "gid": "0", "deny-write": "0"},
    paths=frozenset({"path"}),
)
FEATURES = Format(
    booleans=frozenset({"nesting", "keyctl", "fuse", "mknod", "force_rw_sys"}),
    defaults={"nesting": "0", "keyctl": "0", "fuse": "0", "mknod": "0", "force_rw_sys": "0"},
)
STARTUP = Format(default_key="order", first=("order",))


def parse(text: str, form: Format) -> dict[str, str]:
    """Return the parts of a property string as stored, by key.

    :raises KproError: on a part without a key that has no default key, or on a key given twice.
    """
    parts: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, sign, value = part.partition("=")
        if not sign:
            key, value = form.default_key or "", part
        key = key.strip()
        if not key or key in parts:
            raise KproError(f"property string '{text}'", f"part '{part}' has no key" if not key else f"key '{key}' is given twice")
        parts[key] = value.strip()
    return parts


def render(parts: t.Mapping[str, str], form: Format) -> str:
    """Return a property string in Proxmox's own order; the default key is written without its name."""
    order = [key for key in form.first if key in parts] + sorted(key for key in parts if key not in form.first)
    return ",".join(parts[key] if key == form.default_key else f"{key}={parts[key]}" for key in order)


def canonical(text: str, form: Format) -> tuple[tuple[str, str], ...]:
    """Return what a property string means: equal results are the same setting for Proxmox."""
    return meaning(parse(text, form), form)


def meaning(parts: t.Mapping[str, str], form: Format) -> tuple[tuple[str, str], ...]:
    """Return the sorted (key, value) pairs that differ from Proxmox's defaults."""
    pairs = ((key, _value(key, value, form)) for key, value in parts.items())
    return tuple(sorted((key, value) for key, value in pairs if form.defaults.get(key) != value))


def merged(stored: str, wanted: t.Mapping[str, str | None], form: Format) -> str:
    """Return ``stored`` with the wanted parts put in (None: taken out); all other parts are kept.

    The stored text itself comes back when nothing differs in meaning, so that an equal setting is never rewritten.
    """
    old = parse(stored, form)
    new = {**old, **{key: value for key, value in wanted.items() if value is not None}}
    new = {key: value for key, value in new.items() if not (key in wanted and wanted[key] is None)}
    return stored if meaning(old, form) == meaning(new, form) else render(new, form)


def flag(value: str) -> str:
    """Return a stored boolean word as ``0`` or ``1``; anything else unchanged."""
    word = value.lower()
    if word in TRUE_WORDS:
        return "1"
    return "0" if word in FALSE_WORDS else value


def _value(key: str, value: str, form: Format) -> str:
    if key in form.booleans:
        return flag(value)
    if key in form.fold:
        return value.lower()
    if key in form.paths and value.startswith("/"):
        return posixpath.normpath(re.sub(r"^/+", "/", value))
    return value
