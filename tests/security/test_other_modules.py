# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All other modules that read, write, give away or remove where somebody else owns the folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import time
import typing as t
from pathlib import Path

import pytest
from attack_place import ATTACKER, SWAPS, Place, outcome

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis import diagnose_with_plan_edge as _explain
from ansible_collections.kpro.llm.plugins.module_utils._environment import source_worker as _source_worker
from ansible_collections.kpro.llm.plugins.module_utils._environment.source_package import MANIFEST
from ansible_collections.kpro.llm.plugins.module_utils._environment.wheel_stream_edge import Intake
from ansible_collections.kpro.llm.plugins.module_utils._job.status_edge import JobStatus
from ansible_collections.kpro.llm.plugins.module_utils._linux import text_file_edge as _text_file
from ansible_collections.kpro.llm.plugins.module_utils._linux.held_folder_edge import HeldFolder, Identity, Refused, acting_as
from ansible_collections.kpro.llm.plugins.module_utils._linux.text_file_edge import TextFile
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_edge import NotThere
from ansible_collections.kpro.llm.plugins.module_utils._model.sources_edge import FolderSource, manifest_of
from ansible_collections.kpro.llm.plugins.module_utils._pve.host_edge import Host
from ansible_collections.kpro.llm.plugins.module_utils._ready.clock_edge import WaitRecord
from ansible_collections.kpro.llm.plugins.module_utils._service import edge as _service_edge
from ansible_collections.kpro.llm.plugins.module_utils._service import stale_files_edge as _stale_files
from ansible_collections.kpro.llm.plugins.module_utils._vram.folder_edge import ModelFolder

ROOT = Path(__file__).resolve().parents[2]


# -- reading ------------------------------------------------------------------


def source_gives(path: str) -> t.Any:
    """Read a file of a folder that is given as a source, as a transfer does it."""
    try:
        answer = FolderSource(os.path.dirname(path), "no-snapshot").open(os.path.basename(path), 0, None)
    except NotThere:
        return None
    buffer = memoryview(bytearray(1 << 16))
    return answer.readinto(buffer) or None


def header(path: str) -> t.Any:
    """Read the tensors of a folder with a safetensors file."""
    folder = Path(path).parent
    config = folder / "config.json"
    if not os.path.lexists(config):
        config.write_text("{}")
    return ModelFolder(str(folder)).entries() or None


