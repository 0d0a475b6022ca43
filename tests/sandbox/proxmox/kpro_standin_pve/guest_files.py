# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files in the guest that Proxmox writes: name, hosts, name servers, network, before each start."""

from __future__ import annotations

import os
import re
from pathlib import Path

from . import devices, lxc_config, normalise
from .config_file import Config, Values
from .formats import split_list
from .node import Node

BEGIN = "# --- BEGIN PVE ---"
END = "# --- END PVE ---"
PATTERNS = {"debian": "etc/debian_version", "alpine": "etc/alpine-release"}


class Guest:
    """A root folder in which files are written with the guest's owner."""

    def __init__(self, root: Path, owner: int, group: int | None = None) -> None:
        self._root = root
        self._owner = owner
        self._group = owner if group is None else group

    def path(self, name: str) -> Path:
        """Return a path in the guest; links are not followed out of it by any caller (files are replaced whole)."""
        return self._root / name.lstrip("/")

    def exists(self, name: str) -> bool:
        """Tell whether the guest has the file, folder or link."""
        return os.path.lexists(self.path(name))

    def read(self, name: str) -> str:
        """Return a regular file's text, "" when there is none."""
        path = self.path(name)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() and not path.is_symlink() else ""

    def write(self, name: str, text: str) -> None:
        """Replace a file (or link) when its text differs."""
        path = self.path(name)
        if not path.parent.is_dir() or (self.exists(name) and self.read(name) == text and not path.is_symlink()):
            return
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        self.own(path)

    def own(self, path: Path) -> None:
        """Give a path to the guest's root."""
        os.chown(path, self._owner, self._group, follow_symlinks=False)


def replace_block(text: str, block: str) -> str:
    """Return ``text`` with Proxmox's marked block set to ``block``; a file without one gets it at the end."""
    fresh = f"{BEGIN}\n{block}{END}\n"
    pattern = re.compile(rf"^{BEGIN}\n.*?^{END}\n", re.DOTALL | re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _match: fresh, text, count=1)
    return (text if not text or text.endswith("\n") else f"{text}\n") + fresh


def networkd_unit(parts: dict[str, str]) -> str:
    """Return the .network file of one interface."""
    lines = ["[Match]", f"Name = {parts['name']}", "", "[Network]",
             f"Description = Interface {parts['name']} autoconfigured by PVE"]  # fmt: skip
    dhcp = {4: parts.get("ip") == "dhcp", 6: parts.get("ip6") == "dhcp"}
    words = {(True, True): "yes", (True, False): "ipv4", (False, True): "ipv6", (False, False): "no"}
    lines.append(f"DHCP = {words[dhcp[4], dhcp[6]]}")
    lines.append(f"IPv6AcceptRA = {'true' if parts.get('ip6') == 'auto' else 'false'}")
    lines += [f"Address = {parts[key]}" for key in ("ip", "ip6") if "/" in parts.get(key, "")]
    lines += [f"Gateway = {parts[key]}" for key in ("gw", "gw6") if key in parts]
    return "\n".join(lines) + "\n"


def interfaces(networks: list[dict[str, str]]) -> str:
    """Return /etc/network/interfaces."""
    text = "auto lo\niface lo inet loopback\n"
    for parts in networks:
        name, address = parts["name"], parts.get("ip", "")
        text += f"\nauto {name}\n"
        if "/" in address:
            text += f"iface {name} inet static\n\taddress {address}\n"
            text += f"\tgateway {parts['gw']}\n" if "gw" in parts else ""
        else:
            text += f"iface {name} inet {'dhcp' if address == 'dhcp' else 'manual'}\n"
    return text


def _upstream_servers(node: Node) -> list[str]:
    """Return the node's own name servers, past systemd-resolved's local stub, which no container could reach."""
    for name in ("/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"):
        try:
            text = node.path(name).read_text(encoding="utf-8")
        except OSError:
            continue
        found = re.findall(r"^nameserver\s+(\S+)", text, re.MULTILINE)
        if found:
            return found
    return []


def write_all(node: Node, vmid: str, config: Config, root: Path) -> None:
    """Write the guest's name, hosts, name servers and network; an unmanaged guest is left alone."""
    values = config.current.values
    if values.get("ostype") == "unmanaged":
        return
    guest = Guest(root, *lxc_config.root_ids(config))
    networks = [normalise.parts_of(key, values[key]) for key in devices.keys(values, "net")]
    _names(guest, vmid, values, networks)
    servers = lxc_config.nameservers(values) or _upstream_servers(node)
    search = split_list(values.get("searchdomain", ""))
    lines = ([f"search {' '.join(search)}"] if search else []) + [f"nameserver {server}" for server in servers]
    guest.write("/etc/resolv.conf", replace_block("", "".join(f"{line}\n" for line in lines)))
    if guest.exists("/etc/network/interfaces") or guest.exists("/usr/sbin/ifup"):
        guest.write("/etc/network/interfaces", interfaces(networks))
    else:
        for parts in networks:
            guest.write(f"/etc/systemd/network/{parts['name']}.network", networkd_unit(parts))


def _names(guest: Guest, vmid: str, values: Values, networks: list[dict[str, str]]) -> None:
    full = values.get("hostname", f"CT{vmid}")
    short = full.partition(".")[0]
    guest.write("/etc/hostname", f"{short}\n")
    address = next((parts["ip"].partition("/")[0] for parts in networks if "/" in parts.get("ip", "")), "127.0.1.1")
    known = guest.read("/etc/hosts") or "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
    names = f"{full} {short}" if full != short else short
    guest.write("/etc/hosts", replace_block(known, f"{address} {names}\n"))
