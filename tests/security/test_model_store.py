# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's root fills a store that a hostile container's root owns."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import typing as t
from pathlib import Path

import pytest
from attack_place import ATTACKER, COMMIT, PATIENCE_S, REPOSITORY, SWAPS, Place, outcome, remote

from ansible_collections.kpro.llm.plugins.module_utils._linux.held_folder_edge import HeldFolder
from ansible_collections.kpro.llm.plugins.module_utils._model import store_edge as store

# Every folder and every file name that hf_model has in a store.
FOLDERS = [".incoming", ".incoming/NAME", ".incoming/NAME/parts", ".incoming/NAME/files", ".incoming/NAME/files/deep", "NAME", "NAME/deep"]
NAMES = [
    ".incoming/NAME/.lock",
    ".incoming/NAME/parts/.ballast",
    ".incoming/NAME/parts/PART",
    ".incoming/NAME/parts/PART.json",
    ".incoming/NAME/parts/PART.json.new",
    ".incoming/NAME/files/config.json",
    ".incoming/NAME/files/deep/model.safetensors",
    ".incoming/NAME/files/.kpro-manifest.json",
    ".incoming/NAME/files/.kpro-manifest.json.new",
    "NAME/.kpro-manifest.json",
    "NAME/.kpro-manifest.json.new",
    "NAME/config.json",
    "NAME/deep/model.safetensors",
]


