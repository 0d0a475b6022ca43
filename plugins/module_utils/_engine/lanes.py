# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine lanes as data, the choice among them, and the contract that a lane makes with node and container.

A lane is one SGLang release with everything that has to fit it.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._core.errors import KproError

# The lane that uses no GPU.
CPU = "cpu"


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The needs of an environment of the lane, measured unless noted.

    :param download_mib: bytes fetched from the index, in MiB (tests/locks/remake tells them).
    :param installed_mib: the environment with bytecode, in MiB; uv's cache shares its files by hard links.
    :param files: files and folders of environment and cache (inodes).
    """

    download_mib: int
    installed_mib: int
    files: int


@dataclasses.dataclass(frozen=True)
class Lane:
    """One supported combination.

    :param driver_min_major: oldest NVIDIA driver branch; 0: the lane needs no driver.
    :param cuda: CUDA version torch was built for ("13.0"); empty on a CPU.
    :param pythons: Python versions that have a lock file, the preferred one first.
    :param packages: packages of the distribution that kernels compiled at run time need, besides the toolkit.
    :param toolkit_packages: packages of NVIDIA's repository for kernels compiled at run time.
    :param cuda_home: where those packages put the toolkit.
    """

    name: str
    engine_version: str
    torch_version: str
    cuda: str
    driver_min_major: int
    pythons: tuple[str, ...]
    packages: tuple[str, ...]
    toolkit_packages: tuple[str, ...]
    cuda_home: str
    footprint: Footprint

    def lock_file(self, python: str) -> str:
        """Return the lock file's name for a Python version ("3.11")."""
        return f"{self.name}-cp{python.replace('.', '')}.txt"


# Triton wants a C compiler and Python.h at run time, FlashInfer ninja and a C++ compiler; SGLang binds to NUMA nodes.
COMPILERS = ("g++", "libnuma1", "ninja-build", "python3-dev")

# Drivers: CUDA 13 needs branch 580; CUDA 12.8 is native to 570 (NVIDIA, CUDA compatibility guide).
# The cu13 lane has no Python 3.13: outlines-core 0.1.26 has no wheel for it.
LANES: t.Mapping[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane(
            name="cu13",
            engine_version="0.5.23",
            torch_version="2.14.1",
            cuda="13.0",
            driver_min_major=580,
            pythons=("3.12", "3.11"),
            packages=COMPILERS,
            toolkit_packages=("cuda-minimal-build-13-0", "libcurand-dev-13-0", "libcublas-dev-13-0"),
            cuda_home="/usr/local/cuda-13.0",
            footprint=Footprint(download_mib=4144, installed_mib=10_700, files=130_000),
        ),
        Lane(
            name="cu12",
            engine_version="0.5.10.post1",
            torch_version="2.9.1",
            cuda="12.8",
            driver_min_major=570,
            pythons=("3.12", "3.11"),
            packages=COMPILERS,
            toolkit_packages=("cuda-minimal-build-12-8", "libcurand-dev-12-8", "libcublas-dev-12-8"),
            cuda_home="/usr/local/cuda-12.8",
            footprint=Footprint(download_mib=5006, installed_mib=11_500, files=165_000),
        ),
        Lane(
            name=CPU,
            engine_version="0.5.23",
            torch_version="2.13.0",
            cuda="",
            driver_min_major=0,
            pythons=("3.11",),
            packages=(),
            toolkit_packages=(),
            cuda_home="",
            footprint=Footprint(download_mib=494, installed_mib=2400, files=70_000),
        ),
    )
}

GLIBC_MIN = (2, 34)  # platform tag manylinux_2_34 of the engine's wheels since 0.5.11
TP_BUG_BEFORE = (0, 5, 10)


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "580.173.02" -> (580, 173, 2), "0.5.10.post1" -> (0, 5, 10)."""
    match = re.match(r"\d+(\.\d+)*", version.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def choose_lane(wanted: str, driver_version: str) -> Lane:
    """Return the lane named, or for "auto" the newest one that the node's driver can run.

    :param driver_version: the node's driver ("580.173.02"); empty if there is none.
    :raises KproError: unknown lane, or no lane fits.
    """
    if wanted != "auto":
        if wanted not in LANES:
            raise KproError(f"lane {wanted}", "there is no such lane", f"Choose auto or one of {', '.join(LANES)}")
        return LANES[wanted]
    major = (numbers(driver_version) or (0,))[0]
    fitting = [lane for lane in LANES.values() if 0 < lane.driver_min_major <= major]
    if not fitting:
        oldest = min(lane.driver_min_major for lane in LANES.values() if lane.driver_min_major)
        raise KproError(
            "lane auto",
            f"driver {driver_version} is older than {oldest}, the oldest that any lane runs on" if driver_version else "the node has no NVIDIA driver",
            f"Install driver {max(lane.driver_min_major for lane in LANES.values())} or newer (role gpu_node), or name a lane",
        )
    return max(fitting, key=lambda lane: lane.driver_min_major)


def with_pins(lane: Lane, pins: t.Mapping[str, str], what: str) -> Lane:
    """Return the lane as a lock file of the user's own makes it: other versions of SGLang and torch on the lane's driver, CUDA and Pythons.

    :param pins: version by normal package name.
    :param what: name of the lock file, for errors.
    :raises KproError: for a lock without SGLang, or one that is built for another CUDA than the lane.
    """
    if "sglang" not in pins:
        raise KproError(what, "it names no sglang", "Make it with the package sglang in it, or leave sglang_runtime__lock empty")
    runtime = next((name for name in pins if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name)), "")
    built_for, lanes_own = str((numbers(pins[runtime]) or ("",))[0]) if runtime else "", lane.cuda.partition(".")[0]
    if built_for and built_for != lanes_own:
        fitting = [other.name for other in LANES.values() if other.cuda.partition(".")[0] == built_for]
        has = f"is built for CUDA {lane.cuda}" if lane.cuda else "uses no GPU"
        way = f"Set sglang_runtime__lane: {fitting[0]}, or make" if fitting else "Make"
        raise KproError(what, f"it is for CUDA {built_for} ({runtime} {pins[runtime]}), and lane {lane.name} {has}", f"{way} the lock for this lane")
    return dataclasses.replace(lane, engine_version=pins["sglang"], torch_version=pins.get("torch", lane.torch_version).partition("+")[0])


def choose_python(lane: Lane, wanted: str, distribution_python: str) -> str:
    """Return the Python version for an environment of the lane.

    "auto" takes the distribution's own Python where the lane has a lock for it (nothing to download), else the lane's first.

    :raises KproError: the lane has no lock file for the version asked for.
    """
    if wanted == "auto":
        return distribution_python if distribution_python in lane.pythons else lane.pythons[0]
    if wanted not in lane.pythons:
        raise KproError(f"Python {wanted}", f"lane {lane.name} has no lock file for it", f"Choose auto or one of {', '.join(lane.pythons)}")
    return wanted


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts for the contract; empty text and None mean unknown, which is not judged.

    :param toolkits: versions of the CUDA toolkits installed ("13.0"); an empty sequence means that there is none.
    """

    driver_version: str = ""
    engine_version: str = ""
    torch_cuda: str = ""
    toolkits: t.Sequence[str] | None = None
    python: str = ""
    glibc: str = ""
    architecture: str = ""
    model_type: str = ""
    tp_size: int = 1


