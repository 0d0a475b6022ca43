# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox's named string formats and its property strings (``name=eth0,bridge=vmbr0``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import bad_parameters

TRUE_WORDS = ("1", "on", "yes", "true")
FALSE_WORDS = ("0", "off", "no", "false")
CONTENT_TYPES = ("images", "rootdir", "vztmpl", "iso", "backup", "snippets", "none", "import")


def parse_boolean(text: str) -> int | None:
    """Return 1 or 0 for the words that Proxmox's command lines and property strings accept, None for others."""
    word = text.lower()
    return 1 if word in TRUE_WORDS else 0 if word in FALSE_WORDS else None


def split_list(text: str) -> list[str]:
    """Split at blanks, commas, semicolons and NULs; empty parts vanish."""
    return [part for part in re.split(r"[,;\s\0]+", text) if part]


def _matches(pattern: str, reason: str, flags: int = 0) -> Callable[[str], None]:
    compiled = re.compile(pattern, flags)

    def check(value: str) -> None:
        if not compiled.fullmatch(value):
            raise ValueError(reason.format(value))

    return check


def _illegal_sequences(value: str) -> None:
    if re.search(r"(?:^|/)\.\.?(?:/|$)", value):
        raise ValueError(f"{value} contains illegal character sequences\n")


def _device(value: str) -> None:
    if not value.startswith("/dev/") or re.search(r"/\.\.?(?:/|$)", value):
        raise ValueError(f"{value} is not a valid device path\n")


def _ip(family: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        import ipaddress  # only here: most calls name no address, and a start of pct must be short

        kind = ipaddress.IPv4Address if family == 4 else ipaddress.IPv6Address
        try:
            kind(value)
        except ValueError as error:
            raise ValueError(f"value does not look like a valid ipv{family} address\n") from error

    return check


def _ip_config(family: int, words: tuple[str, ...]) -> Callable[[str], None]:
    def check(value: str) -> None:
        import ipaddress

        if value in words:
            return
        kind = ipaddress.IPv4Interface if family == 4 else ipaddress.IPv6Interface
        try:
            if "/" not in value:
                raise ValueError
            kind(value)
        except ValueError as error:
            raise ValueError(f"value does not look like a valid ipv{family} network configuration\n") from error

    return check


def _startup(value: str) -> None:
    parts = [part for part in value.split(",") if part]
    if not parts or not all(re.fullmatch(r"(?:(?:order|up|down)=)?\d+", part) for part in parts):
        raise ValueError("unable to parse startup options\n")


def _content(value: str) -> None:
    if value not in CONTENT_TYPES:
        raise ValueError(f"invalid content type '{value}'\n")


def _nameserver(value: str) -> None:
    if value == "host":
        return
    try:
        _ip(6 if ":" in value else 4)(value.split("%")[0])
    except ValueError as error:
        raise ValueError("value does not look like a valid IP address with a possible link-local interface\n") from error


_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
FORMATS: dict[str, Callable[[str], None]] = {
    "pve-vmid": _matches(r"[1-9][0-9]{2,8}", "value does not look like a valid VM ID\n"),
    "pve-node": _matches(_LABEL, "value does not look like a valid node name\n"),
    "pve-storage-id": _matches(r"[a-z][a-z0-9\-_.]*[a-z0-9]", "storage ID '{0}' contains illegal characters\n", re.IGNORECASE),
    "pve-volume-id": _matches(r"[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]:.+", "unable to parse volume ID '{0}'\n"),
    "pve-configid": _matches(r"[a-z][a-z0-9_-]+", "invalid configuration ID '{0}'\n", re.IGNORECASE),
    "pve-tag": _matches(r"[a-z0-9_][a-z0-9_\-+.]*", "invalid characters in tag\n", re.IGNORECASE | re.ASCII),
    "pve-poolid": _matches(r"[A-Za-z0-9.\-_]+(?:/[A-Za-z0-9.\-_]+)*", "value does not look like a valid pool name\n"),
    "dns-name": _matches(rf"{_LABEL}(?:\.{_LABEL})*", "value does not look like a valid DNS name\n"),
    "mac-addr": _matches(
        r"[a-f0-9][02468ace](?::[a-f0-9]{2}){5}",
        "value does not look like a valid unicast MAC address\n",
        re.IGNORECASE,
    ),
    "disk-size": _matches(r"\d+(?:\.\d+)?[KMGT]?", "value does not look like a valid disk size: {0}\n"),
    "pve-lxc-mp-string": _illegal_sequences,
    "pve-lxc-dev-string": _device,
    "pve-startup-order": _startup,
    "pve-storage-content": _content,
    "lxc-ip-with-ll-iface": _nameserver,
    "pve-ct-timezone": _matches(r"host|[A-Z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+)*", "invalid time zone '{0}'\n"),
    "ipv4": _ip(4),
    "ipv6": _ip(6),
    "pve-ipv4-config": _ip_config(4, ("dhcp", "manual")),
    "pve-ipv6-config": _ip_config(6, ("auto", "dhcp", "manual")),
}


def check_format(name: str, value: str) -> None:
    """Raise ValueError with Proxmox's text when ``value`` does not have the named format; unknown names pass."""
    if name.endswith("-list"):
        for part in split_list(value):
            check_format(name[: -len("-list")], part)
        return
    check = FORMATS.get(name)
    if check:
        check(value)


def parse_property_string(spec: Mapping[str, Mapping[str, Any]], text: str, path: str = "") -> dict[str, str]:
    """Return the parts of a property string as text by name.

    Raises ValueError with Proxmox's text: duplicate keys, unknown keys, wrong values ("format error" and one line a key).
    """
    from .schema import check_properties

    default_key = next((name for name, part in spec.items() if part.get("default_key")), None)
    found: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals:
            if default_key is None:
                raise ValueError("value without key, but schema does not define a default key\n")
            key, value = default_key, part
        elif not key or not value:
            raise ValueError("missing key in comma-separated list property\n")
        if key in found:
            raise ValueError(f"duplicate key in comma-separated list property: {key}\n")
        if spec.get(key, {}).get("type") == "boolean":
            boolean = parse_boolean(value)
            value = value if boolean is None else str(boolean)
        found[key] = value
    errors = check_properties(spec, found, path)
    if errors:
        lines = "".join(f"{name}: {reason}\n" for name, reason in sorted(errors.items()))
        raise ValueError(f"format error\n{lines}")
    return found


def print_property_string(parts: Mapping[str, str], first: tuple[str, ...] = (), default_key: str | None = None) -> str:
    """Return the property string: keys of ``first``, then the rest sorted; the default key is written without a name."""
    names = [name for name in first if name in parts] + sorted(name for name in parts if name not in first)
    return ",".join(parts[name] if name == default_key else f"{name}={parts[name]}" for name in names)


def parse_or_refuse(spec: Mapping[str, Mapping[str, Any]], text: str, path: str) -> dict[str, str]:
    """Parse a property string that came as parameter ``path``; a bad one is a 400."""
    try:
        return parse_property_string(spec, text, path)
    except ValueError as error:
        raise bad_parameters({path: f"invalid format - {error}"}) from error
