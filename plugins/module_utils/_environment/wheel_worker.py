# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes over the wheels of a peer, in a transient unit."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import tarfile
import time
import typing as t

from .._core.errors import KproError
from .._job.status_edge import JobStatus, run_worker
from .._linux.ssh_client import ssh_argv
from .wheel_stream_edge import Intake, Refused, unpacked

# Tries without any progress, after which the rest is left to the index.
_TRIES = 3
_PAUSE_S = 2.0
_TICK_S = 1.0
# On a LAN. Each connection that is not answered costs that long.
_STALL_S = 10.0


def carry(job: t.Mapping[str, t.Any], status: JobStatus) -> dict[str, t.Any]:
    """Take over what is not here; return the count of wheels and bytes, and the ``problem`` if not all came over.

    A lost connection is met by another try as long as something arrives.
    """
    began, shown = time.monotonic(), 0.0

    def tell(wheels: int, size_bytes: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= _TICK_S:
            shown = now
            mib = (total_bytes + size_bytes) >> 20
            status.running(f"Take over wheels from the peer: {total + wheels} so far, {mib} MiB, {mib / max(now - began, 1.0):.0f} MiB/s")

    cache, wheelhouse = pathlib.Path(job["root"], "cache"), pathlib.Path(job["wheelhouse"])
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    total = total_bytes = 0
    problem, tries = "", _TRIES
    while tries:
        intake = Intake(cache, wheelhouse, tell)
        try:
            problem = _once(job, intake, unpacked(cache))
            tries = _TRIES if intake.wheels else tries - 1
        except Refused as error:
            problem, tries = str(error), 0
        total, total_bytes = total + intake.wheels, total_bytes + intake.size_bytes
        if not problem:
            problem = "; ".join(intake.damaged)
            break
        time.sleep(_PAUSE_S if tries else 0)
    return {"wheels": total, "size_bytes": total_bytes, "problem": problem}


def _once(job: t.Mapping[str, t.Any], intake: Intake, here: t.Sequence[str]) -> str:
    """Read one answer of the peer; return what cut it off, an empty text if nothing did.

    :raises Refused: it is no answer that can be used.
    """
    argv = [*ssh_argv(job["peer"], job["ssh_key_file"], job["ssh_known_hosts_file"], _STALL_S), "wheels"]
    with subprocess.Popen(  # pylint: disable=ansible-bad-function  # a stream of any length, not an answer
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            return "ssh has no output"
        try:
            process.stdin.write("".join(f"{name}\n" for name in here).encode())
            process.stdin.close()
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                intake.take(archive)
            while process.stdout.read(1 << 16):
                pass
        except Refused:
            process.kill()
            raise
        except (OSError, EOFError, tarfile.TarError) as error:
            process.kill()
            return process.stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2] or str(error)
    return f"its answer ended with exit code {process.returncode}" if process.returncode else ""


def stop(_number: int, _frame: t.Any) -> t.NoReturn:
    """End: systemd stops the unit, or the system goes down. Wheels that have arrived are kept."""
    raise KproError("wheels of the peer", "it was stopped (SIGTERM)", "Run again: what has arrived is kept")


def main(folder: str) -> int:
    """Do the job in ``folder``; its status tells the outcome."""
    signal.signal(signal.SIGTERM, stop)
    return run_worker(folder, carry, "wheels of the peer")
