# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import http.server
import pathlib
import re
import threading
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._driver import fetch_edge as _driver_fetch
from ansible_collections.kpro.llm.plugins.module_utils._driver.fetch_edge import Package, fetch

NAME = "NVIDIA-Linux-x86_64-580.173.02.run"
DATA = bytes(range(256)) * 20000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves DATA with ranges; ``cuts`` connections are broken off in the middle."""

    cuts = 0
    checksum: str | None = f"{DIGEST}  {NAME}\n"
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path.endswith(".sha256sum"):
            body = (self.server.checksum or "").encode()
            self.send_response(200 if self.server.checksum else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.server.ranges.append(self.headers.get("Range", ""))
        first = int(found[1]) if found else 0
        self.send_response(self.server.status if self.server.status != 200 else 206 if found else 200)
        self.send_header("Content-Length", str(len(DATA) - first))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(DATA[first : first + len(DATA) // 3])
            self.close_connection = True
            return
        # The client goes away where the answer is an error that it does not read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(DATA[first:])

    def log_message(self, format: str, *args: t.Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Server]:
    monkeypatch.setattr(_driver_fetch.time, "sleep", lambda _seconds: None)
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def package(server: Server, folder: pathlib.Path, sha256: str = "") -> Package:
    return Package(f"http://127.0.0.1:{server.server_port}/{NAME}", str(folder / "cache" / NAME), sha256, str(folder / "records" / f"{NAME}.sha256"))


def test_by_the_vendors_checksum(server: Server, tmp_path: pathlib.Path) -> None:
    lines: list[str] = []
    made = package(server, tmp_path)
    fetch(made, lines.append)
    assert pathlib.Path(made.path).read_bytes() == DATA
    assert pathlib.Path(made.record).read_text() == f"{DIGEST}  {NAME}\n"
    assert lines[-1].startswith("100 % of 4 MiB")


def test_a_good_file_is_not_fetched_again(server: Server, tmp_path: pathlib.Path) -> None:
    fetch(package(server, tmp_path, DIGEST), lambda _line: None)
    fetch(package(server, tmp_path, DIGEST), lambda _line: None)
    assert len(server.ranges) == 1


def test_broken_transfers_go_on_where_they_stopped(server: Server, tmp_path: pathlib.Path) -> None:
    server.cuts = 2
    made = package(server, tmp_path, DIGEST)
    fetch(made, lambda _line: None)
    assert pathlib.Path(made.path).read_bytes() == DATA
    third = len(DATA) // 3
    assert server.ranges == ["", f"bytes={third}-", f"bytes={2 * third}-"]


def test_other_bytes_are_never_used(server: Server, tmp_path: pathlib.Path) -> None:
    made = package(server, tmp_path, "0" * 64)
    with pytest.raises(KproError, match=f"its SHA-256 is {DIGEST}, the given hash says 0000"):
        fetch(made, lambda _line: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_checksum_file(server: Server, tmp_path: pathlib.Path) -> None:
    server.checksum = None
    with pytest.raises(KproError, match="checksum file can't be read") as caught:
        fetch(package(server, tmp_path), lambda _line: None)
    assert "gpu_node__driver_sha256" in caught.value.remedy
    assert server.ranges == []


def test_checksum_of_another_file(server: Server, tmp_path: pathlib.Path) -> None:
    server.checksum = f"{DIGEST}  NVIDIA-Linux-x86_64-580.178.04.run\n"
    with pytest.raises(KproError, match="names no SHA-256"):
        fetch(package(server, tmp_path), lambda _line: None)


def test_absent_version(server: Server, tmp_path: pathlib.Path) -> None:
    server.status = 404
    with pytest.raises(KproError, match="404") as caught:
        fetch(package(server, tmp_path, DIGEST), lambda _line: None)
    assert "gpu_node__driver_version" in caught.value.remedy
    assert len(server.ranges) == 1
