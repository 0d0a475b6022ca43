# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A package that the index has only as source: its wheel's key, how many compilers may run, what a killed build means, as values."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._core.errors import KproError
from .lock import normal_name, parse_lock

MANIFEST = "kpro-wheel.json"
KILLED = re.compile(r"signal 9\b|\bKilled\b|cannot allocate memory|out of memory allocating|std::bad_alloc", re.IGNORECASE)
_PROGRESS = re.compile(r"^\s*\[(\d+)/(\d+)\]")


@dataclasses.dataclass(frozen=True)
class SourcePackage:
    """A package to build once and to keep as a wheel.

    :param lock: hash-locked requirements of its source archive and of the tools that build it.
    :param imports: modules that have to be importable once it is installed.
    :param omit: folders of its source that another package of the environment provides in a version of its own.
    :param wheelhouse: folder that keeps wheels, each in a folder named by its key.
    :param tags: what a wheel is bound to besides name and version, in order ("torch": "2.14.1", ...).
    :param build: whether it may be built where no wheel is kept.
    :param variables: environment variables of the build.
    :param cuda_home: folder of the CUDA toolkit; empty if the build needs none.
    :param job_memory_mib: what one compiler takes at its peak.
    :param size_mib: space that the build takes, besides the wheel.
    """

    name: str
    version: str
    lock: str
    wheelhouse: str
    imports: tuple[str, ...] = ()
    omit: tuple[str, ...] = ()
    tags: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    build: bool = False
    variables: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    cuda_home: str = ""
    job_memory_mib: int = 6144
    size_mib: int = 0

    @property
    def key(self) -> str:
        """Name of the wheel's folder: all that decides whether a wheel fits."""
        tags = "-".join(re.sub(r"[^A-Za-z0-9.+;]", "", f"{name}{value}").replace(";", "+") for name, value in self.tags.items())
        return f"{normal_name(self.name)}-{self.version}{'+' if tags else ''}{tags}"

    @property
    def wheel_folder(self) -> str:
        """Where its wheel is kept."""
        return f"{self.wheelhouse}/{self.key}"

    @property
    def fits(self) -> str:
        """The constraints of a wheel, in words."""
        return ", ".join(f"{name} {value}" for name, value in self.tags.items())

    def split_lock(self) -> tuple[str, str]:
        """Return the requirement of the source archive and those of the tools, as texts.

        :raises KproError: the lock does not pin the version.
        """
        what = f"lock file of {self.name}"
        pins = parse_lock(self.lock, what)
        if pins.get(normal_name(self.name)) != self.version:
            raise KproError(what, f"it does not pin {self.name} {self.version}", "Remake it with tests/locks/remake")
        lines = [line for line in re.sub(r"\s*\\\n\s*", " ", self.lock).splitlines() if line.strip() and not line.startswith("#")]
        own = [line for line in lines if normal_name(line.split("==")[0]) == normal_name(self.name)]
        return "".join(f"{line}\n" for line in own), "".join(f"{line}\n" for line in lines if line not in own)


@dataclasses.dataclass(frozen=True)
class KeptWheel:
    """A wheel in the wheelhouse.

    :param sha256: as noted when it was kept; empty if it was put there by hand.
    """

    path: str
    sha256: str = ""


def job_count(cores: int, memory_mib: int, job_memory_mib: int) -> int:
    """Return how many compilers may run at once: one for each core, as far as the memory reaches; at least one."""
    return max(1, min(cores, memory_mib // max(job_memory_mib, 1)))


def after_kill(jobs: int, limit_mib: int, job_memory_mib: int, oom_kills: int, lines: t.Sequence[str]) -> tuple[str, int] | None:
    """Return a sentence and a smaller number of compilers if a build failed for memory; None if it did not, or no fewer can run.

    :param limit_mib: memory of the container; ``oom_kills``: processes that the kernel ended there during the build.
    """
    if not oom_kills and not any(KILLED.search(line) for line in lines):
        return None
    if jobs <= 1:
        return None
    fewer = job_count(jobs // 2, limit_mib, job_memory_mib)
    sentence = (
        f"The build ran out of memory ({jobs} compilers at once, {limit_mib} MiB in the container, about {job_memory_mib} MiB each): "
        f"it goes on with {fewer}; what is compiled already stays"
    )
    return sentence, fewer


def missing_wheel(source: SourcePackage) -> str:
    """Return the warning for a package that is left out because no wheel of its key is kept and building is off."""
    return (
        f"{source.name} {source.version} is left out: there is no wheel for {source.fits} in {source.wheel_folder}, and building it from source "
        f"(about {source.job_memory_mib // 1024} GiB of memory for each compiler, up to hours) is off. SGLang does without it. "
        "Put a wheel there, or set sglang_runtime__flash_attn to build."
    )


def compiled_of(line: str) -> tuple[int, int] | None:
    """Return how many of how many steps ninja has done, from a line of its output."""
    match = _PROGRESS.match(line)
    return (int(match[1]), int(match[2])) if match else None
