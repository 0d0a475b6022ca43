# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of a hub and a mirror that want to do harm: each answer of a good one can be replaced. Loopback only."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import socket
import threading
import time
import typing as t
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def row(path: t.Any, data: bytes, **changes: t.Any) -> dict[str, t.Any]:
    """A row of a listing as the real hub gives it; files of weights are in LFS."""
    made: dict[str, t.Any] = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
    if str(path).endswith((".safetensors", ".gguf", ".bin")):
        made["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return {**made, **changes}


def shard(tensors: t.Any, more: bytes = b"") -> bytes:
    """A safetensors file with this header."""
    header = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + more


class Handler(http.server.BaseHTTPRequestHandler):
    """Asks its server what to answer."""

    protocol_version = "HTTP/1.1"
    server: HostileServer

    def do_GET(self) -> None:
        self.close_connection = True
        asked = unquote(urlsplit(self.path).path)
        self.server.seen.append((self.path, dict(self.headers.items())))
        # It goes away when it is told to, or when the other side does.
        with contextlib.suppress(OSError):
            for part, answer in self.server.answers.items():
                if part in asked:
                    answer(self)
                    return
            self.server.good(self, asked)

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a whole answer; underscores of header names stand for dashes."""
        lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self.raw(f"HTTP/1.1 {status} X\r\n{text}Connection: close\r\n\r\n".encode("utf-8", "surrogateescape") + body)

    def json(self, value: t.Any, **headers: str) -> None:
        self.say(200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def endless(self, head: bytes, block: bytes, pause_s: float = 0.0) -> None:
        """Send the head, then the block again and again until nobody listens."""
        self.raw(head)
        while not self.server.over.is_set():
            self.raw(block)
            time.sleep(pause_s)

    def log_message(self, format: str, *args: t.Any) -> None:
        pass


Answer = t.Callable[[Handler], None]


class HostileServer(http.server.ThreadingHTTPServer):
    """A good hub with one repository and a mirror of it under ``/files/``, but for ``answers``: part of a path -> what is sent instead.

    :param files: path -> content.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, files: t.Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(files)
        self.answers: dict[str, Answer] = {}
        self.listing: list[t.Any] | None = None
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.over = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self) -> list[t.Any]:
        return [row(path, data) for path, data in self.files.items()] if self.listing is None else self.listing

    def good(self, handler: Handler, asked: str) -> None:
        """Answer as a good hub does."""
        if "/revision/" in asked:
            handler.json({"sha": COMMIT})
        elif "/tree/" in asked:
            handler.json(self.rows())
        else:
            path = asked.rpartition(f"/resolve/{COMMIT}/")[2] if "/resolve/" in asked else asked.removeprefix("/files/")
            self.send(handler, self.files.get(path))

    def send(self, handler: Handler, data: bytes | None) -> None:
        if data is None:
            handler.say(404)
            return
        asked = handler.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if asked[1]:
            start, end = int(asked[0]), min(int(asked[2]) + 1, len(data))
            handler.say(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}")
        else:
            handler.say(200, data)

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """A client that went away is what these tests are about."""

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.server_close()
