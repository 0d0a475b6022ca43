# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The builder of an environment, in its transient unit: runs the steps, then switches the link."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import typing as t

from .._core.errors import KproError
from .._job.status_edge import JobStatus, run_worker
from . import source_worker as source
from .files import damage_sentence, packages_of
from .files_edge import EnvironmentFiles
from .lock import normal_name
from .progress_edge import entries, look
from .source_package import KILLED, after_kill, compiled_of, job_count
from .steps import Status, progress_line

TAIL_LINES = 30
LAST_LINES = 7  # of a failed program, in the message; all that is kept stands in the details
TICK_S = 1.0
MOST_DROPPED = 20  # packages; a cache with more damage is not mended one by one
ERROR = re.compile(r"\b(fatal )?error ?:|^FAILED:")


class StepFailed(Exception):
    """A step ended with an error; :attr:`lines` are what the program said last."""

    def __init__(self, *lines: str) -> None:
        super().__init__(" ".join(lines))
        self.lines = lines


class Damaged(StepFailed):
    """Packages are not what their records say.

    :attr:`packages` are their names, :attr:`contents` the hashes of what was found, by path.
    """

    def __init__(self, packages: t.Sequence[str], *lines: str, contents: t.Mapping[str, str] | None = None) -> None:
        super().__init__(*lines)
        self.packages = packages
        self.contents = contents or {}


