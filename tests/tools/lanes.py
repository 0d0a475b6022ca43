# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes (a Python and the ansible-core it can have) and their tool environments, from hash-locked files.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "tests" / "requirements"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kpro-llm"

# Newest last. ansible-core 2.19 is the newest that Python 3.11 can have, and so on.
ANSIBLE_CORE_OF_PYTHON = {"3.11": "2.19", "3.12": "2.20", "3.13": "2.21"}


@dataclasses.dataclass(frozen=True)
class Lane:
    """One Python at hand and the ansible-core that goes with it."""

    python_version: str
    interpreter: Path

    @property
    def name(self) -> str:
        return f"ansible-core {ANSIBLE_CORE_OF_PYTHON[self.python_version]} on Python {self.python_version}"

    @property
    def ansible_core(self) -> str:
        return ANSIBLE_CORE_OF_PYTHON[self.python_version]


def available() -> list[Lane]:
    """Return the lanes whose Python is on this machine, newest last."""
    lanes = []
    for version in ANSIBLE_CORE_OF_PYTHON:
        candidates = [*_pyenv(version), shutil.which(f"python{version}")]
        usable = next((Path(path) for path in candidates if path and _has_venv(path)), None)
        if usable:
            lanes.append(Lane(version, usable))
    return lanes


def _pyenv(version: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return sorted((str(path) for path in root.glob(f"versions/{version}.*/bin/python{version}")), reverse=True)


def _has_venv(interpreter: str) -> bool:
    return subprocess.run([interpreter, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0


def environment(lane: Lane, kind: str) -> Path:
    """Return the folder of the lane's environment of ``kind`` (controller, dev), installed if it is not there yet."""
    lock = REQUIREMENTS / f"{kind}-py{lane.python_version}.txt"
    key = hashlib.sha256(lock.read_bytes() + str(lane.interpreter).encode()).hexdigest()[:12]
    place = CACHE / f"tools-{kind}-py{lane.python_version}-{key}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "a", encoding="utf-8") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            _install(lane, kind, lock, place)
    return place


def _install(lane: Lane, kind: str, lock: Path, place: Path) -> None:
    print(f"Installing {kind} tools for {lane.name} ...", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([lane.interpreter, "-m", "venv", place], check=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", lock], check=True)
    (place / ".complete").touch()


if __name__ == "__main__":
    # `lanes.py KIND` prints the folder of the newest lane's environment: for the shell of bin/try.
    found = available()
    if not found:
        sys.exit(f"No Python of {', '.join(ANSIBLE_CORE_OF_PYTHON)} with the venv module is here. Install python3 and python3-venv.")
    print(environment(found[-1], sys.argv[1]))
