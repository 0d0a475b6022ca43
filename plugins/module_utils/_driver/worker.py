# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The long work on a driver, in its transient unit: packages, download, installer, modules."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shlex
import shutil
import subprocess
import threading
import time
import traceback
import typing as t

from .._apt.edge import UPDATE, install, source_files, unlocked
from .._apt.explain import source_failures
from .._apt.key_edge import fetch_key
from .._apt.repository import Repository
from .._core.errors import KproError
from .._gpu.text import dkms_entries, loaded_driver
from .._job.status_edge import JobStatus, run_worker, unforeseen
from .._linux.text_file_edge import TextFile, write_text_file
from .explain import failure
from .fetch_edge import Package, fetch
from .repository import MAIN_PACKAGE, check_offered, install_argv, offered, pinning_packages
from .salvage import left_behind, restore_argvs
from .steps import INSTALLER_LOG, Step, spelled

TICK_S = 1.0
_LOADED = pathlib.Path("/proc/driver/nvidia/version")
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}


@dataclasses.dataclass(frozen=True)
class Job:
    """The order that the module gives to its worker.

    :param facts: what explains a failure (see :func:`_driver_explain.failure`).
    """

    version: str
    package: Package
    steps: tuple[Step, ...]
    facts: t.Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, t.Any]:
        """Return plain values for :meth:`from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> Job:
        """Read what :meth:`to_dict` gave."""
        steps = tuple(Step(**{**row, "argv": tuple(row["argv"])}) for row in data["steps"])
        return cls(data["version"], Package(**data["package"]), steps, data.get("facts", {}))


class Worker:
    """Runs a job's steps and says where it stands.

    :param loaded: file in which the kernel says which driver it runs.
    """

    def __init__(self, job: Job, status: JobStatus, env: t.Mapping[str, str] | None = None, loaded: pathlib.Path = _LOADED) -> None:
        self._job = job
        self._status = status
        self._env = {**_ENV, **(env or {})}
        self._loaded = loaded

    def run(self) -> dict[str, t.Any]:
        """Do all steps. If one fails, load the former driver again.

        :raises KproError: for the step that failed, with what became of the former driver.
        """
        try:
            for number, step in enumerate(self._job.steps, start=1):
                self._step(step, f"{number}/{len(self._job.steps)}")
        except KproError as error:
            raise self._salvaged(error) from error
        except Exception as error:  # whatever it was: the former driver is needed
            traceback.print_exc()
            raise self._salvaged(unforeseen(f"NVIDIA driver {self._job.version}", error)) from error
        return {}

    def _salvaged(self, error: KproError) -> KproError:
        """Take up the former driver again, if that is still there; return the error with what became of it."""
        for argv in restore_argvs(self._job.facts):
            self._answer(*argv)
        driver = loaded_driver(_text(self._loaded, 0.0))
        return left_behind(error, self._job.facts, driver.version if driver else "", self._answer("modinfo", "-F", "version", "nvidia").strip())

    def _step(self, step: Step, place: str) -> None:
        print(f"{place} {step.phase}", flush=True)
        if step.kind == "download":
            fetch(self._job.package, lambda line: self._status.running(f"{place} {step.phase}: {line}"))
        elif step.kind == "remove":
            pathlib.Path(self._job.package.path).unlink(missing_ok=True)
        elif step.kind == "packages":
            self._packages(step, place)
        elif step.kind == "file":
            write_text_file(TextFile(step.argv[0], step.argv[1], 0o644, "root", "root"))
        elif step.kind == "key":
            repository = Repository(*step.argv)
            fetch_key(repository, repository.key_path)
        elif step.kind == "repository":
            self._repository(step, place)
        elif step.kind == "build":
            self._program(dataclasses.replace(step, argv=self._named(step.argv)), place)
        elif step.kind == "source":
            shutil.rmtree(step.argv[0], ignore_errors=True)
        elif step.failure == "installer":
            self._installer(step, place)
        else:
            self._program(step, place)

    def _installer(self, step: Step, place: str) -> None:
        known = self._dkms_knows()
        try:
            self._program(dataclasses.replace(step, argv=spelled(step.argv, self._installer_help())), place)
        except KproError as error:
            if "--dkms" in step.argv and not known:
                self._forget_failed(error)
            raise

    def _forget_failed(self, error: KproError) -> None:
        """Take a version that did not build out of DKMS again: it would be tried, and fail, with each new kernel. The log is kept."""
        log = pathlib.Path(str(error.details.get("make_log", "")))
        if log.is_file():
            kept = pathlib.Path(self._job.package.record).with_name(f"make-{self._job.version}.log")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept)
            error.details["make_log"] = str(kept)
        self._answer("dkms", "remove", "-m", "nvidia", "-v", self._job.version, "--all")
        shutil.rmtree(f"/usr/src/nvidia-{self._job.version}", ignore_errors=True)

    def _dkms_knows(self) -> bool:
        return any(entry.version == self._job.version for entry in dkms_entries(self._answer("dkms", "status")))

    def _packages(self, step: Step, place: str) -> None:
        """Install packages. The lists may be older than the packages that they name, and a source that fails may not be needed."""
        began_s = time.time()
        code, said, update = install(self._apt(step, place), step.argv, update_first=False)
        if code and step.failure:
            raise failure(step.failure, step.phase, said, {**self._job.facts, **self._logs(began_s), "update": update}, source_files())

    def _apt(self, step: Step, place: str) -> t.Callable[[t.Sequence[str]], tuple[int, str]]:
        return lambda argv: self._run(dataclasses.replace(step, argv=tuple(argv)), place)

    def _repository(self, step: Step, place: str) -> None:
        """Install exactly the wanted version from the vendor's repository, or say which versions it has."""
        version, flavour, uri = step.argv
        code, update = unlocked(self._apt(step, place), UPDATE)
        others_failed = source_failures(update) and not any(each.uri.startswith(uri.rstrip("/")) for each in source_failures(update))
        if code and not others_failed:
            raise failure(step.failure, step.phase, update, {**self._job.facts, "repository": uri}, source_files())
        check_offered(version, offered(self._answer("apt-cache", "madison", MAIN_PACKAGE)), uri)
        pinning = next((name for name in pinning_packages(version) if self._answer("apt-cache", "madison", name)), "")
        stale = self._answer("dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package}\\n", "nvidia-driver-pinning-*")
        others = [row[1] for row in map(str.split, stale.splitlines()) if row[:1] == ["ii"] and row[1] != pinning]
        self._program(dataclasses.replace(step, argv=install_argv(version, flavour, pinning, others)), place)

    def _named(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return a dkms command line with the name under which DKMS knows the version."""
        entries = dkms_entries(self._answer("dkms", "status"))
        name = next((entry.name for entry in entries if entry.version == self._job.version), "nvidia")
        return (*argv[:3], name, *argv[4:])

    def _answer(self, *argv: str) -> str:
        """Return what a program says about the system, empty if it fails."""
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=self._env, check=False)
        except FileNotFoundError:
            return ""
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""

    def _installer_help(self) -> str:
        """Return the options that this package knows; the names of some changed between branches."""
        argv = ["sh", self._job.package.path, "--advanced-options"]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=self._env, check=False).stdout.decode("utf-8", "replace")

    def _program(self, step: Step, place: str) -> None:
        began_s = time.time()
        code, output = self._run(step, place)
        if code and step.failure:
            raise failure(step.failure, step.phase, output, {**self._job.facts, **self._logs(began_s)}, source_files())

    def _run(self, step: Step, place: str) -> tuple[int, str]:
        """Run a step's program; return its exit code and all that it said."""
        with self._clock(f"{place} {step.phase}"):
            try:
                done = subprocess.run(
                    step.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=step.timeout_s, env=self._env, check=False
                )
            except FileNotFoundError as error:
                raise KproError(step.phase, f"the program {step.argv[0]} is not there") from error
            except subprocess.TimeoutExpired as error:
                raise KproError(step.phase, f"no end after {step.timeout_s:g} s ({shlex.join(step.argv)})") from error
        output = done.stdout.decode("utf-8", "replace")
        print(output, end="", flush=True)
        return done.returncode, output

    @contextlib.contextmanager
    def _clock(self, text: str) -> t.Iterator[None]:
        """Say every second how long a program runs; it has no progress of its own."""
        ended = threading.Event()

        def tell() -> None:
            began = time.monotonic()
            while not ended.is_set():
                self._status.running(f"{text}, {time.monotonic() - began:.0f} s")
                ended.wait(TICK_S)

        thread = threading.Thread(target=tell)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _logs(self, since_s: float) -> dict[str, str]:
        """Return the texts that explain a failed build; a log from before it explains another one."""
        makes = sorted(pathlib.Path("/var/lib/dkms").glob(f"nvidia*/{self._job.version}/build/make.log"))
        make = makes[-1] if makes else pathlib.Path(f"/var/lib/dkms/nvidia/{self._job.version}/build/make.log")
        return {"installer": _text(pathlib.Path(INSTALLER_LOG), since_s), "make": _text(make, since_s), "make_path": str(make)}


def _text(path: pathlib.Path, since_s: float) -> str:
    with contextlib.suppress(OSError):
        # File systems keep coarser times than the clock.
        if path.stat().st_mtime >= since_s - 1.0:
            return path.read_text(errors="replace")
    return ""


def main(folder: str) -> int:
    """Do the job in ``folder``; its status tells the outcome."""
    return run_worker(folder, lambda job, status: Worker(Job.from_dict(job), status).run(), "NVIDIA driver")
