# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tells a damaged file from one that was only touched, in real files."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._environment import files as pure
from ansible_collections.kpro.llm.plugins.module_utils._environment.files_edge import EnvironmentFiles
from ansible_collections.kpro.llm.plugins.module_utils._environment.service_edge import ended_since

SITE = "lib/python3.12/site-packages"
ENGINE = b"kernel" * 500


def record_of(site: Path, paths: t.Iterable[str], info: str) -> None:
    """Write the RECORD of a package as installers do."""
    rows = []
    for path in paths:
        data = (site / path).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    (site / info / "RECORD").write_text("".join(rows) + f"{info}/RECORD,,\n")


@pytest.fixture
def place(tmp_path: Path) -> EnvironmentFiles:
    """An environment of two packages, with an interpreter of its own below the same root."""
    site = tmp_path / "envs/x" / SITE
    python = tmp_path / "python/cpython-3.12.9-linux/bin/python3.12"
    python.parent.mkdir(parents=True)
    python.write_bytes(b"interpreter")
    (python.parents[1] / "lib").mkdir()
    (python.parents[1] / "lib/os.py").write_text("name = 'posix'\n")
    (tmp_path / "envs/x/bin").mkdir(parents=True)
    (tmp_path / "envs/x/bin/python").symlink_to(python)
    (tmp_path / "envs/x/pyvenv.cfg").write_text("home = x\n")
    for name in ("engine", "Flash_Attn"):
        info = f"{name}-1.0.dist-info"
        (site / name / "__pycache__").mkdir(parents=True)
        (site / info).mkdir()
        (site / name / "__init__.py").write_text(f"NAME = {name!r}\n")
        (site / name / "core.so").write_bytes(ENGINE)
        (site / name / "__pycache__/__init__.cpython-312.pyc").write_bytes(b"code")
        (site / info / "METADATA").write_text(f"Name: {name}\n")
        record_of(site, [f"{name}/__init__.py", f"{name}/core.so", f"{info}/METADATA"], info)
    (site / "names with\nbreaks\\n and \u2028.txt").write_text("x")
    made = EnvironmentFiles(str(tmp_path / "envs/x"), str(tmp_path))
    assert made.record_damages() == []
    made.write_list()
    assert made.damages(read_all=True) == ([], False)
    return made


def at(place: EnvironmentFiles, path: str) -> Path:
    return Path(place._path, path)  # the test's own way in


