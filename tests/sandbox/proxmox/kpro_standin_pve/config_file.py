# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox's container configuration file: text to values and back, as its own parser and writer do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

Values = dict[str, str]
# The raw keys that Proxmox accepts in a file; anything else under lxc. is warned about and lost at the next write.
RAW_KEYS = frozenset(
    [
        "lxc.include",
        "lxc.arch",
        "lxc.uts.name",
        "lxc.signal.halt",
        "lxc.signal.reboot",
        "lxc.signal.stop",
        "lxc.init.cmd",
        "lxc.init.uid",
        "lxc.init.gid",
        "lxc.init.cwd",
        "lxc.pty.max",
        "lxc.console.logfile",
        "lxc.console.path",
        "lxc.tty.max",
        "lxc.devtty.dir",
        "lxc.hook.autodev",
        "lxc.autodev",
        "lxc.kmsg",
        "lxc.mount.fstab",
        "lxc.mount.entry",
        "lxc.mount.auto",
        "lxc.rootfs.mount",
        "lxc.cap.drop",
        "lxc.cap.keep",
        "lxc.apparmor.profile",
        "lxc.apparmor.allow_incomplete",
        "lxc.apparmor.allow_nesting",
        "lxc.apparmor.raw",
        "lxc.selinux.context",
        "lxc.seccomp.profile",
        "lxc.seccomp.notify.proxy",
        "lxc.seccomp.notify.cookie",
        "lxc.idmap",
        "lxc.hook.pre-start",
        "lxc.hook.pre-mount",
        "lxc.hook.mount",
        "lxc.hook.start",
        "lxc.hook.stop",
        "lxc.hook.post-stop",
        "lxc.hook.clone",
        "lxc.hook.destroy",
        "lxc.hook.version",
        "lxc.log.level",
        "lxc.log.file",
        "lxc.start.auto",
        "lxc.start.delay",
        "lxc.start.order",
        "lxc.group",
        "lxc.environment",
        "lxc.ephemeral",
        "lxc.sched.core",
        "lxc.environment.runtime",
        "lxc.environment.hooks",
        "lxc.monitor.unshare",
        "lxc.monitor.signal.pdeath",
        "lxc.time.offset.boot",
        "lxc.time.offset.monotonic",
    ]
)
RAW_PREFIXES = ("lxc.cgroup.", "lxc.cgroup2.", "lxc.prlimit.", "lxc.net.", "lxc.sysctl.", "lxc.proc.", "lxc.namespace.")


@dataclass
class Section:
    """Keys of one part of the file, and its raw ``lxc.*`` lines in their order."""

    values: Values = field(default_factory=dict)
    raw: list[tuple[str, str]] = field(default_factory=list)

    def set(self, key: str, value: str | None) -> None:
        """Set a key, or remove it when the value is None."""
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


@dataclass
class Config:
    """A whole file: what runs, what waits for a stop, snapshots by name; ``digest`` is SHA-1 of the text."""

    current: Section = field(default_factory=Section)
    pending: Section = field(default_factory=Section)
    snapshots: dict[str, Section] = field(default_factory=dict)
    digest: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def pending_deletes(self) -> list[str]:
        """Return the keys that go away at the next stop."""
        return [key.lstrip("!") for key in re.split(r"[,;\s]+", self.pending.values.get("delete", "")) if key]

    def set_pending_deletes(self, keys: Iterable[str]) -> None:
        """Replace the list of keys that go away at the next stop."""
        self.pending.set("delete", ",".join(sorted(set(keys))) or None)


def encode_text(text: str) -> str:
    """Return a description line as stored: all but printable ASCII percent-encoded, and ``%`` and ``:``."""
    safe = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%:")
    return quote(text, safe=safe)


def decode_text(text: str) -> str:
    """Return a stored description line as text."""
    return unquote(text, errors="replace")


def is_raw_key(key: str) -> bool:
    """Tell whether Proxmox keeps this ``lxc.*`` key."""
    return key in RAW_KEYS or key.startswith(RAW_PREFIXES)


def parse(text: str, vmid: int | str) -> Config:
    """Return the configuration; lines that Proxmox can't use end in ``warnings`` and are lost when it is written."""
    config = Config(digest=hashlib.sha1(text.encode()).hexdigest())
    section, description, warnings = config.current, "", []

    def close() -> None:
        if description:
            section.values["description"] = description

    for line in text.split("\n"):
        if not line.strip():
            continue
        if header := re.fullmatch(r"\[(pve:pending|[a-z][a-z0-9_\-]+)\]\s*", line, re.IGNORECASE):
            close()
            description = ""
            is_pending = header[1].lower() == "pve:pending"
            section = config.pending if is_pending else config.snapshots.setdefault(header[1], Section())
        elif line.startswith("#"):
            description += decode_text(line[1:]) + "\n"
        elif raw := re.fullmatch(r"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*", line):
            if is_raw_key(raw[1]):
                section.raw.append((raw[1], raw[2]))
            else:
                warnings.append(f"vm {vmid} - unable to parse config: {line}")
        elif old := re.fullmatch(r"description:\s*(.*\S)\s*", line):
            description += decode_text(old[1])
        elif plain := re.fullmatch(r"([a-z][a-z_]*\d*):\s*(.*)", line):
            section.values[plain[1]] = plain[2].rstrip()
        else:
            warnings.append(f"vm {vmid} - unable to parse config: {line}")
    close()
    config.warnings = tuple(warnings)
    return config


def _render_section(section: Section) -> str:
    description = section.values.get("description", "").rstrip("\n")
    lines = [f"#{encode_text(line)}" for line in description.split("\n")] if description else []
    lines += [f"{key}: {value}" for key, value in sorted(section.values.items()) if key != "description"]
    lines += [f"{key}: {value}" for key, value in section.raw]
    return "".join(f"{line}\n" for line in lines)


def render(config: Config) -> str:
    """Return the file's text: description, keys sorted, raw lines, pending section, snapshots."""
    text = _render_section(config.current)
    if config.pending.values or config.pending.raw:
        text += "\n[pve:pending]\n" + _render_section(config.pending)
    for name, section in sorted(config.snapshots.items()):
        text += f"\n[{name}]\n" + _render_section(section)
    return text
