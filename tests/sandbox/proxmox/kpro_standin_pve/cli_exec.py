# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``pct exec`` and ``pct enter``: become ``lxc-attach``; kept free of everything that would slow a call."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from .cli_options import UsageError, clean_environment, parse

OPTIONS = {"keep-env": {"type": "boolean"}}


def main(argv: Sequence[str]) -> int:
    """Replace this process by lxc-attach, or return an exit code when there is nothing to enter."""
    name = argv[0]
    usage = f"pct {name} <vmid> {'[<extra-args>] ' if name == 'exec' else ''}[OPTIONS]"
    try:
        options, command = parse(argv[1:], OPTIONS, ("vmid",), extra=name == "exec")
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage}\n")
        return 255
    vmid = options["vmid"]
    if reason := _bad_vmid(vmid):
        sys.stderr.write(f"400 Parameter verification failed.\nvmid: {reason}\n{usage}\n")
        return 255
    if name == "exec" and not command:
        sys.stderr.write("missing command at /usr/share/perl5/PVE/CLI/pct.pm line 246.\n")
        return 255
    node = os.uname().nodename.split(".")[0]
    if not os.path.exists(f"/etc/pve/nodes/{node}/lxc/{vmid}.conf"):
        sys.stderr.write(f"Configuration file 'nodes/{node}/lxc/{vmid}.conf' does not exist\n")
        return 2
    if not _is_running(vmid):
        sys.stderr.write(f"container '{vmid}' not running!\n")
        return 255
    clean_environment()
    keep = "--keep-env" if options.get("keep-env", "1") == "1" else "--clear-env"
    os.execvp("lxc-attach", ["lxc-attach", "-n", vmid, keep, "--", *(command or ["/bin/bash", "-l"])])


def _bad_vmid(vmid: str) -> str | None:
    if not re.fullmatch(r"[+-]?\d+", vmid):
        return f"type check ('integer') failed - got '{vmid}'"
    return None if re.fullmatch(r"[1-9]\d{2,8}", vmid) else "invalid format - value does not look like a valid VM ID\n"


def _is_running(vmid: str) -> bool:
    mark = f"@/var/lib/lxc/{vmid}/command"
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        return any(line.rstrip("\n").endswith(mark) for line in file)
