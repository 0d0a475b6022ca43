# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

import pytest
from hub_world import MIB, REPOSITORY, Failed, World

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: t.Any, capsys: t.Any) -> t.Iterator[World]:
    made = World(tmp_path, monkeypatch, capsys)
    yield made
    made.close()


@pytest.fixture
def kept(world: World) -> tuple[World, dict[str, t.Any]]:
    """A world whose small model has been fetched; the hub's log is empty."""
    world.put_small_model()
    result = world.run()
    world.forget_requests()
    return world, result


def test_a_model_arrives_whole_under_its_commit_and_everybody_can_read_it(world: World) -> None:
    world.put_small_model()
    world.put("deep/folder/note.txt", 10)
    result = world.run()
    assert result["changed"]
    assert result["path"] == f"{world.store}/org--model@{result['commit'][:12]}"
    assert result["size_bytes"] == 300 + 6 * MIB + 10
    assert world.same_as_hub(result["path"])
    assert stat.S_IMODE(os.stat(f"{result['path']}/deep").st_mode) == 0o755
    assert stat.S_IMODE(os.stat(f"{result['path']}/{FIRST}").st_mode) == 0o644
    assert not list((world.store / ".incoming").iterdir())


def test_an_unchanged_model_at_a_commit_is_confirmed_without_the_hub(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, first = kept
    (world.state / "argv.jsonl").unlink()
    result = world.run(revision=first["commit"])
    assert not result["changed"]
    assert (result["path"], result["size_bytes"]) == (first["path"], first["size_bytes"])
    # Neither the hub nor systemd was asked.
    assert world.requests() == [] and not (world.state / "argv.jsonl").exists()


def test_check_mode_plans_and_touches_nothing(world: World) -> None:
    world.put_small_model()
    result = world.call(check_mode=True)
    assert result["changed"] and result["finished"]
    assert result["plan"] == [f"Download {REPOSITORY}@{result['commit']} to {result['path']}"]
    assert not world.store.exists()
    assert world.units() == []


def test_patterns_choose_the_files_and_a_later_run_adds_what_they_left_out(world: World) -> None:
    world.put_small_model()
    small = world.run(include=["*.json", FIRST])
    assert sorted(path.name for path in Path(small["path"]).iterdir()) == [".kpro-manifest.json", "config.json", FIRST]
    world.forget_requests()
    whole = world.run(exclude=["*.md"])
    assert world.fetched() == [SECOND]
    assert world.same_as_hub(whole["path"])
    # What the first question asked for is still known to be right.
    assert not world.run(include=["*.json"])["changed"]


def test_a_truncated_file_is_fetched_alone(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, first = kept
    os.truncate(f"{first['path']}/{SECOND}", 1000)
    assert world.call(check_mode=True)["plan"] == [f"Fetch {SECOND} again"]
    result = world.run()
    assert result["changed"]
    assert world.fetched() == [SECOND]
    assert world.same_as_hub(result["path"])
    assert not world.run()["changed"]


def test_a_file_with_other_bytes_and_another_time_is_found_and_fetched_alone(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, first = kept
    with open(f"{first['path']}/{FIRST}", "r+b") as file:
        file.seek(MIB)
        file.write(b"\0\1\2\3")
    result = world.run()
    assert result["changed"] and result["plan"] == [f"Fetch {FIRST}"]
    assert world.fetched() == [FIRST]
    assert world.same_as_hub(result["path"])


def test_silent_damage_is_found_when_all_files_are_read(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, first = kept
    path = f"{first['path']}/{FIRST}"
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"\0\1\2\3")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not world.run()["changed"]
    assert world.run(verify="all")["changed"]
    assert world.same_as_hub(first["path"])
    assert not world.run(verify="all")["changed"]


def test_a_copied_model_is_read_once_and_not_fetched(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, first = kept
    for path in Path(first["path"]).iterdir():
        os.utime(path)
    # Also if that takes longer than one call.
    assert not world.run(poll_s=0)["changed"]
    assert world.fetched() == []
    assert world.units() and not world.run(revision=first["commit"])["changed"]


def test_a_moved_branch_fetches_only_what_changed_and_leaves_the_old_snapshot(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, first = kept
    world.put(SECOND, 2 * MIB, seed=2)
    second = world.run()
    assert second["commit"] != first["commit"]
    assert world.fetched() == [SECOND]
    assert world.same_as_hub(second["path"])
    assert os.stat(f"{first['path']}/{FIRST}").st_ino == os.stat(f"{second['path']}/{FIRST}").st_ino
    assert os.stat(f"{first['path']}/{SECOND}").st_size == 3 * MIB


def test_a_killed_download_goes_on_where_it_stopped(world: World) -> None:
    world.put("big.safetensors", 48 * MIB)
    world.faults({"kind": "stall", "match": "/cdn/*", "after_bytes": 6 * MIB, "seconds": 600, "times": 0})
    assert not world.call(poll_s=0, stall_s=600)["finished"]
    parts = ".incoming/*/parts/*.json"
    world.wait_for(lambda: any(json.loads(path.read_text(encoding="utf-8"))["written"] for path in world.store.glob(parts)))
    world.kill_worker()
    kept = json.loads(next(world.store.glob(parts)).read_text(encoding="utf-8"))["written"]
    world.forget_requests()
    world.faults()
    assert world.run()["changed"]
    assert world.same_as_hub(str(next(world.store.glob("org--model@*"))))
    # What the server sent is no measure of it: it fills the buffers of connections that are closed when a range is split.
    asked = [int(one["range"].removeprefix("bytes=").split("-")[0]) for one in world.requests() if one["bytes"] and one["range"]]
    assert kept and asked
    assert not [first for first in asked for start, end in kept if start <= first < end]


def test_a_worker_that_is_killed_while_a_call_waits_is_reported_and_the_next_run_completes(world: World) -> None:
    world.put_small_model()
    world.faults(link_bytes_per_s=MIB // 8)
    killer = threading.Thread(target=lambda: (world.wait_for(lambda: list(world.state.glob("*/pid"))), world.kill_worker()))
    killer.start()
    with pytest.raises(Failed, match=r"ended without a result \(ended by signal 9\).*what has arrived is kept"):
        world.run()
    killer.join()
    world.faults()
    assert world.same_as_hub(world.run()["path"])


def test_two_runs_at_once_fetch_one_model(world: World) -> None:
    world.put_small_model()
    world.faults(link_bytes_per_s=MIB // 8)
    started = world.call(poll_s=0)
    assert started["changed"] and not started["finished"]
    assert not world.call(poll_s=0)["finished"]
    # Another question about the same snapshot is another unit: it waits for the folder.
    assert not world.call(poll_s=0, exclude=["*.md"])["finished"]
    world.faults()
    result = world.run()
    assert world.run(exclude=["*.md"])["path"] == result["path"] and world.same_as_hub(result["path"])
    assert len(world.units()) == 2
    assert world.sent_bytes(".safetensors") == 6 * MIB


def test_no_space_is_refused_before_anything_is_fetched_with_the_sum(world: World) -> None:
    world.put_small_model()
    with pytest.raises(Failed, match=r"6.29 MB are still to be fetched and .* shall stay free, but only .* are free.*hf_model__store"):
        world.call(reserve_mib=10**9)
    assert not world.store.exists()


def test_leftovers_of_another_commit_are_removed_and_said(world: World) -> None:
    world.put_small_model()
    old = world.store / ".incoming" / "org--model@0123456789ab"
    other = world.store / ".incoming" / "org--model-2@0123456789ab"
    for folder in (old, other):
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "aa").write_bytes(b"x" * 10000)
    assert world.call(check_mode=True)["plan"][0] == f"Remove the abandoned download {old}"
    world.run()
    assert not old.exists() and other.exists()


def test_stale_parts_never_make_a_wrong_file(world: World) -> None:
    data = world.put("model.safetensors", 3 * MIB)
    world.put("config.json", 300)
    listed = world.call(check_mode=True)
    parts = world.store / ".incoming" / Path(listed["path"]).name / "parts"
    parts.mkdir(parents=True)
    key = hashlib.sha256(data).hexdigest()
    (parts / key).write_bytes(b"x" * (4 * MIB))
    (parts / f"{key}.json").write_text(json.dumps({"size": 3 * MIB, "written": [[0, 3 * MIB]]}))
    (parts / "0123").write_bytes(b"of a file that is not wanted")
    assert world.same_as_hub(world.run()["path"])


def test_a_lying_journal_costs_one_file_not_a_wrong_model(world: World) -> None:
    data = world.put("model.safetensors", 3 * MIB)
    parts = world.store / ".incoming" / Path(world.call(check_mode=True)["path"]).name / "parts"
    parts.mkdir(parents=True)
    key = hashlib.sha256(data).hexdigest()
    (parts / key).write_bytes(b"\0" * (3 * MIB))
    (parts / f"{key}.json").write_text(json.dumps({"size": 3 * MIB, "written": [[0, 2 * MIB]]}))
    assert world.same_as_hub(world.run()["path"])


LARGE = "/cdn/*.safetensors"


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "cut", "match": LARGE, "after_bytes": 2 * MIB, "times": 2},
        {"kind": "cut", "match": "*/config.json", "after_bytes": 10},
        {"kind": "status", "match": "*", "status": 503, "times": 2},
        {"kind": "status", "match": LARGE, "status": 403},
        {"kind": "status", "match": "*/resolve/*", "status": 429, "retry_after": 1},
        {"kind": "status", "match": LARGE, "status": 416},
        {"kind": "wrong", "match": LARGE, "after_bytes": 70000},
        {"kind": "wrong", "match": "*/config.json", "after_bytes": 7},
        {"kind": "short", "match": LARGE, "after_bytes": 5},
        {"kind": "page", "match": LARGE},
        {"kind": "page", "match": "*/resolve/*"},
        {"kind": "no_range", "match": LARGE, "times": 0},
        {"kind": "stall", "match": LARGE, "after_bytes": MIB, "seconds": 30},
    ],
    ids=lambda rule: f"{rule['kind']}-{rule.get('status', rule['match'].rpartition('.')[2])}",
)
def test_a_fault_that_passes_is_waited_out_and_the_model_is_right(world: World, rule: dict[str, t.Any]) -> None:
    world.put_small_model()
    world.faults(rule)
    result = world.run(stall_s=1)
    assert world.same_as_hub(result["path"])
    assert sorted(path.name for path in Path(result["path"]).iterdir()) == [".kpro-manifest.json", "config.json", FIRST, SECOND]


def test_a_list_of_several_pages_is_read_to_the_end(world: World) -> None:
    for number in range(7):
        world.put(f"file-{number}.txt", 10 + number)
    world.faults(page_size=3)
    assert world.same_as_hub(world.run()["path"])


def test_content_that_stays_wrong_fails_by_name_and_never_appears(world: World) -> None:
    world.put_small_model()
    world.faults({"kind": "wrong", "match": f"*/{FIRST}", "after_bytes": 5, "times": 0})
    with pytest.raises(Failed, match=f"{FIRST} is damaged: its content is not that of the commit; it came wrong 3 times"):
        world.run()
    assert not list(world.store.glob("org--model@*"))
    # The rest was kept: only the damaged file is fetched when the cause is gone.
    world.faults()
    world.forget_requests()
    assert world.same_as_hub(world.run()["path"])
    assert FIRST in world.fetched()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"kind": "status", "match": LARGE, "status": 416, "times": 0}, "HTTP 416"),
        ({"kind": "page", "match": "/cdn/*", "times": 0}, "a web page came instead of the file"),
        ({"kind": "status", "match": LARGE, "status": 500, "times": 0}, r"no byte has come for \d+ s \(HTTP 500\)"),
        ({"kind": "status", "match": "/api/*", "status": 502, "times": 0}, r"it does not answer \(HTTP 502\)"),
        ({"kind": "page", "match": "/api/*", "times": 0}, "the answer is not JSON.*proxy"),
    ],
)
def test_a_fault_that_stays_is_named(world: World, rule: dict[str, t.Any], words: str) -> None:
    world.put("model.safetensors", MIB)
    world.faults(rule)
    with pytest.raises(Failed, match=words):
        world.run(patience_s=2)
    assert not list(world.store.glob("org--model@*"))


