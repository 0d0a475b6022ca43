# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of a package index's file server, with faults: ``wheel_server.py ADDRESS PORT FOLDER``; runs on the sandbox node.

While the file ``hold`` is in the folder, an answer of more than 1 MiB stops in its middle, and the file ``held`` appears. While ``cut`` is
there, such an answer ends in its middle.
"""

from __future__ import annotations

import html
import http.server
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[3])
LARGE_BYTES = 1 << 20


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET for the folder's list and its files, and single ranges."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        name = self.path.strip("/")
        if name and not (FOLDER / name).is_file():
            self.send_error(404)
            return
        links = "".join(f'<a href="{html.escape(path.name)}">{path.name}</a>\n' for path in sorted(FOLDER.iterdir()) if path.suffix in (".whl", ".gz"))
        data = (FOLDER / name).read_bytes() if name else links.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if name else "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        half = len(data) // 2 if len(data) > LARGE_BYTES else len(data)
        self.wfile.write(data[:half])
        self.wfile.flush()
        while half < len(data) and (FOLDER / "hold").exists():
            (FOLDER / "held").touch()
            time.sleep(0.05)
        if half < len(data) and (FOLDER / "cut").exists():
            self.close_connection = True
            return
        self.wfile.write(data[half:])


if __name__ == "__main__":
    http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