READERS: dict[str, tuple[str, t.Callable[[str], t.Any]]] = {
    "note of a start": ("started.json", lambda path: any(_service_edge.read_start_note(path)) or None),
    "text file": ("memory.events", lambda path: _text_file.read_text_file(path) and None),
    "clock of a wait": ("ready.json", lambda path: WaitRecord(path).elapsed_s("secret") or WaitRecord(path).memory_events("secret") or None),
    "status of a job": ("status.json", lambda path: JobStatus(os.path.dirname(path)).read() and "secret"),
    "config of an explanation": ("config.json", lambda path: _explain._config_of(os.path.dirname(path))),
    "config of a plan": ("config.json", lambda path: ModelFolder(os.path.dirname(path)).config()),
    "index of a plan": ("model.safetensors.index.json", header),
    "header of a plan": ("model.safetensors", header),
    "file of a source": ("model.safetensors", source_gives),
    "manifest of a source": (".kpro-manifest.json", lambda path: manifest_of(FolderSource(os.path.dirname(path), "none"), "org/model", "c" * 40)),
    "wheel that is kept": (MANIFEST, lambda path: _source_worker.kept_wheel(os.path.dirname(path))),
}
KINDS: dict[str, t.Callable[[Place, str], None]] = {
    "pipe": lambda place, name: place.pipe(name),
    "device": lambda place, name: place.device(name),
    "giant": lambda place, name: place.giant(name),
    "directory": lambda place, name: place.directory(name),
    "link to a secret": lambda place, name: place.link(name, place.secret),
    "link to another container": lambda place, name: place.link(name, place.others_file),
    "link to a device": lambda place, name: place.link(name, Path("/dev/zero")),
    "link to itself": lambda place, name: place.link(name, place.path(name)),
    "link out by steps": lambda place, name: place.link(name, Path("../../outside/private/secret.json")),
    "nested": lambda place, name: place.write(name, b"[" * 200_000),
    "numbers": lambda place, name: place.write(name, b'{"invocation_id": ' + b"9" * 100_000 + b"}"),
    "no text": lambda place, name: place.write(name, bytes(range(256)) * 100),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_waits_for_nothing_and_takes_only_what_is_the_owners(place: Place, reader: str, kind: str) -> None:
    name, read = READERS[reader]
    KINDS[kind](place, f"folder/{name}")
    began = time.monotonic()
    said = outcome(lambda: read(str(place.store / "folder" / name)))
    assert time.monotonic() - began < 20
    # A source gives zeros of a file of holes, as many as are asked for; all others give nothing.
    assert "secret" not in said.partition("refused")[0] and "others" not in said
    assert said == "done" or said.startswith("refused") or (reader, kind) in (("file of a source", "giant"), ("file of a source", "nested")) or "done: " in said


def test_links_of_one_owner_are_followed_as_a_hubs_cache_has_them(place: Place) -> None:
    place.write("models--org--model/blobs/abc", b'{"model_type": "own"}')
    place.link("models--org--model/snapshots/main/config.json", Path("../../blobs/abc"))
    assert ModelFolder(str(place.store / "models--org--model/snapshots/main")).config() == {"model_type": "own"}
    with pytest.raises(OSError):
        _text_file.open_regular(str(place.store / "models--org--model/snapshots/main/config.json"))


def test_a_note_that_is_swapped_all_the_time_is_the_owners_or_none(place: Place) -> None:
    place.write("run/started.json", json.dumps({"digest": "own", "invocation_id": "own"}).encode())
    place.pipe("run/pipe")
    place.swap([("run/started.json", place.secret), ("run/started.json", place.store / "run/pipe"), ("run", place.private)], ["run/started.json"])
    path = str(place.store / "run/started.json")
    found: set[tuple[str, str]] = set()
    until = time.monotonic() + 120
    for _number in range(SWAPS):
        found.add(_service_edge.read_start_note(path))
        assert time.monotonic() < until or SWAPS > 500
    assert found <= {("own", "own"), ("", "")}


# -- writing, giving away -----------------------------------------------------


@pytest.mark.parametrize("target", ["private", "other", "new"])
def test_a_text_file_is_not_written_through_a_link(place: Place, target: str) -> None:
    place.link("etc", place.outside / target)
    said = outcome(lambda: _text_file.write_text_file(TextFile(str(place.store / "etc/secret.json"), "x", 0o666, str(ATTACKER), str(ATTACKER))))
    assert said.startswith("refused")


def test_a_text_file_of_root_is_not_left_where_another_one_can_take_it(place: Place) -> None:
    assert outcome(lambda: _text_file.write_text_file(TextFile(str(place.store / "unit"), "key", 0o600, "root", "root"))).startswith("refused")
    assert not (place.store / "unit").exists()


@pytest.mark.parametrize("target", ["private/secret.json", "other/config.json"])
def test_owner_and_mode_are_not_set_through_a_link(place: Place, target: str) -> None:
    place.link("unit", place.outside / target)
    assert outcome(lambda: _text_file.set_owner_and_mode(TextFile(str(place.store / "unit"), "", 0o666, str(ATTACKER), str(ATTACKER)))).startswith("refused")


@pytest.mark.parametrize("name", ["mount", "mount/deep", "mount/deep/er"])
@pytest.mark.parametrize("target", ["private", "other", "private/inner"])
def test_a_folder_for_a_mount_is_neither_made_nor_given_away_through_a_link(place: Place, name: str, target: str) -> None:
    place.link("mount", place.outside / target)
    host = Host()
    if name == "mount":
        assert "link" in host.look(str(place.store / name)).kind
    said = outcome(lambda: host.make_folder(str(place.store / name / "new"), ATTACKER, ATTACKER))
    assert "refused" in said and "Make it on the node by hand" in said


def test_a_folder_for_a_mount_in_a_containers_own_folder_is_that_containers_and_in_roots_it_is_given(place: Place) -> None:
    host = Host()
    host.make_folder(str(place.store / "a/b"), ATTACKER, ATTACKER)
    host.make_folder(str(place.source / "c/d"), ATTACKER, ATTACKER)
    host.make_folder(str(place.source / "read-only"), 0, 0)
    owners = [os.stat(path).st_uid for path in (place.store / "a/b", place.store / "a", place.source / "c/d", place.source / "c", place.source / "read-only")]
    assert owners == [ATTACKER, ATTACKER, ATTACKER, 0, 0]
    # For a third one nothing is made in the attacker's folder.
    assert "refused" in outcome(lambda: host.make_folder(str(place.store / "x"), 1234, 1234))


def test_a_folder_for_a_mount_survives_swaps(place: Place) -> None:
    place.directory("a")
    place.swap([("a", place.private), ("a", place.other), ("a/inner", place.private / "inner")], ["a/inner/x"])
    host, refused = Host(), 0
    for number in range(SWAPS):
        refused += "refused" in _quick(lambda number=number: host.make_folder(str(place.store / f"a/inner/n{number}"), ATTACKER, ATTACKER))
    assert refused and place.outside_now() == place.outside_before


def _quick(work: t.Callable[[], t.Any]) -> str:
    from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError

    try:
        work()
    except (KproError, OSError) as error:
        return f"refused: {error}"
    return "done"


def test_what_a_container_shows_of_its_devices_is_not_the_nodes(place: Place) -> None:
    root = place.folder / "proc/77/root"
    (root / "dev").mkdir(parents=True)
    for path in (root, root / "dev"):
        os.chown(path, ATTACKER, ATTACKER)
    (root / "dev/nvidia0").symlink_to("/dev/null")
    (root / "dev/nvidia1").symlink_to(place.secret)
    os.lchown(root / "dev/nvidia0", ATTACKER, ATTACKER)
    host = Host(place.folder)
    assert host.look("/dev/null").kind == "absent"
    assert "link" in host.look_inside(77, "/dev/nvidia0").kind and "link" in host.look_inside(77, "/dev/nvidia1").kind
    assert host.look_inside(77, "/dev/nvidia2").kind == "absent"


# -- removing -----------------------------------------------------------------


@pytest.mark.parametrize("target", ["private", "other"])
def test_a_stale_file_is_removed_only_where_it_was_seen(place: Place, target: str) -> None:
    (place.outside / target / "lock").write_text("x")
    place.outside_before = place.outside_now()
    place.write("cache/a/lock", b"")
    found = _stale_files.stale_files(ATTACKER, str(place.store / "shm"), [str(place.store)], set())
    assert found == [str(place.store / "cache/a/lock")]
    (place.store / "cache/a").rename(place.store / "cache/b")
    place.link("cache/a", place.outside / target)
    assert outcome(lambda: _stale_files.remove_file(found[0])) == "done"
    assert (place.store / "cache/b/lock").exists()


def test_removal_of_stale_files_survives_swaps(place: Place) -> None:
    (place.other / "lock").write_text("x")
    (place.private / "lock").write_text("x")
    os.chown(place.other / "lock", ATTACKER, ATTACKER)
    place.outside_before = place.outside_now()
    place.write("cache/a/lock", b"")
    place.swap([("cache/a", place.private), ("cache/a", place.other), ("cache", place.private)], ["cache/a/lock"])
    for _number in range(SWAPS):
        _quick(lambda: _stale_files.remove_file(str(place.store / "cache/a/lock")))
    assert place.outside_now() == place.outside_before


# -- a build by the service's user ---------------------------------------------


def archive(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in ("ext-1/setup.py", "ext-1/a/secret.json", "ext-1/a/b/config.json"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))


def unpacking(place: Place) -> dict[str, t.Any]:
    folder = place.source / "build"
    folder.mkdir(exist_ok=True)
    return {"archive": str(place.store / "archive"), "path": str(folder / "source"), "omit": [], "user": {"uid": ATTACKER, "gid": ATTACKER}}


@pytest.mark.parametrize("kind", ["pipe", "device", "giant", "directory", "link"])
def test_a_source_archive_is_a_plain_file(place: Place, kind: str) -> None:
    name = "archive/ext-1.tar.gz"
    place.link(name, place.secret) if kind == "link" else getattr(place, kind)(name)
    assert outcome(lambda: _source_worker.unpack(unpacking(place))).startswith("refused")


@pytest.mark.parametrize("kind", ["pipe", "device", "giant", "directory", "link"])
def test_the_note_in_an_unpacked_source_makes_nothing_wait(place: Place, kind: str) -> None:
    archive(place.path("archive/ext-1.tar.gz"))
    step = unpacking(place)
    source = Path(step["path"])
    source.mkdir()
    os.chown(source, ATTACKER, ATTACKER)
    place.link("note", place.secret) if kind == "link" else getattr(place, kind)("note")
    (place.store / "note").rename(source / _source_worker.UNPACKED)
    assert outcome(lambda: _source_worker.unpack(step)) == "done"
    assert (source / "setup.py").exists() and os.stat(source / "a/b/config.json").st_uid == ATTACKER


def test_giving_an_unpacked_source_away_survives_swaps(place: Place) -> None:
    top = place.path("tree")
    (top / "a/b").mkdir(parents=True)
    names = [f"a/b/{number}" for number in range(20)]
    (place.private / "b").mkdir()
    for folder in (place.private, place.private / "b", place.other):
        for number in range(20):
            (folder / str(number)).write_text("x")
    place.outside_before = place.outside_now()
    place.swap([("tree/a", place.private), ("tree/a/b", place.private), ("tree/a/b", place.other)])
    for _number in range(SWAPS // 10):
        for name in ("", "a", *names, "a/b"):
            _quick(lambda name=name: os.chown(top / name, 0, 0, follow_symlinks=False) if name in ("", "a") else None)
        for name in names:
            _quick(lambda name=name: (top / name).touch() if not (top / "a").is_symlink() and not (top / "a/b").is_symlink() else None)
        _quick(lambda: _source_worker._give(top, {"uid": ATTACKER, "gid": ATTACKER}))
    assert {path: one[:3] for path, one in place.outside_now().items()} == {path: one[:3] for path, one in place.outside_before.items()}
    place.end()
    place.outside_before = place.outside_now()


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "link"])
def test_a_built_wheel_is_a_plain_file(place: Place, kind: str) -> None:
    name = "out/ext-1-py3-none-any.whl"
    place.link(name, place.secret) if kind == "link" else getattr(place, kind)(name)
    step = {"out": str(place.store / "out"), "folder": str(place.source / "kept"), "manifest_name": MANIFEST, "manifest": {}, "build": str(place.store / "out")}
    assert outcome(lambda: _source_worker.keep(step)).startswith("refused")
    assert not (place.source / "kept").exists()