def test_an_endpoint_that_is_down_is_named(world: World) -> None:
    with pytest.raises(Failed, match=r"does not answer \(Connection refused\).*hf_model__endpoint"):
        world.call(endpoint="http://127.0.0.1:9")


def test_gated_missing_and_mistyped_are_told_apart(world: World) -> None:
    world.put_small_model()
    world.faults(gated=[REPOSITORY], tokens={"hf_good": [REPOSITORY], "hf_stranger": []})
    with pytest.raises(Failed, match="it is gated and no token was given"):
        world.run()
    with pytest.raises(Failed, match="it is gated and the token's owner has not been granted access"):
        world.run(token="hf_stranger")
    with pytest.raises(Failed, match="the hub does not accept the token"):
        world.run(token="hf_mistyped")
    with pytest.raises(Failed, match="the hub knows no such repository"):
        world.run(repository="org/nothing")
    with pytest.raises(Failed, match="it has no revision nothing"):
        world.run(revision="nothing", token="hf_good")
    with pytest.raises(Failed, match="does not have the form ORG/NAME"):
        world.run(repository="nothing")


def test_a_token_opens_a_gated_model_and_is_seen_nowhere(world: World) -> None:
    world.put_small_model()
    world.faults(gated=[REPOSITORY], tokens={"hf_good": [REPOSITORY]}, link_bytes_per_s=MIB // 8)
    assert not world.call(token="hf_good", poll_s=0)["finished"]
    world.wait_for(lambda: list(world.store.glob(".incoming/*/parts/*")))
    command_line = Path(f"/proc/{world.worker_pid()}/cmdline").read_bytes() + Path(f"/proc/{world.worker_pid()}/environ").read_bytes()
    assert b"worker.pyz" in command_line and b"hf_good" not in command_line
    world.faults(gated=[REPOSITORY], tokens={"hf_good": [REPOSITORY]})
    result = world.run(token="hf_good")
    assert world.same_as_hub(result["path"])
    assert "hf_good" not in json.dumps(result)
    written = [path for root in (world.state, world.store, world.folder / "run") for path in root.rglob("*") if path.is_file()]
    assert written and not any(b"hf_good" in path.read_bytes() for path in written)
    # The host behind the redirect is another one: it gets no token.
    assert not any(one["authorization"] for one in world.requests() if one["path"].startswith("/cdn/"))
    assert all(one["authorization"] for one in world.requests() if "/resolve/" in one["path"])


def put_model_with_a_shape(world: World) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"format": "pt"}}).encode()
    (world.models / REPOSITORY).mkdir(parents=True)
    (world.models / REPOSITORY / "config.json").write_text('{"model_type": "tiny"}')
    body = len(header).to_bytes(8, "little") + header
    (world.models / REPOSITORY / "model.safetensors").write_bytes(body + bytes(12) + bytes(4 * MIB))


