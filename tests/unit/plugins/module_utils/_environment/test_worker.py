# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the worker does besides running programs; whole builds are in the tests of the module."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._environment.worker import Worker
from ansible_collections.kpro.llm.plugins.module_utils._job.status_edge import JobStatus


def worker(tmp_path: Path, *steps: dict[str, t.Any]) -> Worker:
    root = tmp_path / "root"
    root.mkdir()
    job = {"unit": "kpro-x.service", "root": str(root), "target": f"{root}/envs/x", "packages": 0, "archive": f"{root}/cache", "env": {}, "steps": list(steps)}
    return Worker({**job, "finish": {}}, JobStatus(str(tmp_path)))


@pytest.mark.parametrize("outside", ["{tmp}/other", "{tmp}/root", "{tmp}/root/", "{tmp}/root/../other", "{tmp}/rooted"])
def test_nothing_outside_the_root_is_ever_removed(tmp_path: Path, outside: str) -> None:
    for name in ("other", "rooted"):
        (tmp_path / name).mkdir()
    path = outside.format(tmp=tmp_path)
    with pytest.raises(KproError, match="is not removed"):
        worker(tmp_path, {"phase": "venv", "argv": ["true"], "remove": [path]}).run()
    assert (tmp_path / "other").exists() and (tmp_path / "rooted").exists() and (tmp_path / "root").exists()


def test_a_text_in_place_of_a_list_removes_nothing(tmp_path: Path) -> None:
    with pytest.raises(KproError, match="is not removed"):
        worker(tmp_path, {"phase": "keep", "argv": ["true"], "remove": f"{tmp_path}/root/build"}).run()


def test_the_line_that_tells_the_cause_survives_a_page_of_the_builder(tmp_path: Path) -> None:
    page = "echo 'x.cu(3): error: identifier is undefined'; for i in $(seq 100); do echo line $i; done; exit 1"
    with pytest.raises(KproError, match=r"compile failed: x\.cu\(3\): error: identifier is undefined line 95 .*line 100"):
        worker(tmp_path, {"phase": "compile", "argv": ["sh", "-c", page], "job_memory_mib": 1}).run()


def test_a_build_that_was_killed_for_memory_runs_again_with_fewer(tmp_path: Path) -> None:
    log = tmp_path / "jobs"
    script = f"echo $MAX_JOBS >> {log}; [ $(wc -l < {log}) -gt 1 ] && exit 0; echo 'cicc died due to signal 9'; for i in $(seq 60); do echo; done; exit 1"
    made = worker(tmp_path, {"phase": "compile", "argv": ["sh", "-c", script], "job_memory_mib": 1})
    with pytest.raises((KeyError, KproError)):
        made.run()  # there is nothing to put in force
    first, *rest = map(int, log.read_text().split())
    assert first == 1 or (rest == [first // 2] and "goes on with" in made.notes[0])


def test_a_damaged_python_of_the_distribution_is_named_with_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # STAND-IN of dpkg: what Debian's says of a changed file, of one of settings, and of documentation that a container leaves out.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "dpkg").write_text(
        "#!/bin/sh\necho '??5?????? c /etc/python3.11/sitecustomize.py'\necho '??5??????   /usr/lib/python3.11/os.py'\necho 'missing     /usr/share/doc/x'\n"
    )
    (programs / "dpkg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    made = worker(tmp_path, {"phase": "venv", "argv": ["sh", "-c", "echo SyntaxError: invalid syntax; exit 1"]})
    made._job = {**made._job, "distribution_python": "3.11"}
    with pytest.raises(KproError, match=r"SyntaxError.*/usr/lib/python3\.11/os\.py changed") as caught:
        made.run()
    assert "/etc/python3.11" not in caught.value.reason and "/usr/share" not in caught.value.reason
    assert "apt-get install --reinstall python3.11-minimal" in caught.value.remedy