def contract_problems(lane: Lane, facts: Facts) -> list[str]:
    """Return one sentence for each clause of the lane's contract that does not hold; empty if all do."""
    checks = (_driver_problem, _engine_problem, _tp_problem, _cuda_problem, _python_problem, _platform_problem)
    return [problem for check in checks if (problem := check(lane, facts))]


def _driver_problem(lane: Lane, facts: Facts) -> str:
    if not lane.driver_min_major or not facts.driver_version:
        return ""
    if numbers(facts.driver_version)[:1] >= (lane.driver_min_major,):
        return ""
    others = [other.name for other in LANES.values() if 0 < other.driver_min_major <= (numbers(facts.driver_version) or (0,))[0]]
    way = f"or choose lane {others[0]}" if others else "and run again"
    return (
        f"Lane {lane.name} is built for CUDA {lane.cuda} and needs NVIDIA driver {lane.driver_min_major} or newer, "
        f"but the node runs {facts.driver_version}: install {lane.driver_min_major} or newer {way}."
    )


def _engine_problem(lane: Lane, facts: Facts) -> str:
    if not facts.engine_version or facts.engine_version == lane.engine_version:
        return ""
    return f"Lane {lane.name} pins SGLang {lane.engine_version}, but the environment holds {facts.engine_version}: run the role sglang_runtime again."


def _tp_problem(lane: Lane, facts: Facts) -> str:
    version = facts.engine_version or lane.engine_version
    dense = facts.model_type.lower().replace("_text", "") in ("qwen3_5", "qwen3_6")
    if not dense or facts.tp_size <= 1 or numbers(version) >= TP_BUG_BEFORE:
        return ""
    return (
        f"SGLang {version} skips an all-reduce in dense Qwen3.5/3.6 models with tensor parallelism ({facts.tp_size} GPUs here): "
        "it answers fluently and wrongly. Use SGLang 0.5.10 or newer, or one GPU."
    )


def _cuda_problem(lane: Lane, facts: Facts) -> str:
    torch = facts.torch_cuda or lane.cuda
    if facts.toolkits is None or not torch or any(numbers(version)[:1] == numbers(torch)[:1] for version in facts.toolkits):
        return ""
    remedy = f"Install CUDA toolkit {torch} (sglang_runtime__toolkit: true; {' '.join(lane.toolkit_packages)}; CUDA_HOME={lane.cuda_home})"
    if not facts.toolkits:
        reason = f"Kernels are compiled at the engine's start and need nvcc of CUDA {torch}, and none is installed."
        return f"{reason} {remedy}, or choose backends with prebuilt kernels."
    return (
        f"nvcc is {' and '.join(facts.toolkits)}, torch was built for CUDA {torch}: the majors differ, and kernels compiled at start would not load. {remedy}."
    )


def _python_problem(lane: Lane, facts: Facts) -> str:
    version = ".".join(facts.python.split(".")[:2])
    if not version or version in lane.pythons:
        return ""
    return f"Lane {lane.name} has lock files for Python {' and '.join(lane.pythons)}, not for {version}: set sglang_runtime__python to auto."


def _platform_problem(lane: Lane, facts: Facts) -> str:
    if facts.architecture and facts.architecture != "x86_64":
        return f"The lock files hold wheels for x86_64, and the container is {facts.architecture}: no lane can be installed there."
    if facts.glibc and numbers(facts.glibc) < GLIBC_MIN:
        return f"The engine's wheels need glibc {GLIBC_MIN[0]}.{GLIBC_MIN[1]}, and the container has {facts.glibc}: use Debian 12, Ubuntu 22.04 or newer."
    return ""