class Worker:
    """Runs the steps of one job and puts the result in force."""

    def __init__(self, job: t.Mapping[str, t.Any], status: JobStatus) -> None:
        self._job = job
        self._status = status
        self._env = {**os.environ, **job["env"]}
        self._now = Status(phase="", pid=0, started_at=time.time(), cached_before=0)
        self.notes: list[str] = []

    def run(self) -> None:
        """Run all steps, then finish.

        :raises KproError: a step failed; the environment in force is as it was.
        """
        try:
            self._steps()
            self._begin("switch")
            self._finish(self._job["finish"])
        except (StepFailed, OSError) as error:
            lines = error.lines if isinstance(error, StepFailed) else (f"{type(error).__name__}: {error}",)
            told = [line.strip() for line in lines if line.strip()]
            remedy = f"The environment in force was not touched. See journalctl -u {self._job['unit']}"
            if damaged := damaged_distribution(str(self._job.get("distribution_python", ""))):
                told += [f"(dpkg --verify: {', '.join(damaged[:3])} changed)"]
                packages = " ".join(python_packages(self._job["distribution_python"]))
                remedy = f"Mend the distribution's Python (apt-get install --reinstall {packages}), then run again. {remedy}"
            raise KproError(f"environment {self._job['target']}", f"{self._now.phase} failed: {' '.join(told[-LAST_LINES:])}", remedy, output=told) from error

    def _steps(self) -> None:
        """Do the steps; packages that come damaged out of uv's cache are dropped there and fetched again, each once."""
        steps = self._job["steps"]
        first = next((number for number, step in enumerate(steps) if step["phase"] == "venv"), None)
        dropped: set[str] = set()
        contents: dict[str, str] = {}
        start = 0
        while True:
            try:
                for step in steps[start:]:
                    # A file that comes twice with the same content is what the locked wheel holds, whatever its record says.
                    self._step(step, contents)
                return
            except Damaged as error:
                if first is None or set(error.packages) <= dropped or len(dropped) > MOST_DROPPED or not self._job.get("clean"):
                    raise
                told = " ".join(error.lines)
                print(f"not as locked, fetch again: {told}", flush=True)
                self.notes.append(f"uv's cache held other files of {', '.join(error.packages)} than the lock names; they were fetched again ({told})")
                self._step({"phase": "clean", "argv": [*self._job["clean"], *error.packages]})
                dropped |= set(error.packages)
                contents |= error.contents
                start = first

    def _step(self, step: t.Mapping[str, t.Any], accepted: t.Mapping[str, str] | None = None) -> None:
        for path in step.get("remove", []):
            self._remove(path)
        if step["phase"] == "check":
            # Before anybody imports from it: bytes out of a damaged cache must not be taken for a fault of the package.
            self._begin("verify")
            try:
                verify(self._job["target"], self._job["root"], accepted or {})
            except Damaged:
                _discard(step)
                raise
        self._begin(step["phase"])
        if step.get("kind"):
            try:
                ACTS[step["kind"]](step)
            except KproError as error:
                raise StepFailed(error.sentence) from error
        elif "job_memory_mib" in step:
            self._compile(step)
        else:
            self._program(step, {})

    def _remove(self, path: str) -> None:
        """Remove a folder below the root of environments; a mistake in a job must not reach anything else."""
        if ".." in path or not path.startswith(f"{self._job['root']}/") or len(path) < len(self._job["root"]) + 2:
            raise StepFailed(f"{path} is not below {self._job['root']} and is not removed")
        shutil.rmtree(path, ignore_errors=True)

    def _begin(self, phase: str) -> None:
        print(f"step: {phase}", flush=True)
        self._now = Status(phase, 0, time.time(), entries(self._job["archive"]))

    def _compile(self, step: t.Mapping[str, t.Any]) -> None:
        """Run a build with as many compilers as the memory allows, and with fewer if it ran out of it."""
        free_mib, limit_mib = source.memory_mib()
        jobs = job_count(len(os.sched_getaffinity(0)), free_mib, step["job_memory_mib"])
        while True:
            kills = source.oom_kills()
            try:
                self._program(step, {"MAX_JOBS": str(jobs)})
                return
            except StepFailed as error:
                less = after_kill(jobs, limit_mib, step["job_memory_mib"], source.oom_kills() - kills, error.lines)
                if less is None:
                    raise
                print(less[0], flush=True)
                self.notes.append(less[0])
                jobs = less[1]

    def _program(self, step: t.Mapping[str, t.Any], more_env: t.Mapping[str, str]) -> None:
        tail: list[str] = []
        errors: list[str] = []
        user = step.get("user")
        base = {"LC_ALL": "C.UTF-8"} if step.get("clean") else self._env
        with subprocess.Popen(
            step["argv"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**base, **(step.get("env") or {}), **more_env},
            cwd="/",
            user=user["uid"] if user else None,
            group=user["gid"] if user else None,
            extra_groups=[] if user else None,
        ) as child:
            self._now = self._now.with_pid(child.pid)
            for line in child.stdout or ():
                print(line, end="", flush=True)
                tail = [*tail[-TAIL_LINES + 1 :], line.rstrip()]
                if ERROR.search(line) or KILLED.search(line):
                    errors.append(line.rstrip())
                if compiled := compiled_of(line):
                    self._now = self._now.with_compiled(*compiled)
        if child.returncode:
            _discard(step)
            if step["phase"] == "packages" and (named := _not_installable(tail)):
                raise Damaged(named, *tail[-LAST_LINES:])
            # A builder says a page of its own after the compiler's one line that tells the cause.
            first = [line for line in errors[:2] if line not in tail[-LAST_LINES:]]
            raise StepFailed(
                *tail[: -LAST_LINES + len(first)], *first, *(tail or [f"exit code {child.returncode} without a message"])[-LAST_LINES + len(first) :]
            )

    @contextlib.contextmanager
    def telling(self) -> t.Iterator[None]:
        """Say how far the work is while it runs."""
        ended = threading.Event()

        def tell() -> None:
            while not ended.is_set():
                began = time.monotonic()
                self._status.running(progress_line(self._job, self._now, look(self._job, self._now, time.time())))
                # A look at an environment of 100,000 files takes its time; the work itself comes first.
                ended.wait(max(TICK_S, 10 * (time.monotonic() - began)))

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _finish(self, finish: t.Mapping[str, t.Any]) -> None:
        target = pathlib.Path(finish["target"])
        marker = target / finish["marker_name"]
        part = marker.with_suffix(".part")
        part.write_text(json.dumps(finish["marker"]))
        part.replace(marker)
        # A node that loses power must not find a marker beside files that never reached the disk.
        subprocess.run(["sync", "--file-system", str(target)], check=False)
        link = pathlib.Path(finish["link"])
        beside = link.with_name(f".{link.name}.new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(os.path.relpath(target, link.parent))
        beside.replace(link)
        for old in finish["prune"]:
            if not in_use(old):
                print(f"remove {old}", flush=True)
                self._remove(old)
        self._retire(finish)
        if finish["prune"]:
            drop_unlinked(pathlib.Path(self._job["archive"]))

    def _retire(self, finish: t.Mapping[str, t.Any]) -> None:
        """Remove interpreters from which no environment and no process runs any more."""
        envs = pathlib.Path(self._job["root"], "envs")
        used = {os.path.realpath(path / "bin/python") for path in (envs.iterdir() if envs.is_dir() else ())}
        for folder in finish.get("pythons", []):
            inside = f"{os.path.realpath(folder)}/"
            if not any(path.startswith(inside) for path in used) and not in_use(folder):
                print(f"remove {folder}", flush=True)
                self._remove(folder)


def _discard(step: t.Mapping[str, t.Any]) -> None:
    for path in step.get("discard", []):
        pathlib.Path(path).unlink(missing_ok=True)


def _not_installable(lines: t.Sequence[str]) -> list[str]:
    """Return the packages that uv could fetch or had, and could not install: what it keeps of them is damaged."""
    text = "\n".join(lines)
    return sorted({normal_name(name) for name in re.findall(r"Failed to (?:install|unpack)[^\n]*\((?P<name>[A-Za-z0-9._-]+)==[^)]*\)", text)})


def verify(target: str, root: str, accepted: t.Mapping[str, str]) -> None:
    """Read every file of a new environment against the packages' records, and list them all for later looks.

    :param accepted: hashes of contents that may differ from the record, by path.
    :raises Damaged: one is not what its package says.
    """
    files = EnvironmentFiles(target, root)
    damages = [damage for damage in files.record_damages() if not damage.digest or accepted.get(damage.path) != damage.digest]
    if damages:
        raise Damaged(packages_of(damages), damage_sentence(damages), contents={damage.path: damage.digest for damage in damages})
    files.write_list()


ACTS: t.Mapping[str, t.Callable[[t.Mapping[str, t.Any]], None]] = {
    "folders": source.make_folders,
    "unpack": source.unpack,
    "keep": source.keep,
    "take": source.take,
}


def damaged_distribution(version: str) -> list[str]:
    """Return the files of the distribution's Python that are not as their packages have them; nothing where dpkg can't say."""
    if not version:
        return []
    try:
        done = subprocess.run(
            ["dpkg", "--verify", *python_packages(version)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=dict(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    # Marks of the checks, a "c" for a file of settings, the path; documentation is often left out of containers.
    rows = [line.split() for line in done.stdout.splitlines()]
    return [row[-1] for row in rows if len(row) == 2 and not row[-1].startswith("/usr/share/")]


def python_packages(version: str) -> list[str]:
    """Return the distribution's packages of a Python version."""
    return [f"python{version}-minimal", f"libpython{version}-minimal", f"libpython{version}-stdlib"]


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


def main(folder: str) -> int:
    """Do the job in ``folder``; its status tells the outcome."""
    signal.signal(signal.SIGTERM, stop)

    def work(job: dict[str, t.Any], status: JobStatus) -> t.Mapping[str, t.Any]:
        worker = Worker(job, status)
        with worker.telling():
            worker.run()
        return {"notes": worker.notes}

    return run_worker(folder, work, "environment")