def silently(path: Path, data: bytes) -> None:
    """Change the content and nothing else, as a disk that loses bits does."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_link(path: Path) -> None:
    copy = path.with_name("copy")
    path.rename(copy)
    path.symlink_to(copy)


CORE = f"{SITE}/engine/core.so"
DAMAGES: dict[str, tuple[str, t.Callable[[Path], t.Any], str, str]] = {
    "truncated": (CORE, lambda path: os.truncate(path, 100), "engine", "has 100 of 3000 bytes"),
    "empty": (CORE, lambda path: os.truncate(path, 0), "engine", "is empty"),
    "longer": (CORE, lambda path: path.write_bytes(ENGINE + b"x"), "engine", "has 3001 of 3000 bytes"),
    "changed": (CORE, lambda path: path.write_bytes(b"K" * 3000), "engine", "was changed"),
    "missing": (CORE, lambda path: path.unlink(), "engine", "is missing"),
    "link to the same": (CORE, replace_by_link, "engine", "is a link in place of a file"),
    "folder": (CORE, lambda path: (path.unlink(), path.mkdir()), "engine", "is a folder in place of a file"),
    "pipe": (CORE, lambda path: (path.unlink(), os.mkfifo(path)), "engine", "is a special file in place of a file"),
    "not readable": (CORE, lambda path: path.chmod(0o600), "engine", "has mode 0600 in place of 0644"),
    "bytecode": (f"{SITE}/engine/__pycache__/__init__.cpython-312.pyc", lambda path: os.truncate(path, 2), "engine", "has 2 of 4 bytes"),
    "metadata": (f"{SITE}/Flash_Attn-1.0.dist-info/METADATA", lambda path: path.unlink(), "flash-attn", "is missing"),
    "record": (f"{SITE}/engine-1.0.dist-info/RECORD", lambda path: os.truncate(path, 0), "engine", "is empty"),
    "settings": ("pyvenv.cfg", lambda path: path.unlink(), pure.INTERPRETER, "is missing"),
    "link of python": ("bin/python", lambda path: (path.unlink(), path.symlink_to("/bin/false")), pure.INTERPRETER, "was changed"),
}


@pytest.mark.parametrize(("path", "damage", "package", "words"), DAMAGES.values(), ids=DAMAGES)
def test_a_look_finds_and_names_what_is_damaged(place: EnvironmentFiles, path: str, damage: t.Callable[[Path], t.Any], package: str, words: str) -> None:
    damage(at(place, path))
    found, touched = place.damages(read_all=False)
    assert (pure.Damage(package, path, words) in found) and not touched, found
    assert words in pure.damage_sentence(found) and path in pure.damage_sentence(found)


def test_the_interpreter_outside_of_the_environment_is_looked_at_too(place: EnvironmentFiles) -> None:
    os.truncate(Path(place.interpreter, "lib/os.py"), 3)
    found, _touched = place.damages(read_all=False)
    assert [(row.package, row.words) for row in found] == [(pure.INTERPRETER, "has 3 of 15 bytes")]
    assert pure.packages_of(found) == []


def test_what_no_time_tells_is_found_by_reading_all(place: EnvironmentFiles) -> None:
    silently(at(place, CORE), b"KERNEL")
    assert place.damages(read_all=False) == ([], False)
    assert [row.words for row in place.damages(read_all=True)[0]] == ["was changed"]
    assert [(row.package, row.path, row.words) for row in place.record_damages()] == [("engine", CORE, "was changed")]


def test_files_that_were_only_touched_or_restored_without_their_times_are_whole(place: EnvironmentFiles) -> None:
    os.utime(at(place, CORE))
    assert place.damages(read_all=False) == ([], True)
    for path in Path(place._path).rglob("*"):
        if path.is_file() and path.name != pure.LIST_NAME:
            os.utime(path, (path.stat().st_mtime // 1, path.stat().st_mtime // 1))
    place.write_list()
    assert place.damages(read_all=False) == ([], False)


def test_a_damaged_list_is_damage_and_none_falls_back_to_the_records(place: EnvironmentFiles) -> None:
    path = at(place, pure.LIST_NAME)
    os.truncate(path, path.stat().st_size - 40)
    assert [row.words for row in place.damages(read_all=False)[0]] == ["is not whole"]
    path.unlink()
    assert place.damages(read_all=False)[0] == []
    silently(at(place, CORE), b"KERNEL")
    assert [row.path for row in place.damages(read_all=False)[0]] == [CORE]


@pytest.mark.parametrize("size_bytes", [0, 30, 100, 200])
def test_a_record_that_was_cut_off_vouches_for_nothing(place: EnvironmentFiles, size_bytes: int) -> None:
    os.truncate(at(place, f"{SITE}/engine-1.0.dist-info/RECORD"), size_bytes)
    silently(at(place, CORE), b"KERNEL")
    found = place.record_damages()
    # Cut off before its first file, a record says nothing of the package; the list of the build, and uv itself, find that.
    assert bool(found) == (size_bytes > 80)
    assert place.damages(read_all=False)[0]


def test_two_packages_may_name_one_file(place: EnvironmentFiles) -> None:
    record = at(place, f"{SITE}/Flash_Attn-1.0.dist-info/RECORD")
    record.write_text(f"engine/core.so,sha256={'A' * 43},7\n{record.read_text()}")
    assert place.record_damages() == []


def test_the_root_of_a_container_plants_what_would_hang_a_reader(place: EnvironmentFiles) -> None:
    path = at(place, CORE)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)
        server.bind("core.so")
        os.chdir(here)
        assert [row.words for row in place.damages(read_all=True)[0]] == ["is a special file in place of a file"]
        assert [row.words for row in place.record_damages()] == ["is a special file in place of a file"]


def test_many_damages_are_one_short_sentence() -> None:
    rows = [pure.Damage(f"package{number}", f"p{number}/{file}.py", "is empty") for number in range(40) for file in range(50)]
    text = pure.damage_sentence(rows)
    assert len(text) < 500 and "and 35 more packages" in text and "and 48 more" in text


@pytest.mark.parametrize(
    ("shown", "lost"),
    [
        ("ActiveState=active\nExecMainExitTimestampMonotonic=0", False),
        ("ActiveState=activating\nSubState=start\nExecMainExitTimestampMonotonic=9000000000", False),
        ("ActiveState=activating\nSubState=auto-restart\nExecMainExitTimestampMonotonic=9000000000", True),
        ("ActiveState=failed\nExecMainExitTimestampMonotonic=9000000000", True),
        ("ActiveState=inactive\nExecMainExitTimestampMonotonic=1000000000", False),
        ("ActiveState=inactive\nExecMainExitTimestampMonotonic=0", False),
        ("", False),
    ],
)
def test_all_files_are_read_once_after_each_lost_start(shown: str, lost: bool) -> None:
    # 10,000 s after the boot; all files were read 5,000 s ago.
    assert ended_since(shown, 10_000.0, 5_000.0) is lost
    assert ended_since("ActiveState=inactive\nExecMainExitTimestampMonotonic=0", 10_000.0, 20_000.0), "before this boot"
