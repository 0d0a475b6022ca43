# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes' lock files: how they are made from the index, and how they are compared with it.

A lock file holds, for each package, the hashes of the wheels that fit its Python and platform, and of nothing else: what has no
wheel can't be in it, and it stays small enough to travel with every run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import typing as t
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCKS = ROOT / "roles/sglang_runtime/files/locks"
UV_LOCK = LOCKS / "uv-0.13.9.txt"
UV_VERSION = UV_LOCK.stem.removeprefix("uv-")
PLATFORM = "x86_64-manylinux_2_36"
# Packages that the index has only as source, with the wheels of what builds them; the same file serves every Python of the lanes.
SOURCES = ("flash-attn",)
LANES = {"cu13": ("3.11", "3.12"), "cu12": ("3.11", "3.12"), "cpu": ("3.11",)}
# In the CPU lane only: these come from the wheelhouse, and no index answers for them.
FROM_WHEELHOUSE = ("kpro-sglang-cpu", "torch")


class LockError(Exception):
    """A failure told in one sentence."""


@dataclass(frozen=True)
class Pin:
    """One package: its version, the hashes of its wheels, and the size of the largest in bytes (0: not known)."""

    version: str
    hashes: tuple[str, ...]
    size: int = 0


Lock = dict[str, Pin]


def lock_path(lane: str, python: str) -> Path:
    return LOCKS / f"{lane}-cp{python.replace('.', '')}.txt"


def read(path: Path) -> Lock:
    """Return the pins of a lock file."""
    entries = re.findall(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", path.read_text(), re.MULTILINE)
    return {name: Pin(version, tuple(re.findall(r"sha256:(\w+)", hashes))) for name, version, hashes in entries}


def entry(lock: Lock, name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return what a lock file says about a package."""
    pin = lock.get(name)
    return (pin.version, tuple(sorted(pin.hashes))) if pin else None


def write(path: Path, lock: Lock, title: str) -> None:
    """Write a lock file in the form that pip and uv read."""
    lines = [f"# {title}. Made by tests/locks/remake; do not edit.\n"]
    for name, pin in sorted(lock.items()):
        lines.append(" \\\n    ".join([f"{name}=={pin.version}", *(f"--hash=sha256:{digest}" for digest in sorted(pin.hashes))]) + "\n")
    path.write_text("".join(lines))


def uv_program() -> str:
    """Return the pinned uv: the one named by KPRO_UV or on PATH if it has that version, else one installed by hash in a cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"kpro-llm/uv-{UV_VERSION}"
    for candidate in (os.environ.get("KPRO_UV"), shutil.which("uv"), str(cache / "bin/uv")):
        if candidate and _uv_version(candidate) == UV_VERSION:
            return candidate
    subprocess.run([sys.executable, "-m", "venv", "--clear", cache], check=True)
    pip = [cache / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    subprocess.run([*pip, "--requirement", UV_LOCK], check=True)
    return str(cache / "bin/uv")


def _uv_version(program: str) -> str:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        return ""
    return said[1] if len(said) > 1 else ""


def run_uv(uv: str, *arguments: t.Any) -> str:
    """Run uv and return what it said on standard error, where it reports."""
    done = subprocess.run([uv, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LockError(f"uv {' '.join(map(str, arguments))}\n{done.stderr.strip()}")
    return done.stderr


def resolve(uv: str, lane: str, python: str, work: Path, preferred: Lock) -> Lock:
    """Return the lane's lock as the index gives it now, keeping the preferred versions where they still fit."""
    target = ["--python-version", python, "--python-platform", PLATFORM, "--only-binary", ":all:", "--quiet"]
    pins = work / f"{lane}-{python}.txt"
    pins.write_text("".join(f"{name}=={pin.version}\n" for name, pin in preferred.items() if not _local(lane, name)))
    depth = ["--no-deps"] if lane == "cpu" else []
    run_uv(uv, "pip", "compile", *target, *depth, "--no-annotate", "--no-header", "--output-file", pins, HERE / f"{lane}.in")
    table = work / f"pylock.{lane}-{python.replace('.', '')}.toml"
    run_uv(uv, "pip", "compile", *target, "--no-deps", "--format", "pylock.toml", "--output-file", table, pins)
    return _from_pylock(tomllib.loads(table.read_text()))


def source_path(name: str, version: str) -> Path:
    return LOCKS / f"{name}-{version}.txt"


def resolve_source(uv: str, name: str, work: Path, preferred: Lock) -> Lock:
    """Return the lock of a package's source archive and of the tools that build it, as the index gives it now."""
    target = ["--python-version", "3.11", "--python-platform", PLATFORM, "--no-deps", "--quiet", "--no-header", "--no-annotate"]
    pins, table = work / f"{name}.txt", work / f"pylock.{name}.toml"
    pins.write_text("".join(f"{tool}=={pin.version}\n" for tool, pin in preferred.items()))
    run_uv(uv, "pip", "compile", *target, "--output-file", pins, HERE / f"{name}.in")
    run_uv(uv, "pip", "compile", *target, "--format", "pylock.toml", "--output-file", table, pins)
    packages = tomllib.loads(table.read_text())["packages"]
    lock = _from_pylock({"packages": [package for package in packages if package["name"] != name]})
    own = next(package for package in packages if package["name"] == name)
    if own.get("wheels"):
        raise LockError(f"{name} {own['version']} has wheels now: lock it like the others")
    return {**lock, name: Pin(own["version"], (own["sdist"]["hashes"]["sha256"],), own["sdist"].get("size", 0))}


def pinned_version(name: str) -> str:
    """Return the version of a package that its own input names."""
    match = re.search(rf"^{name}==(\S+)", (HERE / f"{name}.in").read_text(), re.MULTILINE)
    if not match:
        raise LockError(f"tests/locks/{name}.in names no version of {name}")
    return match[1]


def _from_pylock(table: dict[str, t.Any]) -> Lock:
    lock = {}
    for package in table["packages"]:
        wheels = package.get("wheels", [])
        if not wheels:
            raise LockError(f"{package['name']} {package['version']} has no wheel for this Python and platform")
        hashes = tuple(sorted(wheel["hashes"]["sha256"] for wheel in wheels))
        lock[package["name"]] = Pin(package["version"], hashes, max(wheel.get("size", 0) for wheel in wheels))
    return lock


def _local(lane: str, name: str) -> bool:
    return lane == "cpu" and name in FROM_WHEELHOUSE


def local_pins(lane: str, lock: Lock) -> Lock:
    """Return the pins that come from the wheelhouse."""
    return {name: pin for name, pin in lock.items() if _local(lane, name)}


def engine_version(lane: str) -> str:
    """Return the SGLang version that the lane's input names."""
    match = re.search(r"^sglang==(\S+)", (HERE / f"{lane}.in").read_text(), re.MULTILINE)
    if not match:
        raise LockError(f"tests/locks/{lane}.in names no sglang version")
    return match[1]
