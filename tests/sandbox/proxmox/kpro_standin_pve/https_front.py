# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The REST API over https, as pveproxy answers it: tickets, tokens, CSRF header, error bodies.

Logins are in the node's file ``/etc/kpro-standin/api.json``: ``{"passwords": {"root@pam": "..."}, "tokens": {"root@pam!t1":
{"secret": "...", "privsep": 0}}}``. A token with privilege separation has no rights at all (as one that was never given any).
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import shutil
import ssl
import subprocess
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from . import api
from .errors import ApiError, forbidden
from .node import Node, this_node
from .routes import Listed
from .tasks import Outcome

LOGINS = "/etc/kpro-standin/api.json"
BASE = "/api2/json"


TICKET_KEYS = {"username", "password", "realm", "otp", "path", "privs", "new-format", "tfa-challenge"}
CHANGE = "VM.Config.Disk|VM.Config.CPU|VM.Config.Memory|VM.Config.Network|VM.Config.Options"


def needed_right(method: str, path: str) -> str:
    """Return what Proxmox names when a login without any role calls this."""
    found = re.match(r"/nodes/[^/]+/lxc/(\d+)(/status/\w+)?", path)
    if not found:
        return f"{path}, Sys.Audit"
    power = "VM.Audit" if found[2] == "/status/current" else "VM.PowerMgmt"
    right = {"GET": "VM.Audit", "PUT": CHANGE, "DELETE": "VM.Allocate"}.get(method, power)
    return f"/vms/{found[1]}, {right}"


class Unauthorized(Exception):
    """No or wrong credentials; ``body`` says whether pveproxy or the API itself refuses (only the latter has a body)."""

    def __init__(self, reason: str, body: bool = False) -> None:
        super().__init__(reason)
        self.body = body


