# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plays recorded logins, tokens and calls of proxmoxer through the stand-in's https front, as its clients reach it."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import re
import ssl
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kpro_standin_pve.https_front import LOGINS, Front
from kpro_standin_pve.node import Node

from .engine import Player

PASSWORD = "the-password"
KNOWN = {
    "passwords": {"root@pam": PASSWORD, "conf@pve": PASSWORD},
    "tokens": {"root@pam!sep": {"secret": "sep-secret", "privsep": 1}, "root@pam!full": {"secret": "full-secret", "privsep": 0}},
}


@contextlib.contextmanager
def front(node: Node) -> Iterator[tuple[int, Path]]:
    """Serve a node's API in a process of its own; return its port and certificate."""
    place = node.path(LOGINS)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(KNOWN), encoding="utf-8")
    pem, key = node.path("/run/api.pem"), node.path("/run/api.key")
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(pem), *subject], check=True, capture_output=True)
    server = Front(node, ("127.0.0.1", 0), pem, key)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=False)
    process.start()
    server.socket.close()
    try:
        yield server.server_address[1], pem
    finally:
        process.terminate()
        process.join()


class OverHttps(Player):
    """Plays through the front; calls of proxmoxer by proxmoxer itself."""

    def __init__(self, node: Node, port: int, certificate: Path) -> None:
        super().__init__(node, _NoCommands())
        self._port = port
        self._certificate = certificate
        self._tickets: dict[str, dict[str, str]] = {}

    def _answer(self, step: dict[str, Any]) -> dict[str, Any]:
        if step["transport"] == "proxmoxer":
            return self._proxmoxer(step["request"]["call"])
        return super()._answer(step)

    def _rest(self, request: dict[str, Any]) -> dict[str, Any]:
        kind, _blank, who = (request.get("auth") or "none").partition(" ")
        headers = dict(request.get("headers") or {})
        if kind == "token":
            headers["Authorization"] = f"PVEAPIToken={who}={KNOWN['tokens'][who]['secret']}"
        elif kind == "ticket":
            ticket = self._ticket(who)
            headers["Cookie"] = f"PVEAuthCookie={urllib.parse.quote(ticket['ticket'])}"
            if request.get("csrf") == "valid":
                headers["CSRFPreventionToken"] = ticket["CSRFPreventionToken"]
        return self._send(request["method"], request["path"], request.get("params"), headers, request.get("content_type", ""))

    def _ticket(self, who: str) -> dict[str, str]:
        if who not in self._tickets:
            answer = self._send("POST", "/api2/json/access/ticket", {"username": who, "password": PASSWORD}, {}, "")
            self._tickets[who] = answer["body"]["data"]
        return self._tickets[who]

    def _send(self, method: str, path: str, params: dict[str, Any] | None, headers: dict[str, str], content_type: str) -> dict[str, Any]:
        filled = {key: PASSWORD if value == "<PASSWORD>" else value for key, value in (params or {}).items()}
        body = json.dumps(filled) if content_type == "application/json" else urllib.parse.urlencode(filled)
        if method == "GET" and filled:
            path, body = f"{path}?{body}", ""
        context = ssl.create_default_context(cafile=str(self._certificate))
        wire = http.client.HTTPSConnection("127.0.0.1", self._port, context=context, timeout=60)
        try:
            wire.request(method, path, body or None, {"Content-Type": content_type or "application/x-www-form-urlencoded", **headers})
            answer = wire.getresponse()
            text = answer.read().decode()
        finally:
            wire.close()
        found: dict[str, Any] = {"http_status": answer.status, "http_reason": answer.reason}
        return {**found, "body": json.loads(text)} if text else {**found, "body": None, "body_text": ""}

    def _proxmoxer(self, call: str) -> dict[str, Any]:
        import proxmoxer

        client = proxmoxer.ProxmoxAPI("127.0.0.1", port=self._port, user="root@pam", password=PASSWORD, verify_ssl=str(self._certificate))
        node = client.nodes("pve1")
        names = {"lxc": node.lxc, "tasks": node.tasks, "storage": node.storage}
        names |= {name: getattr(client, name) for name in ("nodes", "version", "cluster", "access")} | {"get": client.get}
        try:
            # A call as it was recorded, for example "lxc(911).config.put(memory=600)".
            return {"result": eval(call, {"__builtins__": {}}, names)}  # noqa: S307
        except proxmoxer.ResourceException as error:
            return {
                "exception": "proxmoxer.core.ResourceException",
                "str": str(error),
                "status_code": error.status_code,
                "status_message": error.status_message,
                "content": error.content,
                "errors": error.errors,
            }


class _NoCommands:
    """No recorded login runs a program."""

    def run(self, argv: list[str], stdin: bytes, env: dict[str, str], cwd: str | None) -> tuple[int, bytes, bytes]:
        """Refuse."""
        raise AssertionError(re.sub(r"\s+", " ", f"no command is played over https: {argv}"))