def test_the_shape_is_known_before_the_weights_are_fetched(world: World) -> None:
    put_model_with_a_shape(world)
    result = world.call(only="config")
    assert not result["changed"]
    assert result["config"] == {"model_type": "tiny"}
    assert result["weights"] == {"bytes_by_dtype": {"BF16": 12}, "parameters_by_dtype": {"BF16": 6}, "tensors": 1}
    assert world.sent_bytes() < MIB
    assert not world.store.exists()
    commit = world.run()["commit"]
    world.forget_requests()
    assert world.call(only="config", revision=commit)["weights"]["tensors"] == 1
    assert world.requests() == []


def test_the_shape_is_read_from_a_source_before_the_hub_is_asked_for_it(world: World, tmp_path: Path) -> None:
    put_model_with_a_shape(world)
    commit = world.run()["commit"]
    here = world.call(only="config", revision=commit)
    there = {"only": "config", "revision": commit, "store": str(tmp_path / "other")}
    world.forget_requests()
    shape = world.call(sources=["/nowhere", str(world.store)], **there)
    assert (shape["config"], shape["weights"], shape["size_bytes"]) == (here["config"], here["weights"], here["size_bytes"])
    assert not any("/resolve/" in one["path"] for one in world.requests())
    world.forget_requests()
    assert world.call(sources=[str(world.store)], offline=True, **there)["weights"] == here["weights"]
    assert world.requests() == []
    os.unlink(f"{here['path']}/config.json")
    assert world.call(sources=[str(world.store)], **there)["config"] == here["config"]
    with pytest.raises(Failed, match=r"config\.json of model org/model: no source has it"):
        world.call(sources=[str(world.store)], offline=True, **there)


