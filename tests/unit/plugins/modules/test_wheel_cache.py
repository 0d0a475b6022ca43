# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module, its real worker, and the role's real command for the peer, with stand-ins of ssh, pct, systemd-run and systemctl."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import tarfile
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.kpro.llm.plugins.module_utils._environment.wheel_stream_edge import Intake, Refused
from ansible_collections.kpro.llm.plugins.module_utils._job import long_job_edge as _long_job
from ansible_collections.kpro.llm.plugins.modules import wheel_cache

STANDINS = Path(__file__).parent / "standins"
ROLE = Path(__file__).resolve().parents[4] / "roles/sglang_runtime/vars/main.yml"


class World:
    """A peer with a cache and a folder of built wheels, this machine, and the stand-ins on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peer, self.here, self.state = folder / "peer", folder / "here", folder / "state"
        self.state.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        for name in ("systemd-run", "systemctl", "ssh"):
            shutil.copy(STANDINS / name, programs)
        monkeypatch.setattr(_long_job, "RUN_DIRECTORY", str(folder / "run"))
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("STANDIN_STATE", str(self.state))
        text = yaml.safe_load(ROLE.read_text(encoding="utf-8"))["__sglang_runtime_peer_command"]
        for name, value in (("root", self.peer), ("wheelhouse", self.peer / "built"), ("peer_vmid", 129)):
            text = text.replace(f"{{{{ sglang_runtime__{name} }}}}", str(value))
        assert "{{" not in text and text.startswith("pct exec 129 -- ")
        self.command = text.removeprefix("pct exec 129 -- ")
        self.answer(self.command)

    def answer(self, script: str) -> None:
        """Let the peer answer by a script."""
        (self.state / "ssh-fault").write_text(f"{script}\nexit\n", encoding="utf-8")

    def put_wheel(self, name: str, unit: str, size_bytes: int = 100) -> None:
        """Put an unpacked wheel into the peer's cache, with uv's notes of it."""
        folder = self.peer / "cache/archive-v0" / unit
        files = {f"{name}/__init__.py": b"x" * size_bytes, f"{name}-1.dist-info/METADATA": b"Metadata-Version: 2.1\n"}
        rows = [f"{path},sha256={digest_of(data)},{len(data)}\n" for path, data in files.items()]
        record = f"{name}-1.dist-info/RECORD"
        files[record] = "".join([*rows, f"{record},,\n"]).encode()
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        notes = self.peer / "cache/wheels-v8/index" / name
        notes.mkdir(parents=True)
        (notes / "1-py3-none-any").symlink_to(f"../../../archive-v0/{unit}")
        (notes / "1-py3-none-any.http").write_bytes(b"hash and origin")

    def run(self, check: bool = False) -> dict[str, t.Any]:
        files = {"ssh_key_file": "/key", "ssh_known_hosts_file": "/hosts"}
        params = {"root": str(self.here), "wheelhouse": str(self.here / "built"), "peer": "ssh://root@peer:22", "poll_s": 60.0, **files}
        return wheel_cache.main(params, check)

    def units(self) -> set[str]:
        return {path.name for path in (self.here / "cache/archive-v0").glob("*")}


def digest_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch)
    made.put_wheel("engine", "aaaa")
    made.put_wheel("library", "bbbb", 3 << 20)
    (made.peer / "cache/interpreter-v5").mkdir()
    (made.peer / "cache/interpreter-v5/of-this-machine").touch()
    (made.peer / "built/flash_attn-key").mkdir(parents=True)
    (made.peer / "built/flash_attn-key/flash_attn-1.whl").write_bytes(b"hours of a compiler")
    return made


def test_wheels_notes_and_built_wheels_arrive(world: World) -> None:
    done = world.run()
    assert (done["changed"], done["finished"], done["wheels"], done["warnings"]) == (True, True, 2, [])
    assert done["plan"] == ["Take over the wheels of ssh://root@peer:22"]
    for name in (
        "archive-v0/aaaa/engine/__init__.py",
        "wheels-v8/index/engine/1-py3-none-any/engine/__init__.py",
        "wheels-v8/index/library/1-py3-none-any.http",
    ):
        assert (world.here / "cache" / name).read_bytes() == (world.peer / "cache" / name).read_bytes()
    assert (world.here / "built/flash_attn-key/flash_attn-1.whl").read_bytes() == b"hours of a compiler"
    assert sorted(path.name for path in (world.here / "cache").iterdir()) == ["archive-v0", "wheels-v8"]


def test_what_is_here_is_not_sent_again(world: World) -> None:
    first = world.run()
    world.put_wheel("third", "cccc", 10)
    again = world.run()
    assert (again["wheels"], world.units()) == (1, {"aaaa", "bbbb", "cccc"})
    assert again["size_bytes"] < first["size_bytes"] / 1000


def test_a_cut_connection_costs_the_wheel_on_its_way(world: World) -> None:
    world.answer(f"{world.command} | head -c 1000000")
    cut = world.run()
    assert world.units() == {"aaaa"}
    assert len(cut["warnings"]) == 1 and "the package index is asked for the rest" in cut["warnings"][0]
    assert not (world.here / "cache/.arriving").exists()
    world.answer(world.command)
    assert (world.run()["warnings"], world.units()) == ([], {"aaaa", "bbbb"})


def test_a_cut_connection_is_met_by_another_try(world: World) -> None:
    once = world.state / "cut-once"
    world.answer(f"if [ ! -e {once} ]; then touch {once}; {world.command} | head -c 1000000; exit; fi; {world.command}")
    assert (world.run()["warnings"], world.units()) == ([], {"aaaa", "bbbb"})


def test_damage_is_found_by_the_wheels_own_list(world: World) -> None:
    (world.peer / "cache/archive-v0/aaaa/engine/__init__.py").write_bytes(b"y" * 100)
    done = world.run()
    assert "engine-1: engine/__init__.py is not as the wheel's RECORD says" in done["warnings"][0]
    assert world.units() == {"bbbb"}


@pytest.mark.parametrize(("record", "words"), [(b"\xff\xfe\x00engine", "is not as the wheel's RECORD says"), (b'"' + b"x" * 200_000, "can't be read")])
def test_a_list_that_makes_no_sense_is_damage_too(world: World, record: bytes, words: str) -> None:
    (world.peer / "cache/archive-v0/aaaa/engine-1.dist-info/RECORD").write_bytes(record)
    done = world.run()
    assert "engine-1: " in done["warnings"][0] and words in done["warnings"][0]
    assert world.units() == {"bbbb"}


def test_a_peer_without_an_answer_is_a_warning(world: World) -> None:
    world.answer("echo 'container 129 not running!' >&2; exit 255")
    done = world.run()
    assert (done["changed"], done["wheels"]) == (False, 0)
    assert "container 129 not running!" in done["warnings"][0]


def test_a_peer_without_a_cache_is_a_warning(world: World) -> None:
    shutil.rmtree(world.peer)
    assert len(world.run()["warnings"]) == 1


def test_an_empty_cache_is_no_fault(world: World) -> None:
    shutil.rmtree(world.peer)
    (world.peer / "cache").mkdir(parents=True)
    done = world.run()
    assert (done["changed"], done["warnings"]) == (False, [])


def test_check_mode_starts_nothing(world: World) -> None:
    assert world.run(check=True)["plan"] == ["Take over the wheels of ssh://root@peer:22"]
    assert not world.here.exists() and not (world.state / "ssh.log").exists()


@pytest.mark.parametrize(
    "member",
    [
        {"name": "/etc/passwd"},
        {"name": "archive-v0/../../etc/passwd"},
        {"name": "interpreter-v5/x"},
        {"name": "wheels-v8/x", "type": tarfile.SYMTYPE, "linkname": "/etc"},
        {"name": "wheels-v8/x", "type": tarfile.SYMTYPE, "linkname": "../../etc"},
        {"name": "wheelhouse/x", "type": tarfile.SYMTYPE, "linkname": "../archive-v0/aaaa"},
        {"name": "archive-v0/aaaa/x", "type": tarfile.LNKTYPE, "linkname": "archive-v0/bbbb/y"},
        {"name": "archive-v0/aaaa/x", "type": tarfile.CHRTYPE},
    ],
    ids=lambda member: f"{member['name']} {member.get('linkname', '')}".strip(),
)
def test_what_does_not_belong_in_a_cache_is_refused(tmp_path: Path, member: dict[str, t.Any]) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        row = tarfile.TarInfo(member["name"])
        row.type, row.linkname = member.get("type", tarfile.REGTYPE), member.get("linkname", "")
        archive.addfile(row, io.BytesIO())
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|") as archive, pytest.raises(Refused):
        Intake(tmp_path / "cache", tmp_path / "built", lambda _wheels, _bytes: None).take(archive)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()]
