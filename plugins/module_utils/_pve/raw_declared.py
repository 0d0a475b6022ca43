# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared raw ``lxc.*`` lines: which are allowed, and what brings the file to them. Pure.

Keys after the list that Proxmox accepts (PVE::LXC::Config); it drops any other at its next write of the file.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._core.errors import KproError
from .raw import RawLine, is_nvidia_line

LINE = re.compile(r"^\s*(lxc\.[a-z0-9_.\-]+)\s*[:=]\s*(.*?)\s*$")
KEY = re.compile(
    r"lxc\.(?:(?:cgroup2|prlimit|net|sysctl|proc|namespace)\..+|include|signal\.(?:halt|reboot|stop)|init\.(?:cmd|uid|gid|cwd)|pty\.max"
    r"|console\.(?:logfile|path)|devtty\.dir|autodev|kmsg|mount\.(?:fstab|entry|auto)|cap\.(?:drop|keep)"
    r"|apparmor\.(?:profile|allow_incomplete|allow_nesting|raw)|selinux\.context|seccomp\.(?:profile|notify\.(?:proxy|cookie))|idmap"
    r"|hook\.(?:autodev|pre-start|pre-mount|mount|start|stop|post-stop|clone|destroy|version)|log\.(?:level|file)|group|ephemeral"
    r"|environment(?:\.hooks)?|sched\.core|monitor\.(?:unshare|signal\.pdeath)|time\.offset\.(?:boot|monotonic))"
)
REASONS = {
    "lxc.uts.name": "Proxmox writes it from the host name; use hostname",
    "lxc.arch": "Proxmox writes it from the template",
    "lxc.tty.max": "Proxmox writes it; use the key tty in options",
    "lxc.start.auto": "Proxmox starts its containers itself; use onboot",
    "lxc.start.order": "Proxmox starts its containers itself; use startup",
    "lxc.start.delay": "Proxmox starts its containers itself; use startup",
}


@dataclasses.dataclass(frozen=True)
class RawEdit:
    """Raw lines to remove from a file and to add to it."""

    gone: tuple[RawLine, ...] = ()
    new: tuple[RawLine, ...] = ()


def read_line(text: str) -> RawLine:
    """Return a declared line (``lxc.prlimit.memlock: unlimited``) as key and value.

    :raises KproError: if it is malformed, or its key is one that may not be declared.
    """
    what = f"raw line '{text.strip()}'"
    match = LINE.match(text)
    if not match or not match[2] or "\n" in text.strip():
        raise KproError(what, "it is not of the form 'lxc.key: value'", "Write one line for each entry of raw_lines")
    line = (match[1], " ".join(match[2].split()))
    if line[0].startswith("lxc.cgroup."):
        raise KproError(what, "it is for control groups v1, which Proxmox VE 8 and 9 do not have", "Write lxc.cgroup2 in its place")
    if not KEY.fullmatch(line[0]):
        reason = REASONS.get(line[0], "Proxmox does not accept this key and drops it at the next change")
        raise KproError(what, reason, "Take it out of raw_lines")
    if is_nvidia_line(line):
        reason = "NVIDIA devices are passed by dev[n], which looks up their numbers at each start, and the driver's files are installed in the container"
        raise KproError(what, reason, "Take it out of raw_lines and use gpus")
    return line


def edit_for(stored: t.Sequence[RawLine], wanted: t.Sequence[RawLine] | None) -> RawEdit:
    """Return what makes the stored lines of every declared key the declared ones; lines of other keys stay.

    :param wanted: the declared lines; None or empty leaves all lines as they are.
    """
    if not wanted:
        return RawEdit()
    keys = {key for key, _value in wanted}
    have = [_plain(line) for line in stored]
    gone = [line for line in dict.fromkeys(stored) if line[0] in keys and _plain(line) not in wanted]
    return RawEdit(tuple(gone), tuple(line for line in dict.fromkeys(wanted) if line not in have))


def lines_after(stored: t.Sequence[RawLine], wanted: t.Sequence[RawLine] | None) -> tuple[RawLine, ...]:
    """Return the raw lines as they will be."""
    edit = edit_for(stored, wanted)
    return (*(line for line in stored if line not in edit.gone), *edit.new)


def add_lines(text: str, new: t.Sequence[RawLine]) -> str:
    """Return a configuration file with raw lines at the end of its current section; all else stays byte for byte."""
    if not new:
        return text
    lines = text.splitlines(keepends=True)
    end = next((number for number, line in enumerate(lines) if line.startswith("[")), len(lines))
    while end and not lines[end - 1].strip():
        end -= 1
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    return "".join([*lines[:end], *(f"{key}: {value}\n" for key, value in new), *lines[end:]])


def _plain(line: RawLine) -> RawLine:
    return (line[0], " ".join(line[1].split()))