class Front(http.server.HTTPServer):
    """One node's API; calls are answered one after the other."""

    def __init__(self, node: Node, address: tuple[str, int], certificate: Path, key: Path) -> None:
        self.node = node
        super().__init__(address, Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def logins(self) -> dict[str, Any]:
        """Return passwords and tokens."""
        found: dict[str, Any] = json.loads(self.node.path(LOGINS).read_text(encoding="utf-8"))
        return found


def ticket_of(user: str, password: str) -> str:
    """Return the ticket of a login; it stays valid as long as the password."""
    return f"PVE:{user}:{hashlib.sha256(f'{user}:{password}'.encode()).hexdigest()}"


class Handler(http.server.BaseHTTPRequestHandler):
    """One call."""

    server: Front

    def do_GET(self) -> None:
        """Read."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Start a task, or log in."""
        self._answer("POST")

    def do_PUT(self) -> None:
        """Change."""
        self._answer("PUT")

    def do_DELETE(self) -> None:
        """Remove."""
        self._answer("DELETE")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def _answer(self, method: str) -> None:
        address = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        parameters = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        if body and "application/json" in self.headers.get("Content-Type", ""):
            parameters |= {key: str(value) for key, value in json.loads(body).items()}
        else:
            parameters |= dict(urllib.parse.parse_qsl(body, keep_blank_values=True))
        path = urllib.parse.unquote(address.path).removeprefix(BASE)
        try:
            data = self._data(method, path, parameters)
        except Unauthorized as error:
            refusal: dict[str, Any] | None = {"data": None, "message": f"{error}\n"} if error.body else None
            self._send(401, str(error), refusal)
        except ApiError as error:
            refusal = {"data": None, "message": f"{error.message}\n", **({"errors": error.errors} if error.errors else {})}
            self._send(error.status, error.message, refusal)
        else:
            self._send(200, "OK", data)

    def _data(self, method: str, path: str, parameters: dict[str, str]) -> dict[str, Any]:
        if path == "/access/ticket":
            return {"data": self._login(parameters) if method == "POST" else None}
        user, separated = self._who(method)
        if path == "/access/permissions":
            return {"data": {} if separated else {"/": {"VM.Audit": 1, "VM.Config.Options": 1}}}
        if separated and path != "/version":
            if method == "GET" and re.fullmatch(r"/nodes|/cluster/resources|/storage|/nodes/[^/]+/(?:lxc|storage)", path):
                return {"data": []}
            raise forbidden(needed_right(method, path))
        node = replace(self.server.node, user=user)
        answer = api.call(node, method, path, parameters, None, wait=False)
        if isinstance(answer, Outcome):
            return {"data": answer.upid}
        return {"data": answer.data, "total": answer.total} if isinstance(answer, Listed) else {"data": answer}

    def _login(self, parameters: dict[str, str]) -> dict[str, str]:
        wrong = {key: "property is missing and it is not optional" for key in ("username", "password") if key not in parameters}
        wrong |= dict.fromkeys(parameters.keys() - TICKET_KEYS, "property is not defined in schema and the schema does not allow additional properties")
        if wrong:
            raise ApiError(400, "Parameter verification failed.", wrong)
        user, password = parameters["username"], parameters["password"]
        if "@" not in user and "realm" in parameters:
            user = f"{user}@{parameters['realm']}"
        known = self.server.logins["passwords"].get(user)
        if known is None or password not in (known, ticket_of(user, known)):
            raise Unauthorized("authentication failure", body=True)
        ticket = ticket_of(user, known)
        return {"username": user, "ticket": ticket, "CSRFPreventionToken": f"csrf-{ticket[-16:]}"}

    def _who(self, method: str) -> tuple[str, bool]:
        """Return the login and whether it is a token without rights of its own."""
        logins = self.server.logins
        if match := re.match(r"PVEAPIToken=([^=]+)=(.+)", self.headers.get("Authorization", "")):
            token = logins["tokens"].get(match[1])
            if token is None or token["secret"] != match[2]:
                raise Unauthorized("no such token" if token is None else "invalid token value!")
            return match[1], bool(token["privsep"])
        cookie = re.search(r"PVEAuthCookie=([^;]+)", self.headers.get("Cookie", ""))
        if not cookie:
            raise Unauthorized("No ticket")
        ticket = urllib.parse.unquote(cookie[1])
        user = ticket.split(":")[1] if ticket.count(":") == 2 else ""
        if ticket != ticket_of(user, logins["passwords"].get(user, "")):
            raise Unauthorized("permission denied - invalid PVE ticket")
        if method != "GET" and self.headers.get("CSRFPreventionToken") != f"csrf-{ticket[-16:]}":
            raise Unauthorized("Permission denied - invalid csrf token")
        return user, False

    def _send(self, status: int, reason: str, answer: dict[str, Any] | None) -> None:
        content = b"" if answer is None else json.dumps(answer).encode()
        usual = {item.value: item.phrase for item in HTTPStatus}
        self.send_response(status, reason.replace("\n", " ") or usual.get(status, ""))
        self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def certificate(node: Node) -> tuple[Path, Path]:
    """Return the node's certificate and key, made once; it is its own authority, where Proxmox has one for the cluster."""
    pem, key = (node.path(f"/etc/pve/nodes/{node.name}/pve-ssl.{end}") for end in ("pem", "key"))
    if not pem.exists():
        names = f"subjectAltName=DNS:{node.name},DNS:localhost,IP:127.0.0.1"
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "730"]
        subprocess.run([*make, "-keyout", str(key), "-out", str(pem), "-subj", f"/CN={node.name}", "-addext", names], check=True, capture_output=True)
        shutil.copyfile(pem, node.path("/etc/pve/pve-root-ca.pem"))
    return pem, key


def main(argv: Sequence[str]) -> int:
    """Serve this node's API on Proxmox's port."""
    node = this_node(lambda text: None)
    Front(node, ("", 8006), *certificate(node)).serve_forever()
    return 0
