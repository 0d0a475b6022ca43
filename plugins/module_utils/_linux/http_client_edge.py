# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to an HTTP server on this machine or network: one request, bounded, without proxies."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import time
import typing as t

from .http_answer import HttpAnswer


class HttpClient:
    """Speaks to one server; the API key goes into the header only."""

    def __init__(self, host: str, port: int, api_key: str = "") -> None:
        self.host = host
        self.port = port
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def get(self, path: str, timeout_s: float = 10.0) -> HttpAnswer:
        """Ask for a path."""
        return self._request("GET", path, None, timeout_s)

    def post(self, path: str, data: t.Any, timeout_s: float = 60.0) -> HttpAnswer:
        """Send data as JSON."""
        return self._request("POST", path, json.dumps(data).encode(), timeout_s)

    def stream(self, path: str, data: t.Any, timeout_s: float = 60.0) -> t.Iterator[tuple[float, str]]:
        """Send data as JSON and yield ``(seconds since the request, line)`` as lines arrive.

        :raises OSError: if the connection fails; :raises http.client.HTTPException: if the answer is none.
        """
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("POST", path, json.dumps(data).encode(), {**self._headers, "Content-Type": "application/json"})
            response = connection.getresponse()
            for line in response:
                yield time.monotonic() - began, line.decode("utf-8", "replace").rstrip("\r\n")
        finally:
            connection.close()

    def _request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> HttpAnswer:
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        headers = {**self._headers, **({"Content-Type": "application/json"} if body is not None else {})}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            return HttpAnswer(response.status, text, "", time.monotonic() - began)
        except ConnectionRefusedError:
            return HttpAnswer(0, "", "refused", time.monotonic() - began)
        except TimeoutError:
            return HttpAnswer(0, "", "timeout", time.monotonic() - began)
        except (OSError, http.client.HTTPException) as error:
            return HttpAnswer(0, "", str(error) or type(error).__name__, time.monotonic() - began)
        finally:
            connection.close()


def is_elsewhere(address: str) -> bool:
    """Whether an address is none of this machine's, so that what answers there is another machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno == errno.EADDRNOTAVAIL
    return False
