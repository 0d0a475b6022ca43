# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of the model hub: the part of the hub protocol that clients of models use, and static files at ``/files/``.

Large files answer a redirect to a short-lived address on another host, as the real hub does; the other host is here the
next port (clients treat a redirect within one host differently).
"""

from __future__ import annotations

import html
import json
import re
import socket
import threading
import time
import typing as t
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from faults import Faults, Link, Rule
from repositories import Entry, Repositories

API = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
CDN = re.compile(r"/cdn/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)")
RANGE = re.compile(r"bytes=(\d+)-(\d*)")
BLOCK_BYTES = 1 << 16
IP_FREEBIND = 15
BODY_FAULTS = ("cut", "stall", "slow", "wrong", "short")


class Hub:
    """State of one hub: repositories, static files, faults, request log; and its two listeners."""

    def __init__(self, bind: tuple[str, int], models: Path, files: Path | None, control: Path | None, log: Path | None) -> None:
        self.repositories = Repositories(models)
        self.files = files
        self.faults = Faults(control)
        self.link = Link()
        self._log = log.open("a", encoding="utf-8") if log else None
        self._log_lock = threading.Lock()
        address, port = bind
        self.front = Listener((address, port), self)
        self.cdn = Listener((address, port + 1 if port else 0), self)

    def serve_forever(self) -> None:
        threading.Thread(target=self.cdn.serve_forever, daemon=True).start()
        self.front.serve_forever()

    def note(self, **values: t.Any) -> None:
        if self._log:
            with self._log_lock:
                self._log.write(json.dumps({"time": round(time.time(), 3), **values}) + "\n")
                self._log.flush()


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, bind: tuple[str, int], hub: Hub) -> None:
        self.hub = hub
        super().__init__(bind, Handler)

    def server_bind(self) -> None:
        # The bridge of the node may get its address after this program starts.
        self.socket.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
        super().server_bind()

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """A client that goes away is the normal case here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, format: str, *args: t.Any) -> None:
        """The request log replaces the lines on stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._json(404, {"error": "not served by this stand-in"})

    def do_GET(self) -> None:
        self._sent = 0
        self._status = 0
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        try:
            self._route(path, {key: values[0] for key, values in parse_qs(parts.query).items()})
        finally:
            self.hub.note(
                method=self.command,
                path=path,
                range=self.headers.get("Range"),
                status=self._status,
                bytes=self._sent,
                authorization=bool(self.headers.get("Authorization")),
                agent=self.headers.get("User-Agent"),
            )

    def _route(self, path: str, query: dict[str, str]) -> None:
        if rule := self.hub.faults.take(path, ("wait",)):
            time.sleep(rule.seconds)
        if rule := self.hub.faults.take(path, ("status",)):
            more = {"Retry-After": str(rule.retry_after)} if rule.retry_after else {}
            return self._json(rule.status, {"error": f"fault on demand {rule.status}"}, more)
        if self.hub.faults.take(path, ("page",)):
            return self._page("<!DOCTYPE html><html><body>Please log in to the network</body></html>")
        if path.startswith("/files/"):
            return self._static(path.removeprefix("/files/"))
        if match := CDN.fullmatch(path):
            return self._cdn(match[1], match[2], match[3], query)
        if match := API.fullmatch(path):
            return self._api(match[1], match[2], match[3] or "main", match[4], query)
        if match := RESOLVE.fullmatch(path):
            return self._resolve(match[1], match[2], match[3])
        if path == "/api/whoami-v2":
            known = self._token() in self.hub.faults.settings.tokens
            return self._json(200, {"name": "tester", "type": "user"}) if known else self._json(401, {"error": "Invalid username or password."})
        return self._json(404, {"error": "not served by this stand-in"})

    # -- hub protocol --------------------------------------------------------

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ").strip()

    def _find(self, repository: str, revision: str) -> tuple[str, list[Entry]] | None:
        """Return the files of a revision, or answer the error that the hub would and return None."""
        token = self._token()
        if token and token not in self.hub.faults.settings.tokens:
            self._error(401, "", "Invalid credentials in Authorization header")
        elif not self.hub.repositories.branches(repository):
            # A stranger is not told whether a private repository exists.
            self._error(404, "RepoNotFound", "Repository not found") if token else self._error(401, "RepoNotFound", "Invalid username or password.")
        elif not (found := self.hub.repositories.find(repository, revision)):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return found
        return None

    def _api(self, repository: str, what: str | None, revision: str, folder: str | None, query: dict[str, str]) -> None:
        if not (found := self._find(repository, revision)):
            return
        commit, entries = found
        if what == "tree":
            return self._tree(repository, revision, entries, query)
        settings = self.hub.faults.settings
        self._json(200, {
            "_id": commit[:24], "id": repository, "modelId": repository, "author": repository.split("/")[0], "sha": commit,
            "private": False, "gated": "manual" if repository in settings.gated else False, "disabled": False, "tags": [],
            "downloads": 0, "likes": 0, "siblings": [{"rfilename": entry.path} for entry in entries],
        })  # fmt: skip

    def _tree(self, repository: str, revision: str, entries: list[Entry], query: dict[str, str]) -> None:
        rows: list[dict[str, t.Any]] = []
        for name in sorted({entry.path.rpartition("/")[0] for entry in entries} - {""}):
            rows.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": name})
        for entry in entries:
            row: dict[str, t.Any] = {"type": "file", "oid": entry.git_oid, "size": entry.size_bytes, "path": entry.path}
            if entry.lfs:
                row["lfs"] = {"oid": entry.sha256, "size": entry.size_bytes, "pointerSize": 134}
            rows.append(row)
        page_size = self.hub.faults.settings.page_size
        start = int(query.get("cursor", "0"))
        headers = {}
        if start + page_size < len(rows):
            host = self.headers.get("Host", "")
            address = f"http://{host}/api/models/{repository}/tree/{revision}?recursive=true&cursor={start + page_size}"
            headers["Link"] = f'<{address}>; rel="next"'
        self._json(200, rows[start : start + page_size], headers)

    def _resolve(self, repository: str, revision: str, name: str) -> None:
        if not (found := self._find(repository, revision)):
            return
        commit, entries = found
        settings = self.hub.faults.settings
        if repository in settings.gated and repository not in settings.tokens.get(self._token(), ()):
            reason = "you are not in the authorized list" if self._token() else "You must have access to it and be authenticated to access it. Please log in."
            return self._error(403 if self._token() else 401, "GatedRepo", f"Access to model {repository} is restricted. {reason}")
        entry = next((one for one in entries if one.path == name), None)
        if not entry:
            return self._error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{entry.etag}"', "Accept-Ranges": "bytes"}
        if not entry.lfs:
            return self._body(entry.file, headers)
        headers |= {"X-Linked-ETag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size_bytes)}
        expires = int(time.time()) + settings.link_life_s
        name_of_host = self.headers.get("Host", "").rpartition(":")[0]
        headers["Location"] = f"http://{name_of_host}:{self.hub.cdn.server_port}/cdn/{repository}/{commit}/{quote(entry.path)}?expires={expires}"
        self._json(302, {}, headers)

    def _cdn(self, repository: str, commit: str, name: str, query: dict[str, str]) -> None:
        found = self.hub.repositories.find(repository, commit)
        entry = next((one for one in found[1] if one.path == name), None) if found else None
        if not entry:
            return self._json(404, {"error": "no such object"})
        if int(query.get("expires", "0")) < time.time():
            return self._json(403, {"error": "link expired"})
        self._body(entry.file, {"ETag": f'"{entry.sha256}"', "Accept-Ranges": "bytes"})

    # -- static files --------------------------------------------------------

    def _static(self, name: str) -> None:
        root = self.hub.files
        target = (root / name) if root else None
        if not root or not target or ".." in Path(name).parts or not target.exists():
            return self._json(404, {"error": "no such file"})
        if target.is_file():
            stat = target.stat()
            return self._body(target, {"ETag": f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"', "Accept-Ranges": "bytes"})
        links = []
        for path in sorted(target.iterdir()):
            mark = f"#sha256={self.hub.repositories.sha256(path)}" if path.suffix == ".whl" else "/" if path.is_dir() else ""
            links.append(f'<a href="{quote(path.name)}{mark}">{html.escape(path.name)}</a><br>')
        self._page("<!DOCTYPE html>\n<html><body>\n" + "\n".join(links) + "\n</body></html>\n")

    # -- answers -------------------------------------------------------------

    def _error(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        more = {"X-Error-Code": code} if code else {}
        self._json(status, {"error": message}, {"X-Error-Message": message, **more, **(headers or {})})

    def _json(self, status: int, data: t.Any, headers: t.Mapping[str, str] | None = None) -> None:
        self._whole(status, json.dumps(data).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _page(self, text: str) -> None:
        self._whole(200, text.encode(), {"Content-Type": "text/html; charset=utf-8"})

    def _whole(self, status: int, body: bytes, headers: t.Mapping[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: t.Mapping[str, str]) -> None:
        self._status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _body(self, file: Path, headers: dict[str, str]) -> None:
        size = file.stat().st_size
        path = unquote(urlsplit(self.path).path)
        asked = RANGE.fullmatch(self.headers.get("Range", ""))
        if asked and self.hub.faults.take(path, ("no_range",)):
            asked = None
        start, end = 0, size
        if asked:
            start, end = int(asked[1]), min(size, int(asked[2] or size) + (1 if asked[2] else 0))
            if start >= size:
                return self._whole(416, b"", {"Content-Range": f"bytes */{size}"})
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
        rule = self.hub.faults.take(path, BODY_FAULTS) if self.command == "GET" else None
        if rule and rule.kind == "short":
            end = max(start, end - rule.after_bytes)
        self._head(206 if asked else 200, {"Content-Type": "application/octet-stream", **headers, "Content-Length": str(end - start)})
        if self.command == "GET":
            self._send(file, start, end, rule)

    def _send(self, file: Path, start: int, end: int, rule: Rule | None) -> None:
        kind = rule.kind if rule else ""
        own_link = Link()
        with file.open("rb") as handle:
            handle.seek(start)
            left = end - start
            while left > 0:
                block = handle.read(min(BLOCK_BYTES, left))
                if not block:
                    break
                if rule and rule.per_mib and self._sent % (1 << 20) == 0 and self.hub.faults.chance(rule.per_mib):
                    return self._cut()
                if rule and not rule.per_mib and kind in ("cut", "stall", "wrong") and self._sent <= rule.after_bytes < self._sent + len(block):
                    at = rule.after_bytes - self._sent
                    if kind == "wrong":
                        block = block[:at] + bytes([block[at] ^ 0xFF]) + block[at + 1 :]
                    else:
                        self.wfile.write(block[:at])
                        self._sent += at
                        if kind == "cut":
                            return self._cut()
                        time.sleep(rule.seconds)
                        block, left = block[at:], left - at
                own_link.pass_bytes(len(block), rule.bytes_per_s if rule and kind == "slow" else 0)
                self.hub.link.pass_bytes(len(block), self.hub.faults.settings.link_bytes_per_s)
                self.wfile.write(block)
                self._sent += len(block)
                left -= len(block)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