def test_what_another_node_said_of_the_shape_spares_every_question(world: World, tmp_path: Path) -> None:
    put_model_with_a_shape(world)
    commit = world.run()["commit"]
    there = world.call(only="config", revision=commit)
    world.forget_requests()
    here = world.call(only="config", revision=commit, store=str(tmp_path / "other"), known=there)
    assert world.requests() == []
    assert (here["config"], here["weights"], here["commit"]) == (there["config"], there["weights"], commit)
    assert (there["missing_bytes"], here["missing_bytes"]) == (0, here["size_bytes"])
    with pytest.raises(Failed, match="what is known is about org/model"):
        world.call(only="config", revision=commit, repository="org/other", known=there)


def test_a_failure_is_reported_once_and_the_next_run_starts_anew(world: World) -> None:
    world.put_small_model()
    world.faults({"kind": "status", "match": LARGE, "status": 500, "times": 0})
    with pytest.raises(Failed):
        world.run(patience_s=1)
    world.faults()
    assert world.same_as_hub(world.run(patience_s=1)["path"])


def test_progress_has_share_rate_and_rest(world: World) -> None:
    world.put("model.safetensors", 16 * MIB)
    world.faults(link_bytes_per_s=MIB)
    pattern = re.compile(r"Downloading \d+ % of 16.8 MB, 0 of 1 files, [\d.]+ [kM]B/s, \d+ (s|min) left")
    lines: list[str] = []
    while not (result := world.call(poll_s=1))["finished"]:
        lines.append(result["progress"])
        if pattern.fullmatch(lines[-1]):
            world.faults()
    assert any(map(pattern.fullmatch, lines)), lines


