# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._driver import worker as driver_worker
from ansible_collections.kpro.llm.plugins.module_utils._environment import wheel_worker
from ansible_collections.kpro.llm.plugins.module_utils._environment import worker as environment_worker
from ansible_collections.kpro.llm.plugins.module_utils._job.long_job_edge import PACKAGE, imported, worker_archive
from ansible_collections.kpro.llm.plugins.module_utils._model import worker as model_worker

HERE = f"{PACKAGE}._job.long_job_edge"
WORKERS = [driver_worker, environment_worker, model_worker, wheel_worker]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from .._core.errors import KproError", ["_core.errors"]),
        ("from .._core import errors, changes as c", ["_core.errors", "_core.changes"]),
        ("from . import status_edge", ["_job.status_edge"]),
        ("from .status_edge import JobStatus", ["_job.status_edge"]),
        ("def late():\n    if True:\n        from .status_edge import JobStatus\n", ["_job.status_edge"]),
        ("import typing as t\nif t.TYPE_CHECKING:\n    from .._core.errors import KproError\n", ["_core.errors"]),
        (f"import {PACKAGE}._core.errors", ["_core.errors"]),
        (f"from {PACKAGE}._core.errors import (\n    KproError,\n)", ["_core.errors"]),
        ("import os, json\nfrom email import message", []),
        ("text = 'from .._core.errors import KproError'", []),
    ],
)
def test_each_form_of_import_travels(source: str, found: list[str]) -> None:
    assert imported(HERE, source) == [f"{PACKAGE}.{name}" for name in found]


@pytest.mark.parametrize("worker", WORKERS, ids=lambda worker: worker.__name__.removeprefix(f"{PACKAGE}."))
def test_a_worker_runs_from_its_archive_alone(worker: types.ModuleType, tmp_path: Path) -> None:
    """Without a job it can only say that there is none; a file that did not travel would end it before that."""
    archive = tmp_path / "worker.pyz"
    archive.write_bytes(worker_archive(worker))
    done = subprocess.run([sys.executable, "-I", archive, tmp_path], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "ImportError" not in done.stderr and "ModuleNotFoundError" not in done.stderr, done.stderr
    told = done.stdout + done.stderr + "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert "job.json" in told, done


def test_all_that_a_file_of_the_archive_imports_is_in_it() -> None:
    with zipfile.ZipFile(io.BytesIO(worker_archive(driver_worker))) as archive:
        texts = {name.removesuffix(".py").replace("/", "."): archive.read(name).decode() for name in archive.namelist() if "__" not in name}
    assert len(texts) > 10
    for name, text in texts.items():
        assert set(imported(name, text)) <= set(texts), name