@pytest.mark.parametrize("target", ["private", "other"])
def test_the_folders_of_a_build_are_not_given_away_through_a_link(place: Place, target: str) -> None:
    place.link("build", place.outside / target)
    step = {"paths": [str(place.store / "build/out"), str(place.store / "build")], "user": {"uid": 1234, "gid": 1234}}
    said = outcome(lambda: _quick(lambda: _source_worker.make_folders(step)))
    assert "refused" in said


# -- a peer's wheels ------------------------------------------------------------


def member(name: str, data: bytes = b"x", **more: t.Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data) if "type" not in more else 0
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


LINK = {"type": tarfile.SYMTYPE}
STREAMS: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "a file through a link": [member("wheels-v5/a", linkname="../archive-v0/kept", **LINK), member("wheels-v5/a/module.py", b"evil")],
    "a link in a wheel": [member("archive-v0/kept/more", linkname="../archive-v0/other", **LINK)],
    "a link outside": [member("wheels-v5/a", linkname="/etc", **LINK)],
    "a link by steps": [member("wheels-v5/a", linkname="../../../outside/private", **LINK)],
    "a path outside": [member("wheels-v5/../../../outside/private/new")],
    "an absolute path": [member("/wheels-v5/new")],
    "a hard link": [member("wheels-v5/a", linkname="archive-v0/kept/module.py", type=tarfile.LNKTYPE)],
    "a device": [member("wheels-v5/a", type=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "a pipe": [member("wheels-v5/a", type=tarfile.FIFOTYPE)],
    "another bucket": [member("interpreter-v4/new")],
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_wheels_changes_nothing_that_is_there(place: Place, name: str) -> None:
    cache, house = place.source / "cache", place.source / "wheelhouse"
    kept = cache / "archive-v0/kept"
    kept.mkdir(parents=True)
    (kept / "module.py").write_text("good")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for info, content in STREAMS[name]:
            tar.addfile(info, io.BytesIO(content) if info.size else None)
    data.seek(0)

    def take() -> None:
        with tarfile.open(fileobj=data, mode="r|") as stream:
            Intake(cache, house, lambda _wheels, _size: None).take(stream)

    with pytest.raises(Exception, match=r"is no|is a link|not a plain"):
        take()
    assert (kept / "module.py").read_text() == "good" and [path.name for path in kept.iterdir()] == ["module.py"]
    assert not (cache / ".arriving").exists()


def test_a_file_of_the_cache_is_replaced_and_not_written_into(place: Place) -> None:
    cache = place.source / "cache"
    (cache / "wheels-v5").mkdir(parents=True)
    os.link(place.others_file, cache / "wheels-v5/note")
    info, data = member("wheels-v5/note", b"new")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(info, io.BytesIO(data))
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        Intake(cache, place.source / "house", lambda _wheels, _size: None).take(tar)
    assert (cache / "wheels-v5/note").read_bytes() == b"new"


# -- the gate, which runs as the service's user ---------------------------------


@pytest.fixture
def gate() -> dict[str, t.Any]:
    text = (ROOT / "roles/sglang_server/templates/gate.py.j2").read_text().replace("{{ __sglang_server_gate_settings | to_json }}", "{}")
    names: dict[str, t.Any] = {"__name__": "gate"}
    exec(compile(text, "gate.py", "exec"), names)  # noqa: S102  # our own template
    return names


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_the_gate_does_not_wait_for_a_model(place: Place, gate: dict[str, t.Any], kind: str) -> None:
    getattr(place, kind)("model/config.json")

    def check() -> str:
        try:
            gate["check_model"](str(place.store / "model"))
        except gate["Refusal"] as refusal:
            return f"{refusal.code} {refusal}"
        return "passed"

    assert "78 model" in outcome(check, 10)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_the_gate_leaves_its_note_in_nobodys_file(place: Place, gate: dict[str, t.Any], kind: str) -> None:
    place.link("run/started.json", place.secret) if kind == "link" else place.pipe("run/started.json")
    assert outcome(lambda: gate["note_start"](str(place.store / "run/started.json")), 10) == "done"
    assert stat.S_ISREG(os.lstat(place.store / "run/started.json").st_mode)


# -- the edge itself --------------------------------------------------------------


def test_rights_are_given_back_whatever_happens(place: Place) -> None:
    with pytest.raises(ZeroDivisionError), acting_as(Identity(ATTACKER, ATTACKER)):
        with pytest.raises(PermissionError):
            place.secret.read_bytes()
        raise ZeroDivisionError
    assert place.secret.read_bytes()


@pytest.mark.parametrize("name", ["..", "a/../../outside", "../outside/private", "/etc"])
def test_no_name_leads_out_of_a_held_folder(place: Place, name: str) -> None:
    place.directory("a")
    folder = HeldFolder.at(str(place.store))
    for work in (folder.folder, folder.read, folder.status, folder.remove, folder.create, folder.keep, lambda one: folder.write(one, b""), folder.strictly):
        if name == "/etc" and work in (folder.folder, folder.read, folder.status, folder.strictly):
            # As everywhere below a folder: a leading slash means nothing.
            continue
        with pytest.raises((Refused, FileNotFoundError)):
            work(name)


def test_hashes_are_of_plain_files(place: Place) -> None:
    place.pipe("pipe")
    with pytest.raises(OSError, match="pipe"):
        HeldFolder.at(str(place.store)).open("pipe")
    assert hashlib.sha256(HeldFolder.at(str(place.source)).read("config.json")).hexdigest() == place.files[0].sha256
