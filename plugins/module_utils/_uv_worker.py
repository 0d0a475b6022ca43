# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The builder of an environment: a program of its own that runs as main process of a transient systemd unit.

The module writes this file's text beside ``job.json`` and starts it with the folder as its argument, so that the build outlives
the connection. It holds ``lock`` (flock) for its whole life: who can take that lock knows that it has ended, however it ended.
PRIVATE: for use in kpro.llm only; standard library only, imports nothing of the collection.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import typing as t

TAIL_LINES = 30


class StepFailed(Exception):
    """A step ended with an error; the text says what the program said last."""


def write_json(path: pathlib.Path, value: dict[str, t.Any]) -> None:
    """Write a file that a reader sees whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def tell_systemd_ready() -> None:
    """Send READY=1, so that whoever starts the unit knows that the lock is held."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect("\0" + address[1:] if address.startswith("@") else address)
        link.send(b"READY=1")


class Worker:
    """Runs the steps of one job and puts the result in place."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.job = json.loads((folder / "job.json").read_text())
        self.env = {**os.environ, **self.job["env"]}

    def run(self) -> None:
        """Run all steps, then finish; leave ``result.json`` in any case that a program can leave it."""
        result: dict[str, t.Any] = {"id": self.job["id"], "ok": False, "phase": "", "message": ""}
        try:
            for number, step in enumerate(self.job["steps"], start=1):
                result["phase"] = step["phase"]
                self._step(number, step)
            result["phase"] = "switch"
            self._finish(self.job["finish"])
            result["ok"] = True
        except StepFailed as error:
            result["message"] = str(error)
        except OSError as error:
            result["message"] = f"{type(error).__name__}: {error}"
        finally:
            write_json(self.folder / "result.json", result)

    def _step(self, number: int, step: dict[str, t.Any]) -> None:
        for path in step.get("remove", []):
            shutil.rmtree(path, ignore_errors=True)
        print(f"step {number}: {step['phase']}", flush=True)
        tail: list[str] = []
        user = step.get("user") or None
        with subprocess.Popen(
            step["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**self.env, **step.get("env", {})},
            cwd="/",
            user=user["uid"] if user else None,
            group=user["gid"] if user else None,
            extra_groups=[] if user else None,
        ) as child:
            self._say(number, step, child.pid)
            for line in child.stdout or ():
                print(line, end="", flush=True)
                tail = [*tail[-TAIL_LINES + 1 :], line.rstrip()]
        if child.returncode:
            for path in step.get("discard", []):
                pathlib.Path(path).unlink(missing_ok=True)
            raise StepFailed("\n".join(tail) or f"exit code {child.returncode} without a message")

    def _say(self, number: int, step: dict[str, t.Any], pid: int) -> None:
        status = {
            "id": self.job["id"],
            "phase": step["phase"],
            "number": number,
            "of": len(self.job["steps"]),
            "pid": pid,
            "started_at": time.time(),
            "cached_before": self._cached(),
        }
        write_json(self.folder / "status.json", status)

    def _cached(self) -> int:
        """Count the unpacked wheels in uv's cache."""
        try:
            return len(os.listdir(self.job["archive"]))
        except OSError:
            return 0

    def _finish(self, finish: dict[str, t.Any]) -> None:
        target = pathlib.Path(finish["target"])
        write_json(target / finish["marker_name"], finish["marker"])
        link = pathlib.Path(finish["link"])
        beside = link.with_name(f".{link.name}.new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(os.path.relpath(target, link.parent))
        beside.replace(link)
        for old in finish["prune"]:
            if not in_use(old):
                print(f"remove {old}", flush=True)
                shutil.rmtree(old, ignore_errors=True)
        if finish["prune"]:
            drop_unlinked(pathlib.Path(self.job["archive"]))


def drop_unlinked(archive: pathlib.Path) -> None:
    """Remove the unpacked wheels in uv's cache that no environment shares by hard links; uv fetches them again if they are needed."""
    for entry in archive.iterdir() if archive.is_dir() else ():
        files = [path for path in entry.rglob("*") if path.is_file() and not path.is_symlink()]
        if all(path.stat().st_nlink == 1 for path in files):
            shutil.rmtree(entry, ignore_errors=True)


def in_use(folder: str) -> bool:
    """Say whether a process was started from a folder or has a file of it mapped."""
    prefix = folder.rstrip("/") + "/"
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("cmdline", "maps"):
            try:
                text = pathlib.Path("/proc", pid, name).read_text(errors="replace")
            except OSError:
                continue
            if prefix in text:
                return True
    return False


def stop(_number: int, _frame: t.Any) -> t.NoReturn:
    """End the step in hand: systemd stops the unit, or the system goes down."""
    raise StepFailed("it was stopped (SIGTERM)")


def main(argv: list[str]) -> int:
    """Take the lock, announce readiness, build."""
    folder = pathlib.Path(argv[1])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        signal.signal(signal.SIGTERM, stop)
        tell_systemd_ready()
        Worker(folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