def test_a_folder_gives_the_bytes_and_the_hub_only_the_list(kept: tuple[World, dict[str, t.Any]], tmp_path: Path) -> None:
    world, first = kept
    result = world.run(store=str(tmp_path / "other"), sources=["/nowhere", str(world.store)])
    assert world.same_as_hub(result["path"]) and result["path"] != first["path"]
    assert world.fetched() == []
    assert result["origins"] == {str(world.store): first["size_bytes"]}
    assert world.warned == ["/nowhere could not be used: /nowhere does not have it"]


def test_without_the_hub_a_commit_comes_from_a_store_that_has_it(kept: tuple[World, dict[str, t.Any]], tmp_path: Path) -> None:
    world, first = kept
    options = {"store": str(tmp_path / "other"), "endpoint": "http://127.0.0.1:9", "sources": [str(world.store)]}
    assert world.same_as_hub(world.run(revision=first["commit"], **options)["path"])
    assert world.requests() == []
    with pytest.raises(Failed, match="does not answer"):
        world.run(revision="main", **options)


def test_offline_nobody_asks_the_hub(kept: tuple[World, dict[str, t.Any]], tmp_path: Path) -> None:
    world, first = kept
    options = {"store": str(tmp_path / "other"), "offline": True, "revision": first["commit"]}
    assert world.same_as_hub(world.run(sources=[str(world.store)], **options)["path"])
    options["store"] = str(tmp_path / "third")
    with pytest.raises(Failed, match=r"no source has a manifest of this commit"):
        world.run(sources=["/nowhere"], **options)
    os.unlink(f"{first['path']}/{SECOND}")
    with pytest.raises(Failed, match=rf"{SECOND} of org/model: no place has it \({world.store}: .* does not have it\)"):
        world.run(sources=[str(world.store)], **options)
    with pytest.raises(Failed, match="only the hub knows its commit"):
        world.run(sources=[str(world.store)], **{**options, "revision": "main"})
    assert world.requests() == []


