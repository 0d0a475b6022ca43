# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to apt: install what is needed although a part of its sources fails, or foresee that."""

from __future__ import annotations

import pathlib
import tempfile
import time
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command
from .explain import AptProblem, explain, is_locked, source_uris

SOURCES = pathlib.Path("/etc/apt")
# Automatic upgrades of a night may take minutes; whoever holds a lock for longer is named.
LOCK_WAIT_S = 300.0
LOCK_LOOK_S = 5.0
UPDATE = ("apt-get", "update")
_FORESEE_S = 90.0
_LARGEST_BYTES = 1 << 20

Run = t.Callable[[t.Sequence[str]], tuple[int, str]]


def source_files(folder: pathlib.Path = SOURCES) -> dict[str, str]:
    """Return the name of the file that names a source, by the source's address."""
    found: dict[str, str] = {}
    paths = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list")), *sorted(folder.glob("sources.list.d/*.sources"))]
    for path in paths:
        try:
            text = path.read_text(errors="replace") if path.is_file() and path.stat().st_size <= _LARGEST_BYTES else ""
        except OSError:
            continue
        for uri in source_uris(text):
            found.setdefault(uri.rstrip("/"), path.name)
    return found


def install(run: Run, argv: t.Sequence[str], update: t.Sequence[str] = UPDATE, *, update_first: bool) -> tuple[int, str, str]:
    """Install packages; return the exit code, what the installation said, and what the update before it said.

    A source that fails matters only if it is needed: the installation is tried after an update that failed in part.

    :param run: runs a program and returns its exit code and all that it said.
    :param argv: the installation; ``update_first``: whether the lists are refreshed before the first try, or only if that fails.
    """
    if not update_first:
        code, said = unlocked(run, argv)
        if code == 0:
            return code, said, ""
    _code, refreshed = unlocked(run, update)
    return (*unlocked(run, argv), refreshed)


def unlocked(run: Run, argv: t.Sequence[str]) -> tuple[int, str]:
    """Run apt; wait a while for another program that holds its locks (apt itself waits for some of them only)."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        code, said = run(argv)
        if code == 0 or not is_locked(said) or time.monotonic() >= until:
            return code, said
        time.sleep(LOCK_LOOK_S)


def foresee(command: Command, packages: t.Sequence[str]) -> AptProblem | None:
    """Return why packages could not be installed, None if they could be. Nothing is changed: lists go to a folder that is gone afterwards."""
    if not packages:
        return None
    simulate = ("apt-get", "--simulate", "--yes", "--no-install-recommends", "install", *packages)

    def run(argv: t.Sequence[str]) -> tuple[int, str]:
        try:
            answer = command.run(argv, timeout_s=_FORESEE_S, env={"DEBIAN_FRONTEND": "noninteractive"})
        except KproError as error:
            return 1, f"E: {error.reason}"
        return answer.rc, f"{answer.stdout}\n{answer.stderr}"

    code, said = run(simulate)
    if code == 0:
        return None
    with tempfile.TemporaryDirectory(prefix="kpro-llm-apt-") as folder:
        for name in ("lists/partial", "cache/archives/partial"):
            pathlib.Path(folder, name).mkdir(parents=True)
        # As root, so that the folder need not belong to apt's own user.
        own = ("-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache", "-o", "APT::Sandbox::User=root")
        _code, update = run((UPDATE[0], *own, "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "update"))
        code, said = run((simulate[0], *own, *simulate[1:]))
    return explain(said, update, source_files(), packages) if code else None


def missing_packages(command: Command, packages: t.Sequence[str]) -> list[str]:
    """Return the packages that are not installed."""
    shown = command.run(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package}\\n", *packages]).stdout
    there = {row[1] for row in map(str.split, shown.splitlines()) if len(row) == 2 and row[0] == "ii"}
    return [name for name in packages if name not in there]


def missing_headers(kernel: str) -> list[str]:
    """Return the package with the headers of the running kernel, if they are not there."""
    return [] if pathlib.Path(f"/lib/modules/{kernel}/build").exists() else [f"proxmox-headers-{kernel}"]
