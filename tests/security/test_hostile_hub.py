# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hub, a mirror, a peer or a model that wants to do harm, against every module that reads it.

Each trial runs the real module and its real worker against a server of loopback. Whatever it sends: nothing appears outside the
store's own folders, no token goes anywhere else, the call ends in time, and it ends with a right model or one clear sentence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import sys
import time
import typing as t
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "plugins" / "modules"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from hostile_server import COMMIT, Answer, Handler, HostileServer, blob_id, row, shard
from hub_world import Failed, World

from ansible_collections.kpro.llm.plugins.module_utils._core.shown_text import hides
from ansible_collections.kpro.llm.plugins.module_utils._model import ensure as _model_ensure
from ansible_collections.kpro.llm.plugins.module_utils._model import hub_edge as _hub_edge
from ansible_collections.kpro.llm.plugins.modules import sglang_plan

TOKEN = "hf_secretofthistest"
LIMIT_S = 60.0
TENSOR = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
# Larger than what is read of a shard for its header, so that the worker has pieces to fetch.
FILES = {
    "config.json": b'{"architectures": ["X"]}',
    INDEX: json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode(),
    SHARDS[0]: shard({"a": TENSOR}, bytes(4) + os.urandom(300_000)),
    SHARDS[1]: shard({"b": TENSOR}, bytes(4) + os.urandom(300_000)),
}
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@dataclasses.dataclass
class Range:
    """One trial's surroundings."""

    world: World
    hub: HostileServer
    elsewhere: HostileServer

    @property
    def store(self) -> Path:
        return self.world.store


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> t.Iterator[Range]:
    world = World(tmp_path, monkeypatch, capsys)
    # The product's own limits of a minute and more, shortened for what runs in this process.
    monkeypatch.setattr(_hub_edge, "LONGEST_HEAD_S", 0.7)
    monkeypatch.setattr(_hub_edge, "LONGEST_BODY_S", 0.7)
    monkeypatch.setattr(_model_ensure, "ASKS", 2)
    made = Range(world, HostileServer(FILES), HostileServer(FILES))
    # What a way out of the store would hit.
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "canary").write_text("untouched")
    yield made
    world.close()
    made.hub.close()
    made.elsewhere.close()


