# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what can be counted of a running build."""

from __future__ import annotations

import contextlib
import os
import pathlib
import typing as t

from .steps import Counters, Status


def look(job: t.Mapping[str, t.Any], status: Status, now_s: float) -> Counters:
    """Return what can be counted of a running step."""
    target = pathlib.Path(str(job["target"]))
    installed = sum(1 for _unused in target.glob("lib/python3.*/site-packages/*.dist-info"))
    complete = status.phase == "packages" and installed >= int(job["packages"])
    sources, compiled = bytecode(target) if complete else (0, 0)
    return Counters(
        installed=installed,
        sources=sources,
        compiled=compiled,
        cached=entries(str(job["archive"])),
        written_mib=written_mib(status.pid),
        elapsed_s=max(now_s - status.started_at, 0.0),
    )


def written_mib(pid: int) -> int:
    """Return what a process has written so far, in MiB; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1]) >> 20
    return 0


def entries(folder: str) -> int:
    """Return how many entries a folder has; 0 if it is not there."""
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def bytecode(folder: pathlib.Path) -> tuple[int, int]:
    """Return how many files of Python code a folder has, and how many files of bytecode."""
    sources = compiled = 0
    for _folder, _folders, names in os.walk(folder):
        sources += sum(name.endswith(".py") for name in names)
        compiled += sum(name.endswith(".pyc") for name in names)
    return sources, min(sources, compiled)
