# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds the hub stand-in to the real client of the real hub (``client.txt`` pins it): what the client accepts, the protocol is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = "kpro/tiny-qwen3_5"
LARGE = "model-00001-of-00002.safetensors"
MIB = 1 << 20


@pytest.fixture(scope="session")
def client() -> Path:
    """A virtual environment with the pinned client, made once for each pin."""
    pins = HERE / "client.txt"
    key = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(os.environ.get("KPRO_SANDBOX_DIR", "/var/lib/kpro-sandbox")) / "cache" / "hub-client" / key
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "--require-hashes", "--requirement", str(pins)], check=True)
        (folder / "ready").touch()
    return folder / "bin" / "hf"


@dataclasses.dataclass
class Hub:
    endpoint: str
    models: Path
    files: Path
    control: Path
    log: Path

    def faults(self, *rules: dict[str, t.Any], **settings: t.Any) -> None:
        draft = self.control.with_suffix(".new")
        draft.write_text(json.dumps({**settings, "rules": list(rules)}))
        draft.rename(self.control)

    def requests(self) -> list[dict[str, t.Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.endpoint + path, timeout=10) as answer:
            return bytes(answer.read())


@pytest.fixture
def hub(tmp_path: Path) -> t.Iterator[Hub]:
    made = Hub("", tmp_path / "models", tmp_path / "files", tmp_path / "faults.json", tmp_path / "log.jsonl")
    made.files.mkdir()
    maker = HERE.parent / "model" / "make_tiny_model.py"
    subprocess.run([sys.executable, str(maker), str(made.models / REPOSITORY), "--shards", "2"], check=True, stdout=subprocess.DEVNULL)
    argv = [sys.executable, str(HERE / "standin_hub"), "--bind", "127.0.0.1:0", "--models", str(made.models), "--files", str(made.files)]
    process = subprocess.Popen([*argv, "--faults", str(made.control), "--log", str(made.log)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    made.endpoint = process.stdout.readline().split()[-1]
    yield made
    process.kill()
    process.wait()


def download(client: Path, hub: Hub, target: Path, *words: str, token: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(target.parent / "hf"), "NO_COLOR": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    if token:
        env["HF_TOKEN"] = token
    argv = [str(client), "download", *(words or (REPOSITORY,)), "--local-dir", str(target)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def same(hub: Hub, target: Path) -> bool:
    return all((target / path.name).read_bytes() == path.read_bytes() for path in (hub.models / REPOSITORY).iterdir())


def test_the_client_downloads_and_verifies(client: Path, hub: Hub, tmp_path: Path) -> None:
    done = download(client, hub, tmp_path / "got")
    assert done.returncode == 0, done.stderr
    assert same(hub, tmp_path / "got")
    env = {"PATH": os.environ["PATH"], "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf")}
    argv = [str(client), "cache", "verify", REPOSITORY, "--local-dir", str(tmp_path / "got"), "--fail-on-missing-files"]
    verified = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert verified.returncode == 0 and "Verified 9 file(s)" in verified.stdout, verified
    (tmp_path / "got" / LARGE).write_bytes(b"damaged")
    assert subprocess.run(argv, env=env, capture_output=True, check=False).returncode != 0


def test_a_branch_and_a_commit_lead_to_the_same_files_and_a_change_moves_the_commit(client: Path, hub: Hub, tmp_path: Path) -> None:
    first = json.loads(hub.get(f"/api/models/{REPOSITORY}/revision/main"))["sha"]
    assert download(client, hub, tmp_path / "a", REPOSITORY, "config.json", "--revision", first).returncode == 0
    (hub.models / REPOSITORY / "config.json").write_text("{}")
    assert json.loads(hub.get(f"/api/models/{REPOSITORY}/revision/main"))["sha"] != first
    gone = download(client, hub, tmp_path / "b", REPOSITORY, "config.json", "--revision", first)
    assert gone.returncode != 0 and "Revision not found" in gone.stderr, gone
    # An older state stays reachable while a folder holds it.
    (hub.models / f"{REPOSITORY}@old").mkdir()
    (hub.models / f"{REPOSITORY}@old" / "config.json").write_text("old")
    assert download(client, hub, tmp_path / "c", REPOSITORY, "config.json", "--revision", "old").returncode == 0
    assert (tmp_path / "c" / "config.json").read_text() == "old"


@pytest.mark.parametrize(
    ("words", "token", "said"),
    [
        (("kpro/nothing",), "", "not found"),
        ((REPOSITORY, "--revision", "nothing"), "", "Revision not found"),
        ((REPOSITORY, "nothing.json"), "", "File not found"),
        ((REPOSITORY,), "", "requires approval"),
        ((REPOSITORY,), "hf_stranger", "requires approval"),
        ((REPOSITORY,), "hf_mistyped", "Invalid credentials"),
    ],
)
def test_each_refusal_reaches_a_person_in_the_client_s_own_words(client: Path, hub: Hub, tmp_path: Path, words: tuple[str, ...], token: str, said: str) -> None:
    gated = [REPOSITORY] if words == (REPOSITORY,) else []
    hub.faults(gated=gated, tokens={"hf_stranger": []})
    done = download(client, hub, tmp_path / "got", *words, token=token)
    assert done.returncode != 0 and said in done.stderr, done


def test_a_token_opens_a_gated_model_and_stays_with_the_hub(client: Path, hub: Hub, tmp_path: Path) -> None:
    hub.faults(gated=[REPOSITORY], tokens={"hf_good": [REPOSITORY]})
    assert download(client, hub, tmp_path / "got", token="hf_good").returncode == 0
    assert same(hub, tmp_path / "got")
    assert not any(one["authorization"] for one in hub.requests() if one["path"].startswith("/cdn/"))


def test_a_cut_is_resumed_by_the_client_with_a_range(client: Path, hub: Hub, tmp_path: Path) -> None:
    (hub.models / REPOSITORY / LARGE).write_bytes(os.urandom(24 * MIB))
    hub.faults({"kind": "cut", "match": f"/cdn/*/{LARGE}", "after_bytes": 15 * MIB})
    assert download(client, hub, tmp_path / "got").returncode == 0
    assert same(hub, tmp_path / "got")
    ranges = [one["range"] for one in hub.requests() if one["path"].endswith(LARGE) and one["range"]]
    assert ranges and ranges[-1].startswith("bytes=10485760-"), ranges


def test_pages_and_passing_errors_are_survived(client: Path, hub: Hub, tmp_path: Path) -> None:
    hub.faults({"kind": "status", "match": f"*/{LARGE}", "status": 503, "times": 1}, page_size=3)
    assert download(client, hub, tmp_path / "got").returncode == 0
    assert same(hub, tmp_path / "got")


def answer_to(url: str, **headers: str) -> tuple[int, t.Mapping[str, str], bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_ranges_follow_the_standard(hub: Hub) -> None:
    (hub.files / "a.bin").write_bytes(bytes(range(100)))
    url = f"{hub.endpoint}/files/a.bin"
    status, headers, body = answer_to(url, Range="bytes=10-19")
    assert (status, headers["Content-Range"], body) == (206, "bytes 10-19/100", bytes(range(10, 20)))
    status, headers, body = answer_to(url, Range="bytes=90-")
    assert (status, headers["Content-Range"], body) == (206, "bytes 90-99/100", bytes(range(90, 100)))
    assert answer_to(url, Range="bytes=90-500")[1]["Content-Range"] == "bytes 90-99/100"
    status, headers, _body = answer_to(url, Range="bytes=100-")
    assert (status, headers["Content-Range"]) == (416, "bytes */100")
    assert answer_to(f"{hub.endpoint}/files/../models/kpro")[0] == 404


def test_a_link_page_gives_the_hashes_of_wheels(hub: Hub) -> None:
    (hub.files / "wheels").mkdir()
    (hub.files / "wheels" / "a-1-py3-none-any.whl").write_bytes(b"wheel")
    page = hub.get("/files/wheels/").decode()
    assert f'<a href="a-1-py3-none-any.whl#sha256={hashlib.sha256(b"wheel").hexdigest()}">' in page


def test_an_expired_link_is_refused(hub: Hub) -> None:
    hub.faults(link_life_s=-1)
    assert answer_to(f"{hub.endpoint}/{REPOSITORY}/resolve/main/{LARGE}")[0] == 403


def test_faults_count_down_and_a_new_control_file_starts_anew(hub: Hub) -> None:
    (hub.files / "a.bin").write_bytes(b"x" * 10)
    url = f"{hub.endpoint}/files/a.bin"
    hub.faults({"kind": "status", "match": "*/a.bin", "status": 500, "times": 2})
    assert [answer_to(url)[0] for _round in range(3)] == [500, 500, 200]
    hub.faults({"kind": "wrong", "match": "*/a.bin", "after_bytes": 3})
    assert [answer_to(url)[2] for _round in range(2)] == [b"xxx" + bytes([ord("x") ^ 0xFF]) + b"xxxxxx", b"x" * 10]