def tree(root: Path, *left_out: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, owner and content of everything below a folder, but for some folders."""
    found = {}
    for path in sorted(root.rglob("*")):
        if any(path == one or one in path.parents for one in left_out):
            continue
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_uid, content)
    return found


def check_store(store: Path) -> None:
    """Nothing lies in the store but the folders of this repository, with plain files and folders in them."""
    if not store.exists():
        return
    tops = {path.name for path in store.iterdir()} | ({path.name for path in (store / ".incoming").iterdir()} if (store / ".incoming").exists() else set())
    assert tops <= {".incoming", f"org--model@{COMMIT[:12]}"}, tops
    for path in store.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), path
        assert not mode & (stat.S_ISUID | stat.S_ISGID | 0o022), path


def trial(place: Range, words: str | None, **options: t.Any) -> dict[str, t.Any] | None:
    """Call the module until it has finished; ``words`` is what its one sentence has to say, None if the model has to be right in the end."""
    world = place.world
    mine = (world.store, world.state, world.folder / "run")
    before = tree(world.folder, *mine)
    began = time.monotonic()
    result, failure = None, None
    given = {"endpoint": place.hub.address, "token": TOKEN, "stall_s": 1, "patience_s": 3, **options}
    try:
        result = world.run(**given)
    except Failed as error:
        failure = error.result
    assert time.monotonic() - began < LIMIT_S
    assert tree(world.folder, *mine) == before
    check_store(world.store)
    assert not any(TOKEN in json.dumps(seen) for seen in place.elsewhere.seen)
    for text in [*world.warned, *([failure["msg"]] if failure else [])]:
        assert not hides(text) and "\n" not in text and len(text) < 1000 and "Traceback" not in text and TOKEN not in text, text
    if words is None:
        assert failure is None, failure
        return result
    assert failure is not None and failure["msg"].endswith("."), (failure, result)
    assert words in failure["msg"], failure["msg"]
    return None


def listed(*rows: t.Any) -> t.Callable[[Range], None]:
    """A hub whose listing has these rows beside those of the good files."""

    def arrange(place: Range) -> None:
        place.hub.listing = [*place.hub.rows(), *rows]

    return arrange


def named(path: t.Any) -> t.Callable[[Range], None]:
    return listed(row(path, b"x"))


def answering(part: str, answer: Answer) -> t.Callable[[Range], None]:
    def arrange(place: Range) -> None:
        place.hub.answers[part] = answer

    return arrange


def with_file(path: str, data: bytes) -> t.Callable[[Range], None]:
    """A hub that is honest about a repository with this file."""

    def arrange(place: Range) -> None:
        place.hub.files[path] = data

    return arrange


def leading(part: str, to: str, status: int = 302) -> t.Callable[[Range], None]:
    """A hub that redirects; ``ELSEWHERE`` stands for another server of loopback."""

    def arrange(place: Range) -> None:
        address = to.replace("ELSEWHERE", place.elsewhere.address)
        place.hub.answers[part] = lambda handler: handler.say(status, b"", Location=address)

    return arrange


def itself(handler: Handler) -> None:
    handler.json(handler.server.rows()[:1], Link=f'<{handler.server.address}{handler.path}>; rel="next"')


def without_end(handler: Handler) -> None:
    number = len(handler.server.seen)
    handler.json([{"type": "directory", "path": f"d{number}"}], Link=f'<{handler.server.address}/api/models/org/model/tree/x?cursor={number}>; rel="next"')


def next_elsewhere(place: Range) -> None:
    link = f'<{place.elsewhere.address}/api/models/org/model/tree/{COMMIT}?cursor=1>; rel="next"'
    place.hub.answers["/tree/"] = lambda handler: handler.json(handler.server.rows(), Link=link)


LISTINGS: dict[str, tuple[t.Callable[[Range], None], str]] = {
    "a name with ..": (named("../../outside/x"), "lies outside the snapshot"),
    "a name that climbs in the middle": (named("a/../../../outside/x"), "lies outside the snapshot"),
    "an absolute name": (named("/tmp/kpro-hostile"), "lies outside the snapshot"),
    "a name with NUL": (named("a\0b"), "lies outside the snapshot"),
    "a name with a line break": (named("a\nb"), "can't be seen"),
    "a name that clears the screen": (named("a\x1b[2J"), "can't be seen"),
    "a name that turns around": (named("a\u202ecod.exe"), "can't be seen"),
    "a name of half a character": (named("a\ud800"), "can't be seen"),
    "a name with a backslash": (named("..\\..\\outside"), "no plain path"),
    "a name with an empty part": (named("a//b"), "no plain path"),
    "a name that is too long": (named("x" * 300), "too long"),
    "a name that is a number": (named(7), "is no text"),
    "the manifest's own name": (named(".kpro-manifest.json"), "the store's own"),
    "a file that is also a folder": (listed(row("a", b"x"), row("a/b", b"x")), "both as a file and as a folder"),
    "one name twice": (listed(row("a", b"x"), row("a", b"y")), "twice"),
    "names that look the same": (listed(row("\u00e9", b"x"), row("e\u0301", b"x")), "look the same"),
    "a negative size": (listed(row("a", b"x", size=-1)), "its size of a"),
    "a huge size": (listed(row("a", b"x", size=10**30)), "its size of a"),
    "a size that is a text": (listed(row("a", b"x", size="1")), "its size of a"),
    "a size that is not a number": (answering("/tree/", lambda handler: handler.json([row("a", b"x", size=float("nan"))])), "its size of a"),
    "a hash that is a path": (listed(row("a.bin", b"x", lfs={"oid": "../../../outside/x", "size": 1})), "its hash of"),
    "a blob id that is a path": (listed(row("a", b"x", oid="../../../outside/x")), "its hash of"),
    "a hash that is a list": (listed(row("a", b"x", oid=["x"])), "its hash of"),
    "no hash": (listed(row("a", b"x", oid="")), "its hash of"),
    "LFS that is a text": (listed(row("a", b"x", lfs="x")), "not one of a model hub"),
    "rows that are texts": (listed("x"), "not one of a model hub"),
    "a listing that is a mapping": (answering("/tree/", lambda handler: handler.json({"error": "\x1b[2J"})), "not one of a model hub"),
    "too many files": (answering("/tree/", lambda handler: handler.json([row(f"f{number}", b"x") for number in range(10_001)])), "more than 10000 files"),
    "a model larger than any disk": (listed(row("big.json", b"x", size=2**42)), "shall stay free"),
    "JSON that nests without end": (answering("/tree/", lambda handler: handler.say(200, b"[" * 2_000_000)), "nests too deeply"),
    "no JSON": (answering("/tree/", lambda handler: handler.say(200, b"\xff\xfe\x1b[2J")), "not JSON"),
    "an answer of 9 MiB": (answering("/tree/", lambda handler: handler.say(200, b" " * (9 << 20))), "longer than"),
    "an answer without end": (answering("/tree/", lambda handler: handler.endless(HTTP + b"\r\n", b" " * 65536)), "longer than"),
    "a byte now and then": (answering("/tree/", lambda handler: handler.endless(HTTP + b"\r\n", b" ", 0.1)), "does not answer"),
    "a head byte by byte": (answering("/tree/", lambda handler: handler.endless(HTTP + b"X: ", b"a", 0.1)), "does not answer"),
    "headers without end": (answering("/tree/", lambda handler: handler.endless(HTTP, b"X: y\r\n")), "does not answer"),
    "provisional answers without end": (answering("/tree/", lambda handler: handler.endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")), "does not answer"),
    "trailers without end": (
        answering("/tree/", lambda handler: handler.endless(HTTP + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n", b"X: y\r\n", 0.0)),
        "does not answer",
    ),
    "a chunk of an absurd length": (
        answering("/tree/", lambda handler: handler.raw(HTTP + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n[]")),
        "does not answer",
    ),
    "no HTTP at all": (answering("/tree/", lambda handler: handler.raw(b"\x1b[2JSSH-2.0-x\r\n")), "does not answer"),
    "silence": (answering("/tree/", lambda handler: time.sleep(3)), "does not answer"),
    "a page that leads to itself": (answering("/tree/", itself), "comes back to a page that was read"),
    "pages without end": (answering("/tree/", without_end), "has no end"),
    "a list that goes on elsewhere": (next_elsewhere, "goes on at another place"),
    "a commit that is a path": (answering("/revision/", lambda handler: handler.json({"sha": "../../outside"})), "not one of a model hub"),
    "a commit in capitals": (answering("/revision/", lambda handler: handler.json({"sha": "C" * 40})), "not one of a model hub"),
    "a commit with a line break": (answering("/revision/", lambda handler: handler.json({"sha": "c" * 40 + "\n"})), "not one of a model hub"),
    "a refusal with escapes": (
        answering("/revision/", lambda handler: handler.say(400, b"", X_Error_Message="\x9b2J\x1b]0;owned\x07" + "x" * 4000)),
        "HTTP 400",
    ),
    "a redirect to a file": (leading("/revision/", "file:///etc/passwd"), "HTTP 302"),
    "a redirect to FTP": (leading("/revision/", "ftp://127.0.0.1/x"), "another protocol"),
    "a redirect to no address": (leading("/revision/", "http://[::1"), "does not answer"),
    "a redirect with a password": (leading("/revision/", "http://u:p@127.0.0.1/x"), "an address that is none"),
    "a redirect to itself": (answering("/revision/", lambda handler: handler.say(302, b"", Location=handler.path)), "HTTP 302"),
    "a redirect with a body without end": (
        answering("/revision/", lambda handler: handler.endless(f"HTTP/1.1 302 X\r\nLocation: {handler.path}x\r\n\r\n".encode(), b"x" * 65536)),
        "HTTP 302",
    ),
}


@pytest.mark.parametrize("only", ["all", "config"])
@pytest.mark.parametrize("name", LISTINGS)
def test_a_hostile_listing_ends_in_one_sentence(place: Range, name: str, only: str) -> None:
    arrange, words = LISTINGS[name]
    if only == "config" and words == "shall stay free":
        pytest.skip("the shape of a model needs no space")
    arrange(place)
    trial(place, words, only=only)
    assert not place.store.exists()


@pytest.mark.parametrize("name", [name for name, (_arrange, _words) in LISTINGS.items() if "commit" in name or "redirect" in name or "refusal" in name])
def test_a_hostile_answer_about_a_revision_ends_in_one_sentence(place: Range, name: str) -> None:
    arrange, words = LISTINGS[name]
    arrange(place)
    trial(place, words, only="commit")


def test_a_redirect_to_another_host_gets_no_token(place: Range) -> None:
    leading("/resolve/", f"ELSEWHERE/files/{SHARDS[0]}")(place)
    # Each file is that of the first shard then: the content is noticed, and the token is not there.
    trial(place, "came with another content", only="config")
    assert place.elsewhere.seen and not any("Authorization" in headers for _path, headers in place.elsewhere.seen)
    place.hub.answers.clear()
    leading("/tree/", f"ELSEWHERE/api/models/org/model/tree/{COMMIT}")(place)
    trial(place, None)
    assert not any("Authorization" in headers for _path, headers in place.elsewhere.seen)
    assert all("Authorization" in headers for _path, headers in place.hub.seen)


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("https://hub/a", "http://hub/a", "without encryption"),
        ("https://hub/a", "https://127.0.0.1/a", "of this machine"),
        ("http://hub/a", "http://localhost:8006/api2", "of this machine"),
        ("http://hub/a", "http://[::1]/", "of this machine"),
        ("http://hub/a", "http://169.254.169.254/latest/meta-data", "of this machine"),
        ("http://hub/a", "http://0.0.0.0/", "of this machine"),
        ("http://hub/a", "gopher://x/", "another protocol"),
        ("http://hub/a", "http:///x", "an address that is none"),
        ("http://hub/a", "https://cdn/x", ""),
        ("https://hub/a", "https://cdn:8443/x", ""),
        ("http://127.0.0.1:1/a", "http://127.0.0.1:2/x", ""),
    ],
)
def test_where_a_redirect_may_lead(old: str, new: str, wrong: str) -> None:
    found = _hub_edge._astray(old, new)
    assert wrong in found and bool(found) == bool(wrong)


def wrong_bytes(handler: Handler) -> None:
    handler.server.send(handler, bytes(len(FILES[SHARDS[1]])))


def odd_range(text: str) -> Answer:
    return lambda handler: handler.say(206, b"x" * 1000, Content_Range=text)


CONTENTS: dict[str, tuple[Answer, str]] = {
    "other bytes": (wrong_bytes, "is damaged"),
    "a web page": (lambda handler: handler.say(200, b"<html>", Content_Type="text/html"), "a web page came"),
    "another range": (odd_range("bytes 5-1004/300000"), "was asked for"),
    "a range with escapes": (odd_range("bytes \x1b[2J"), "was asked for"),
    "a range of absurd numbers": (odd_range(f"bytes 0-{'9' * 5000}/{'9' * 5000}"), "was asked for"),
    "a range in other digits": (odd_range("bytes \u0660-9/9"), "was asked for"),
    "a length of absurd size": (lambda handler: handler.raw(b"HTTP/1.1 200 X\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\nx"), "come for"),
    "a length that is no number": (lambda handler: handler.raw(b"HTTP/1.1 200 X\r\nContent-Length: 1_0\r\n\r\nx"), "come for"),
    "a negative length": (lambda handler: handler.raw(b"HTTP/1.1 200 X\r\nContent-Length: -5\r\n\r\nx"), "come for"),
    "nothing": (lambda handler: handler.say(200, b""), "has 0 bytes there"),
    "a file that was never there": (lambda handler: handler.say(404, b"", X_Error_Code="EntryNotFound"), "lacks a file"),
    "patience for years": (lambda handler: handler.say(503, b"", Retry_After="999999"), "HTTP 503"),
    "a byte now and then": (lambda handler: handler.endless(b"HTTP/1.1 200 X\r\n\r\n", b"x", 0.2), "hardly a byte has come"),
    "silence": (lambda handler: time.sleep(3), "come for"),
    "a redirect to a file": (lambda handler: handler.say(302, b"", Location="file:///etc/passwd"), "HTTP 302"),
}


@pytest.mark.parametrize("name", [name for name in CONTENTS if name != "patience for years"])
def test_a_hostile_download_ends_in_one_sentence_and_leaves_no_model(place: Range, name: str) -> None:
    answer, words = CONTENTS[name]
    place.hub.answers[f"/resolve/{COMMIT}/{SHARDS[1]}"] = answer
    trial(place, words)
    assert not (place.store / f"org--model@{COMMIT[:12]}").exists()


@pytest.mark.parametrize("name", CONTENTS)
def test_a_hostile_mirror_costs_only_time(place: Range, name: str) -> None:
    """The hub behind it gives what the mirror does not, and says what is right."""
    place.elsewhere.answers[SHARDS[1]] = CONTENTS[name][0]
    trial(place, None, sources=[f"{place.elsewhere.address}/files"], only="config")
    result = trial(place, None, sources=[f"{place.elsewhere.address}/files"], patience_s=12)
    assert result is not None
    assert all((Path(result["path"]) / path).read_bytes() == data for path, data in FILES.items())


def manifest(**changes: t.Any) -> bytes:
    rows = {path: {"size": len(data), "sha256": "", "git_sha1": blob_id(data)} for path, data in FILES.items()}
    return json.dumps({"format": 1, "repository": "org/model", "commit": COMMIT, "files": rows, **changes}).encode()


BAD_ROW = {"size": 1, "sha256": "", "git_sha1": "1" * 40}
MANIFESTS: dict[str, Answer] = {
    "a way out": lambda handler: handler.say(200, manifest(files={"../../outside/x": BAD_ROW})),
    "a hash that is a path": lambda handler: handler.say(200, manifest(files={"a": {**BAD_ROW, "sha256": "../../../outside/x"}})),
    "another repository": lambda handler: handler.say(200, manifest(repository="org/other")),
    "a file that is also a folder": lambda handler: handler.say(200, manifest(files={"a": BAD_ROW, "a/b": BAD_ROW})),
    "sizes below zero": lambda handler: handler.say(200, manifest(files={"a": {**BAD_ROW, "size": -5}})),
    "deep nesting": lambda handler: handler.say(200, b'{"files":' * 100_000),
    "no end": lambda handler: handler.endless(HTTP + b"\r\n", b" " * 65536),
    "a byte now and then": lambda handler: handler.endless(HTTP + b"\r\n", b" ", 0.1),
    "its own name": lambda handler: handler.say(200, manifest(files={".kpro-manifest.json": BAD_ROW})),
}


@pytest.mark.parametrize("only", ["all", "config"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_none(place: Range, name: str, only: str) -> None:
    place.elsewhere.answers[".kpro-manifest.json"] = MANIFESTS[name]
    options = {"sources": [f"{place.elsewhere.address}/files"], "offline": True, "revision": COMMIT, "only": only}
    trial(place, "no source has a manifest of this commit", **options)
    place.elsewhere.answers[".kpro-manifest.json"] = lambda handler: handler.say(200, manifest())
    trial(place, None, **options)


PEERS = {
    "a size without end": "head -c 100000000 /dev/zero | tr '\\0' 9; exit",
    "a size byte by byte": "while :; do printf 9; sleep 0.1; done",
    "escapes as size": "printf '\\033[2J\\n'; exit",
    "a huge size": "echo 9999999999999999999999; exit",
    "words without end": "head -c 100000000 /dev/zero | tr '\\0' x >&2; exit 1",
    "escapes as last words": "printf '\\033[2Jowned\\r' >&2; exit 1",
    "silence": "exec sleep 600",
    "a false size": "echo 3; printf abc; exit",
}


@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_peer_costs_only_time(place: Range, name: str) -> None:
    (place.world.state / "ssh-fault").write_text(PEERS[name])
    result = trial(place, None, sources=["ssh://root@peer/srv/models"], patience_s=12)
    assert result is not None and (Path(result["path"]) / SHARDS[1]).read_bytes() == FILES[SHARDS[1]]


def test_a_folder_of_traps_costs_only_time(place: Range, tmp_path: Path) -> None:
    traps = tmp_path / "traps"
    traps.mkdir()
    os.mkfifo(traps / SHARDS[0])
    (traps / SHARDS[1]).symlink_to("/dev/zero")
    os.mkfifo(traps / ".kpro-manifest.json")
    (traps / "config.json").mkdir()
    (traps / INDEX).symlink_to(INDEX)
    trial(place, "no source has a manifest", sources=[str(traps)], offline=True, revision=COMMIT)
    result = trial(place, None, sources=[str(traps)])
    assert result is not None and (Path(result["path"]) / SHARDS[1]).read_bytes() == FILES[SHARDS[1]]


MODELS: dict[str, tuple[str, bytes, str]] = {
    "an index with a way out": (INDEX, b'{"weight_map": {"a": "../../../outside/canary"}}', "lies outside the snapshot"),
    "an index with an absolute name": (INDEX, b'{"weight_map": {"a": "/etc/shadow"}}', "lies outside the snapshot"),
    "an index of numbers": (INDEX, b'{"weight_map": {"a": 1}}', "is no text"),
    "an index without a map": (INDEX, b'{"weight_map": 7}', "no weight_map"),
    "an index of deep nesting": (INDEX, b"[" * 1_000_000, "nests too deeply"),
    "an index of what is not there": (INDEX, b'{"weight_map": {"a": "x.safetensors"}}', "1 of its 1 files are missing"),
    "a config that is a list": ("config.json", b"[]", "holds no JSON object"),
    "a config of deep nesting": ("config.json", b'{"a":' * 200_000, "nests too deeply"),
    "a config that is no text": ("config.json", b"\xff\x00", "it is no JSON"),
    "a header that nests": (SHARDS[1], shard(b'{"a":' * 30_000), "safetensors header cannot be read"),
    "a header of 4 GiB": (SHARDS[1], (1 << 32).to_bytes(8, "little") + b"{}", "no safetensors file"),
    "a header longer than its file": (SHARDS[1], (1 << 20).to_bytes(8, "little") + b"{}", "it is truncated"),
    "a tensor before the file": (SHARDS[1], shard({"b": {**TENSOR, "data_offsets": [-4, 0]}}), "safetensors header cannot be read"),
    "a tensor behind the file": (SHARDS[1], shard({"b": {**TENSOR, "data_offsets": [0, 10**12]}}), "safetensors header cannot be read"),
    "a tensor of a type with escapes": (SHARDS[1], shard({"b": {**TENSOR, "dtype": "\x1b[2J"}}), "safetensors header cannot be read"),
    "a tensor of absurd shape": (SHARDS[1], shard({"b": {**TENSOR, "shape": [10**18, 10**18]}}), "safetensors header cannot be read"),
    "an empty shard": (SHARDS[1], b"", "it is truncated"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_files_of_a_hostile_model_end_in_one_sentence(place: Range, name: str) -> None:
    path, data, words = MODELS[name]
    with_file(path, data)(place)
    trial(place, words, only="config")
    if path == INDEX:
        trial(place, words)


def planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, t.Any]:
    from ansible.module_utils.testing import patch_module_args

    capsys.readouterr()
    arguments = {"model_path": str(folder), "sglang_version": "0.5.23", "gpu_type": "a6000", "args": {}}
    with patch_module_args(arguments), contextlib.suppress(SystemExit):
        sglang_plan.main()
    return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", MODELS)
def test_the_folder_of_a_hostile_model_ends_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path, data, words = MODELS[name]
    for other, content in {**FILES, path: data}.items():
        (tmp_path / other).write_bytes(content)
    result = planned(tmp_path, capsys)
    assert result["failed"] and (words in result["msg"] or "it is truncated" in result["msg"]) and result["msg"].isprintable(), result


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    for other, content in FILES.items():
        if other != name:
            (tmp_path / other).write_bytes(content)
    os.mkfifo(tmp_path / name)
    assert planned(tmp_path, capsys)["failed"]


def test_text_of_a_model_is_printed_without_harm(place: Range) -> None:
    with_file("config.json", json.dumps({"model_type": "\x1b[2J\u202e", "\x9b2J": "x"}).encode())(place)
    result = trial(place, None, only="config")
    assert result is not None and result["config"] == {"model_type": "\\x1b[2J\\u202e", "\\x9b2J": "x"}


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "../../../outside"},
        {"commit": None},
        {"config": "x"},
        {"weights": None},
        {"files": [{"path": "../../outside/x", "size_bytes": 1, "sha256": "", "git_sha1": "1" * 40}]},
        {"files": [{"path": "a", "size_bytes": -1, "sha256": "", "git_sha1": "1" * 40}]},
        {"files": "x"},
        {"left_out": 7},
    ],
    ids=str,
)
def test_what_another_node_says_is_no_more_trusted_than_a_hub(place: Range, change: dict[str, t.Any]) -> None:
    known = trial(place, None, only="config")
    assert known is not None
    trial(place, None, only="config", known=known)
    trial(place, "org/model", only="config", known={**known, **change})