def test_what_the_node_fetches_for_a_container_belongs_to_the_containers_root(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    world.put_small_model()
    world.put("deep/folder/note.txt", 10)
    world.store.mkdir()
    os.chown(world.store, 100000, 100000)
    result = world.run()
    names = [Path(result["path"]), *Path(result["path"]).rglob("*")]
    assert len(names) == 8 and {(one.stat().st_uid, one.stat().st_gid) for one in names} == {(100000, 100000)}


def test_a_damaged_source_is_not_believed(kept: tuple[World, dict[str, t.Any]], tmp_path: Path) -> None:
    world, first = kept
    os.truncate(f"{first['path']}/config.json", 17)
    with open(f"{first['path']}/{FIRST}", "r+b") as file:
        file.write(b"damaged")
    result = world.run(store=str(tmp_path / "other"), sources=[first["path"]])
    assert world.same_as_hub(result["path"])
    assert world.fetched() == ["config.json", FIRST]


def test_an_http_mirror_of_plain_files_gives_the_bytes(kept: tuple[World, dict[str, t.Any]], tmp_path: Path) -> None:
    world, _first = kept
    argv = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(world.store), "0"]
    mirror = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert mirror.stdout
        port = re.search(r"port (\d+)", mirror.stdout.readline())
        assert port
        result = world.run(store=str(tmp_path / "other"), sources=[f"http://127.0.0.1:{port[1]}"])
    finally:
        mirror.kill()
        mirror.wait()
    assert world.same_as_hub(result["path"])
    assert world.fetched() == []


def test_a_peer_over_ssh_gives_the_bytes(kept: tuple[World, dict[str, t.Any]], tmp_path: Path) -> None:
    world, _first = kept
    source = f"ssh://root@peer:2222{world.store}"
    result = world.run(store=str(tmp_path / "other"), sources=[source])
    assert world.same_as_hub(result["path"])
    assert result["origins"] == {source: result["size_bytes"]}
    assert world.fetched() == []
    for line in (world.state / "ssh.log").read_text().splitlines():
        assert line.startswith("-T -o BatchMode=yes") and " -p 2222 -- root@peer " in line


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'root@peer: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("echo 'Host key verification failed.' >&2; exit 255", "Host key verification failed"),
        ("exec sleep 600", "no bytes for too long"),
        ("echo 'ssh: connect to host peer port 22: Connection refused' >&2; exit 255", "Connection refused"),
    ],
    ids=["login", "host key", "hangs", "refused"],
)
def test_a_peer_that_does_not_answer_is_a_warning_and_the_hub_gives_the_bytes(world: World, script: str, words: str) -> None:
    world.put_small_model()
    (world.state / "ssh-fault").write_text(f"{script}\n")
    result = world.run(sources=["ssh://root@peer/srv/models"], stall_s=1, patience_s=8, poll_s=2)
    assert world.same_as_hub(result["path"])
    assert len(world.warned) == 1
    assert world.warned[0].startswith("ssh://root@peer/srv/models could not be used: ssh: ") and words in world.warned[0]
    assert list(result["origins"]) == [world.endpoint]


@pytest.mark.parametrize("source", ["models", "ftp://a/b", "ssh://-oProxyCommand=x/y"])
def test_a_source_of_another_form_is_refused(world: World, source: str) -> None:
    world.put_small_model()
    with pytest.raises(Failed, match="is no absolute path, ssh"):
        world.run(sources=[source])


@pytest.mark.parametrize("size_bytes", [0, 15, 3 * MIB])
def test_two_files_of_one_content_are_fetched_once_and_both_are_there(world: World, size_bytes: int) -> None:
    data = world.put("tokenizer.model", size_bytes)
    for twin in ("tokenizer.model.v3", "deep/tokenizer.model"):
        (world.models / REPOSITORY / twin).parent.mkdir(exist_ok=True)
        (world.models / REPOSITORY / twin).write_bytes(data)
    world.put("config.json", 300)
    result = world.run()
    assert world.same_as_hub(result["path"])
    assert world.sent_bytes("/tokenizer.model") + world.sent_bytes("/tokenizer.model.v3") <= max(size_bytes, 1)
    assert not world.run()["changed"]
    # One of them lost: its twin is there, nothing has to come.
    world.forget_requests()
    Path(result["path"], "tokenizer.model.v3").unlink()
    assert world.run()["changed"]
    assert world.same_as_hub(result["path"]) and world.sent_bytes(".v3") == 0


def test_two_files_of_one_content_are_both_taken_from_another_snapshot(kept: tuple[World, dict[str, t.Any]]) -> None:
    world, _first = kept
    source = world.models / REPOSITORY
    for name in ("one.safetensors", "two.safetensors"):
        (source / name).write_bytes((source / SECOND).read_bytes())
    second = world.run()
    assert world.same_as_hub(second["path"])
    assert world.fetched() == []
