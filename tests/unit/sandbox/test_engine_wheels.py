# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU lane's own wheels: what is built and what the lock names are the same, and anything else is refused."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "tests/sandbox/engine"
LOCK = ROOT / "roles/sglang_runtime/files/locks/cpu-cp311.txt"
TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def locked(name: str) -> str:
    match = re.search(rf"^{name}==\S+ \\\n    --hash=sha256:(\w+)$", LOCK.read_text(), re.MULTILINE)
    assert match
    return match[1]


def run(*argv: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # No pip on PATH and none in this interpreter's reach: the test may not fetch anything.
    env = {**os.environ, "PATH": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run([sys.executable, "-S", *argv], capture_output=True, text=True, check=False, env=env)


def test_the_stand_in_is_built_with_the_hash_that_the_lock_names(tmp_path: Path) -> None:
    done = run(ENGINE / "make_wheel.py", tmp_path)
    (wheel,) = tmp_path.iterdir()
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == locked("kpro-sglang-cpu"), "src/ has changed: run tests/locks/remake cpu"
    assert done.stdout.split()[0] == wheel.name


def test_the_wheel_is_one_that_installers_accept(tmp_path: Path) -> None:
    run(ENGINE / "make_wheel.py", tmp_path)
    with zipfile.ZipFile(next(tmp_path.iterdir())) as wheel:
        names = wheel.namelist()
        record = wheel.read("kpro_sglang_cpu-0.5.23.dist-info/RECORD").decode()
        assert {entry.compress_type for entry in wheel.infolist()} == {zipfile.ZIP_STORED}
    assert {"sgl_cpu_shim.py", "sgl_cpu_shim.pth", "sgl_kernel/__init__.py", "sgl_kernel/mamba.py"} < set(names)
    assert sorted(line.split(",")[0] for line in record.splitlines()) == sorted(names)


@pytest.fixture
def other_lock(tmp_path: Path) -> tuple[Path, Path]:
    """A lock whose torch is a small file, and a cache that holds that file."""
    content = b"a small torch"
    digest = hashlib.sha256(content).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(LOCK.read_text().replace(locked("torch"), digest))
    kept = tmp_path / "cache" / digest[:16] / TORCH
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    return lock, kept


def test_what_the_cache_holds_is_not_fetched_again(tmp_path: Path, other_lock: tuple[Path, Path]) -> None:
    lock, _kept = other_lock
    for _unused in range(2):
        done = run(ENGINE / "wheelhouse", tmp_path / "wheels", "--cache", tmp_path / "cache", "--lock", lock)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (tmp_path / "wheels").iterdir()) == ["kpro_sglang_cpu-0.5.23-py3-none-any.whl", TORCH]


def test_another_build_of_the_same_version_is_refused_by_name_and_hash(tmp_path: Path, other_lock: tuple[Path, Path]) -> None:
    lock, kept = other_lock
    kept.write_bytes(b"another build")
    done = run(ENGINE / "wheelhouse", tmp_path / "wheels", "--cache", tmp_path / "cache", "--lock", lock)
    assert done.returncode == 1
    assert TORCH in done.stderr and hashlib.sha256(b"another build").hexdigest() in done.stderr and "another build of the same version" in done.stderr
    assert not kept.exists() and not (tmp_path / "wheels" / TORCH).exists()


def test_a_change_of_the_sources_without_a_new_lock_is_told(tmp_path: Path, other_lock: tuple[Path, Path]) -> None:
    lock, _kept = other_lock
    lock.write_text(lock.read_text().replace(locked("kpro-sglang-cpu"), "0" * 64))
    done = run(ENGINE / "wheelhouse", tmp_path / "wheels", "--cache", tmp_path / "cache", "--lock", lock)
    assert done.returncode == 1 and "kpro_sglang_cpu" in done.stderr and "tests/locks/remake" in done.stderr
