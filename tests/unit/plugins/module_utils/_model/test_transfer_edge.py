# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The transfer against sources that are plain Python objects: what an HTTP answer can do, without a server."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._model import store_edge as store
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_edge import Closed, Interrupted, NotThere
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_protocol import RemoteFile
from ansible_collections.kpro.llm.plugins.module_utils._model.transfer_edge import Transfer, TransferSettings

MIB = 1 << 20
DATA = random.Random(3).randbytes(9 * MIB + 12345)
FILE = RemoteFile("model.safetensors", len(DATA), hashlib.sha256(DATA).hexdigest())


class Answer:
    """Bytes ``start`` to ``end`` of DATA; ends early after ``cut`` bytes."""

    def __init__(self, start: int, end: int | None, cut: int | None = None) -> None:
        self.status = 200 if end is None else 206
        stop = len(DATA) if end is None else end
        self.headers = {"Content-Length": str(stop - start), "Content-Range": f"bytes {start}-{stop - 1}/{len(DATA)}"}
        self._rest = memoryview(DATA)[start : stop if cut is None else min(stop, start + cut)]

    def readinto(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        pass


class Source:
    """Counts what it sent; ``cut`` bytes into each answer the connection breaks."""

    def __init__(self, cut: int | None = None, ranges: bool = True) -> None:
        self.cut = cut
        self.ranges = ranges
        self.asked: list[tuple[int, int | None]] = []
        self._lock = threading.Lock()

    def __call__(self, file: RemoteFile, start: int, end: int | None) -> Answer:
        with self._lock:
            self.asked.append((start, end))
        return Answer(start, end, self.cut) if self.ranges else Answer(0, None)


def fetch(folder: Path, *ways: t.Any, **settings: t.Any) -> tuple[Transfer, bytes]:
    snapshot = store.Snapshot(str(folder), "o/m", "c" * 40)
    os.makedirs(snapshot.parts, exist_ok=True)
    transfer = Transfer(
        snapshot,
        [(f"way {number}", way) for number, way in enumerate(ways)],
        TransferSettings(**{"connections": 4, "stretch_bytes": MIB, "patience_s": 5.0, **settings}),
    )
    done: list[bytes] = []
    transfer.run([FILE], lambda _file, path: done.append(Path(path).read_bytes()), lambda: None)
    return transfer, done[0]


def test_every_byte_comes_once_over_several_connections(tmp_path: Path) -> None:
    source = Source()
    transfer, got = fetch(tmp_path, source)
    assert got == DATA
    assert transfer.received_bytes == len(DATA)
    assert sorted(source.asked) == [(at, min(at + MIB, len(DATA))) for at in range(0, len(DATA), MIB)]


def test_cuts_at_one_length_shorten_the_ranges(tmp_path: Path) -> None:
    source = Source(cut=3 * MIB)
    transfer, got = fetch(tmp_path, source, stretch_bytes=8 * MIB, connections=1)
    assert got == DATA
    assert "looks like a limit of a proxy" in transfer.note or "cut" in transfer.note


def test_a_server_without_ranges_sends_the_file_once(tmp_path: Path) -> None:
    source = Source(ranges=False)
    transfer, got = fetch(tmp_path, source)
    assert got == DATA
    assert "does not serve ranges" in transfer.note


def test_a_way_that_is_blocked_is_left_for_the_second(tmp_path: Path) -> None:
    def blocked(_file: RemoteFile, _start: int, _end: int | None) -> Answer:
        raise Interrupted("no bytes for too long")

    source = Source()
    assert fetch(tmp_path, blocked, source)[1] == DATA
    assert source.asked


def test_a_near_way_that_breaks_off_again_and_again_is_not_left_for_the_far_one(tmp_path: Path) -> None:
    near, far = Source(cut=MIB), Source()
    transfer, got = fetch(tmp_path, near, far, stretch_bytes=3 * MIB)
    assert got == DATA
    assert far.asked == []
    assert transfer.ways.received() == {"way 0": len(DATA)}


def test_a_near_way_that_is_gone_for_a_while_is_taken_up_again(tmp_path: Path) -> None:
    near, far = Source(), Source()
    left = [3]

    def flapping(file: RemoteFile, start: int, end: int | None) -> Answer:
        if near.asked and left[0]:
            left[0] -= 1
            raise Interrupted("Connection refused")
        return near(file, start, end)

    _transfer, got = fetch(tmp_path, flapping, far, connections=1, patience_s=120.0)
    assert got == DATA and left == [0]
    assert far.asked == []


@pytest.mark.parametrize("problem", [Closed("ssh: Permission denied (publickey)."), NotThere("the peer does not have it")], ids=["closed", "not there"])
def test_a_way_without_hope_is_left_at_once_and_named(tmp_path: Path, problem: Interrupted) -> None:
    asked = []

    def closed(file: RemoteFile, start: int, end: int | None) -> Answer:
        asked.append(start)
        raise problem

    far = Source()
    transfer, got = fetch(tmp_path, closed, far, connections=1)
    assert got == DATA
    assert len(asked) == 1
    assert transfer.ways.troubles() == [f"way 0 could not be used: {problem}"]


def test_without_a_hub_a_file_that_no_place_has_is_an_error_at_once(tmp_path: Path) -> None:
    def without(_file: RemoteFile, _start: int, _end: int | None) -> Answer:
        raise NotThere("the peer does not have it")

    def nowhere(_file: RemoteFile, _start: int, _end: int | None) -> Answer:
        raise NotThere("the hub is not asked")

    with pytest.raises(KproError, match=r"model.safetensors of o/m: no place has it \(way 0: the peer does not have it\)"):
        fetch(tmp_path, without, nowhere, patience_s=900.0)


def test_a_place_with_wrong_content_is_not_asked_twice(tmp_path: Path) -> None:
    class Wrong(Answer):
        def readinto(self, buffer: memoryview) -> int:
            count = super().readinto(buffer)
            buffer[:count] = bytes(count)
            return count

    near, far = [], Source()

    def wrong(_file: RemoteFile, start: int, end: int | None) -> Answer:
        near.append((start, end))
        return Wrong(start, end)

    assert fetch(tmp_path, wrong, far)[1] == DATA
    assert sum((end or 0) - start for start, end in near) == len(DATA)


class Crowded:
    """Lets one connection through; on any other one nothing comes, without a word. Ranges longer than ``longest`` starve as well."""

    def __init__(self, longest: int) -> None:
        self.open = 0
        self._longest = longest
        self._lock = threading.Lock()

    def __call__(self, _file: RemoteFile, start: int, end: int | None) -> Answer:
        with self._lock:
            self.open += 1
            crowd = self.open > 1 or (end or len(DATA)) - start > self._longest
        return CrowdedAnswer(self, start, end, crowd)

    def leave(self) -> None:
        with self._lock:
            self.open -= 1


class CrowdedAnswer(Answer):
    def __init__(self, box: Crowded, start: int, end: int | None, starves: bool) -> None:
        super().__init__(start, end)
        self._box = box
        self._starves = starves

    def readinto(self, buffer: memoryview) -> int:
        if self._starves:
            time.sleep(0.02)
            raise TimeoutError
        return super().readinto(buffer)

    def close(self) -> None:
        self._box.leave()


def test_where_connections_starve_fewer_are_opened_and_then_shorter_ranges(tmp_path: Path) -> None:
    box = Crowded(longest=5 * MIB)
    _transfer, got = fetch(tmp_path, box, stretch_bytes=64 * MIB, connections=4, patience_s=60.0)
    assert got == DATA
    assert box.open == 0


def test_a_resumed_file_is_asked_for_only_where_it_has_holes(tmp_path: Path) -> None:
    snapshot = store.Snapshot(str(tmp_path), "o/m", "c" * 40)
    os.makedirs(snapshot.parts)
    part = bytearray(len(DATA))
    part[0 : 2 * MIB], part[5 * MIB : 6 * MIB] = DATA[0 : 2 * MIB], DATA[5 * MIB : 6 * MIB]
    Path(snapshot.part(FILE)).write_bytes(part)
    Path(f"{snapshot.part(FILE)}.json").write_text(json.dumps({"size": len(DATA), "written": [[0, 2 * MIB], [5 * MIB, 6 * MIB]]}))
    source = Source()
    transfer, got = fetch(tmp_path, source, stretch_bytes=64 * MIB, connections=1)
    assert got == DATA
    assert source.asked == [(2 * MIB, 5 * MIB), (6 * MIB, len(DATA))]
    assert (transfer.resumed_bytes, transfer.received_bytes) == (3 * MIB, len(DATA) - 3 * MIB)


def test_what_has_arrived_is_in_the_journal_when_the_transfer_fails(tmp_path: Path) -> None:
    def short(file: RemoteFile, start: int, end: int | None) -> Answer:
        if start >= 4 * MIB:
            raise Interrupted("HTTP 500")
        return Answer(start, end)

    with pytest.raises(KproError, match=r"no byte has come for .* \(HTTP 500\)"):
        fetch(tmp_path, short, patience_s=0.5)
    snapshot = store.Snapshot(str(tmp_path), "o/m", "c" * 40)
    assert snapshot.part_ranges(FILE) == [(0, 4 * MIB)]
    source = Source()
    assert fetch(tmp_path, source)[1] == DATA
    assert min(start for start, _end in source.asked) == 4 * MIB


def test_a_file_of_another_size_is_never_accepted(tmp_path: Path) -> None:
    def longer(_file: RemoteFile, start: int, end: int | None) -> Answer:
        answer = Answer(start, end)
        answer.headers["Content-Range"] = f"bytes {start}-{(end or 0) - 1}/{len(DATA) + 1}"
        return answer

    with pytest.raises(KproError, match=rf"model.safetensors of o/m: it sent bytes \d+-\d+/{len(DATA) + 1} where"):
        fetch(tmp_path, longer)


FULL_DISK = """
import sys
sys.path[:0] = {path!r}
import json, runpy
from pathlib import Path
from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from _model.test_transfer_edge import DATA, Source, fetch
disk = Path(sys.argv[1])
source = Source()
try:
    fetch(disk, source)
except KproError as error:
    print(error.sentence)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, for a small disk")
def test_a_full_disk_is_named_and_what_has_arrived_is_kept(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    script = tmp_path / "run.py"
    script.write_text(FULL_DISK.format(path=[str(Path(__file__).parents[1]), *sys.path]))
    run = f"{sys.executable} {script} {tmp_path}/disk"
    disk = f"{tmp_path}/disk"
    full = f"mount -t tmpfs -o size=5m none {disk} && {run} && cat {disk}/.incoming/*/parts/*.json; echo"
    shell = f"{full}; mount -o remount,size=40m {disk}; {run}; ls {disk}/.incoming/*/parts"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", shell], capture_output=True, text=True, check=False)
    first, journal, *rest = done.stdout.splitlines() or [done.stderr]
    assert "the disk is full. Free space there or enlarge the volume, then run again: what has arrived is kept" in first, done
    assert sum(end - start for start, end in json.loads(journal)["written"]) > MIB
    # On the larger disk the file is whole: the part is there, complete and right (the caller's finish leaves it in place).
    assert rest == [store.part_name(FILE), f"{store.part_name(FILE)}.json"], done


def test_a_server_without_ranges_that_cuts_a_transfer_is_asked_again(tmp_path: Path) -> None:
    """The piece that the whole file became was lost with the transfer that was cut, and everybody waited for ever."""
    cuts = [3 * MIB, 2 * MIB]

    def whole_only(_file: RemoteFile, _start: int, _end: int | None) -> Answer:
        return Answer(0, None, cuts.pop() if cuts else None)

    _transfer, data = fetch(tmp_path, whole_only)
    assert data == DATA


def test_a_server_without_ranges_that_always_cuts_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(KproError, match="does not serve ranges, and none of 20 transfers came to the file's end"):
        fetch(tmp_path, lambda *_asked: Answer(0, None, 2 * MIB), patience_s=600.0)