@pytest.mark.parametrize("target", ["private", "other", "nowhere"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_in_the_place_of_a_folder_leads_nowhere(place: Place, name: str, target: str) -> None:
    place.link(name, place.outside / target)
    said = outcome(place.fetch)
    assert said == "done" or "a link in a folder that others than root can change" in said


@pytest.mark.parametrize("target", ["private/secret.json", "other/config.json", "private/new", "/dev/zero"])
@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_the_place_of_a_file_is_neither_read_nor_written_nor_chowned(place: Place, name: str, target: str) -> None:
    place.link(name, place.outside / target)
    assert outcome(place.fetch) == "done"
    assert place.is_right()


@pytest.mark.parametrize("kind", ["pipe", "device", "giant", "directory"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_of_ours_makes_nothing_wait(place: Place, name: str, kind: str) -> None:
    getattr(place, kind)(name)
    began = time.monotonic()
    said = outcome(place.fetch)
    assert time.monotonic() - began < 30
    assert (said == "done" and place.is_right()) or (kind == "directory" and "refused" in said)


@pytest.mark.parametrize("name", [".incoming", ".incoming/NAME", "NAME"])
@pytest.mark.parametrize("kind", ["pipe", "device", "giant"])
def test_what_is_no_folder_is_named(place: Place, name: str, kind: str) -> None:
    getattr(place, kind)(name)
    assert outcome(place.fetch).startswith("refused")


@pytest.mark.parametrize("name", [name for name in NAMES if ".lock" not in name])
def test_a_second_name_of_another_containers_file_changes_nothing_there(place: Place, name: str) -> None:
    os.link(place.others_file, place.path(name))
    assert outcome(place.fetch) == "done"
    assert place.is_right()


@pytest.mark.parametrize("name", [".incoming", ".incoming/NAME", ".incoming/NAME/parts", ".incoming/NAME/files", "NAME"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_private_folder_of_the_node_that_was_moved_there_stays_as_it_is(place: Place, name: str, empty: bool) -> None:
    path = place.path(name)
    path.mkdir(mode=0o700)
    if not empty:
        (path / "secret").write_text("x")
    assert "it belongs to user 0" in outcome(place.fetch)
    status = os.stat(path)
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o700, 0, 0)
    assert empty or [one.name for one in path.iterdir()] == ["secret"]


def test_what_is_made_is_the_owners_without_anything_being_given_away(place: Place) -> None:
    assert outcome(place.fetch) == "done"
    assert place.is_right()
    for folder, _folders, names in os.walk(place.snapshot.path):
        assert os.stat(folder).st_uid == ATTACKER and os.stat(folder).st_mode & 0o777 == 0o755
        assert all(os.stat(os.path.join(folder, name)).st_uid == ATTACKER and os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o644 for name in names)


def test_what_an_earlier_version_left_to_root_is_no_obstacle(place: Place) -> None:
    (place.store / ".incoming").mkdir(mode=0o755)
    assert outcome(place.fetch) == "done"
    assert place.is_right()


@pytest.mark.parametrize("link", [True, False])
def test_a_store_of_root_stays_roots_and_its_administrators_links_are_followed(place: Place, link: bool) -> None:
    os.chown(place.store, 0, 0)
    if link:
        pool = place.folder / "pool"
        place.store.rmdir()
        pool.mkdir()
        place.store.symlink_to("pool")
    assert outcome(place.fetch) == "done"
    assert place.is_right()
    assert os.stat(place.snapshot.path).st_uid == 0


HOSTILE_PATHS = ["../../outside/private/new", "/etc/kpro-attack", "a/../../../outside/other/new", "..", "deep/../../x", "\x1b[2J", "a\nb", ""]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_a_manifest_names_no_path_outside(place: Place, path: str) -> None:
    row = {"size": 80, "sha256": place.files[0].sha256, "git_sha1": "", "mtime_ns": 1}
    place.write("NAME/.kpro-manifest.json", json.dumps({"format": 1, "repository": REPOSITORY, "commit": COMMIT, "files": {path: row}}).encode())
    place.write("NAME/config.json", b"x")
    outcome(place.fetch)
    outcome(lambda: place.fetch(verify_all=True))
    assert not Path("/etc/kpro-attack").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        b"\xff\xfe\x00",
        b"null",
        b'{"format": 1, "repository": [], "commit": {}, "files": []}',
        json.dumps(
            {"format": 1, "repository": REPOSITORY, "commit": COMMIT, "files": {"config.json": {"size": -1, "sha256": "../../x", "git_sha1": ""}}}
        ).encode(),
        json.dumps({"format": 1, "repository": REPOSITORY, "commit": COMMIT, "files": {"config.json": {"size": 1e400, "sha256": "", "git_sha1": ""}}}).encode(),
        json.dumps({"format": 1, "repository": REPOSITORY, "commit": COMMIT, "files": {"config.json": None}}).encode(),
    ],
    ids=range(9),
)
@pytest.mark.parametrize(
    "name",
    ["NAME/.kpro-manifest.json", ".incoming/NAME/files/.kpro-manifest.json", "org--model@0123456789ab/.kpro-manifest.json", ".incoming/NAME/parts/PART.json"],
)
def test_what_is_no_manifest_and_no_journal_counts_as_none(place: Place, name: str, text: bytes) -> None:
    place.write(name, text)
    assert outcome(place.fetch) == "done"
    assert place.is_right()


def test_a_file_of_holes_as_long_as_the_weights_is_not_read_for_days(place: Place) -> None:
    weights = remote("model.safetensors", b"x")
    giant = type(weights)(weights.path, 1 << 40, weights.sha256)
    place.giant("NAME/model.safetensors", giant.size_bytes)
    began = time.monotonic()
    # The source does not have it: what is there is judged, and nothing comes in its place.
    assert outcome(lambda: place.fetch([giant])).startswith("refused")
    assert time.monotonic() - began < 30


def test_a_file_that_grows_for_ever_is_read_to_its_length_only(place: Place) -> None:
    place.write("NAME/.kpro-manifest.json", b"{")
    place.write("NAME/config.json", b"{")
    paths = [place.path(name).relative_to(place.store) for name in ("NAME/.kpro-manifest.json", "NAME/config.json")]

    def grow() -> None:
        while paths[0].stat().st_size < 1 << 30:
            for path in paths:
                with open(path, "ab") as file:
                    file.write(b" " * (1 << 20))

    place.as_attacker(grow)
    time.sleep(0.3)
    outcome(place.fetch)


def test_a_lock_that_is_held_for_ever_ends_the_wait_and_is_named(place: Place) -> None:
    place.write(".incoming/NAME/.lock", b"")
    path = place.path(".incoming/NAME/.lock").relative_to(place.store)

    def hold() -> None:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(600)

    place.as_attacker(hold)
    time.sleep(0.3)
    said = outcome(place.fetch, PATIENCE_S + 30)
    assert ".lock: another process holds it" in said and "lslocks" in said


def test_a_folder_without_end_ends_in_a_sentence(place: Place) -> None:
    path = place.path(".incoming/org--model@000000000000/deep").relative_to(place.store)

    def dig() -> None:
        os.chdir(path.parent)
        for _level in range(3000):
            os.mkdir("d")
            os.chdir("d")
        time.sleep(600)

    place.as_attacker(dig)
    time.sleep(1.0)
    assert "nested too deeply" in outcome(place.fetch)


SWAPPED: dict[str, list[str]] = {
    "folders": [".incoming", ".incoming/NAME", ".incoming/NAME/parts", ".incoming/NAME/files", ".incoming/NAME/files/deep", "NAME", "NAME/deep"],
    "files": [
        ".incoming/NAME/parts/PART",
        ".incoming/NAME/parts/PART.json",
        ".incoming/NAME/files/config.json",
        "NAME/config.json",
        "NAME/.kpro-manifest.json",
    ],
}


@pytest.mark.parametrize("kind", SWAPPED)
@pytest.mark.parametrize("target", ["private", "other"])
def test_swaps_between_check_and_use_have_no_effect_outside(place: Place, kind: str, target: str) -> None:
    victim = getattr(place, target) if kind == "folders" else {"private": place.secret, "other": place.others_file}[target]
    place.swap([(name, victim) for name in SWAPPED[kind]])
    tries = SWAPS // 5

    def attack() -> None:
        for _number in range(tries):
            try:
                place.fetch()
            except Exception as error:
                if type(error).__name__ not in ("KproError", "Refused", "FileNotFoundError", "NotADirectoryError", "OSError", "FileExistsError"):
                    raise

    outcome(attack, 3600)
    assert place.outside_now() == place.outside_before


OPERATIONS: dict[str, t.Callable[[Place], t.Any]] = {
    "write": lambda place: HeldFolder.at(str(place.store)).folder("d", make=True).write("config.json", b"new"),
    "keep": lambda place: os.write(HeldFolder.at(str(place.store)).folder("d", make=True).keep("config.json"), b"new"),
    "create": lambda place: os.write(HeldFolder.at(str(place.store)).folder("d", make=True).create("config.json"), b"new"),
    "remove": lambda place: HeldFolder.at(str(place.store)).folder("d").remove("config.json"),
    "remove tree": lambda place: HeldFolder.at(str(place.store)).remove("d"),
    "open to readers": lambda place: store.open_to_readers(HeldFolder.at(str(place.store)), ["d/config.json"]),
    "make for": lambda place: HeldFolder.at(str(place.store / "d")).make_for(f"new{time.monotonic_ns()}", ATTACKER, ATTACKER),
    "move": lambda place: store.place(HeldFolder.at(str(place.store)), "file", HeldFolder.at(str(place.store)), "d/config.json"),
    "link": lambda place: store.place(HeldFolder.at(str(place.store)), "file", HeldFolder.at(str(place.store)), "d/config.json", copy=True),
    "set owner": lambda place: HeldFolder.at(str(place.store / "d")).set_owner_and_mode("config.json", 1, 1, 0o777),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_survives_swaps_of_folder_and_file(place: Place, operation: str) -> None:
    place.write("d/config.json", b"own")
    place.write("file", b"own")
    place.swap([("d", place.other), ("d", place.private), ("d/config.json", place.secret), ("d/config.json", place.others_file)], ["d/config.json", "file"])
    done = refused = 0
    for _number in range(SWAPS):
        try:
            OPERATIONS[operation](place)
            done += 1
        except OSError:
            refused += 1
    assert place.outside_now() == place.outside_before
    # The attack has met the operation at different moments; who owns the file is never given away at all.
    assert (done > 0) == (operation != "set owner") and (refused > 0 or operation in ("open to readers", "remove tree"))
