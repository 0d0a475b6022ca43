# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN for the engine: ``engine.py SCENARIO.json`` plays steps and answers over HTTP as SGLang 0.5.23 was seen to do.

Steps: {"log": TEXT}, {"sleep": SECONDS}, {"listen": PORT}, {"healthy": true|false}, {"exit": CODE}, {"signal": NUMBER}, {"mute": PORT}.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys
import threading
import time
import typing as t
from pathlib import Path


class Engine(http.server.BaseHTTPRequestHandler):
    scenario: t.ClassVar[dict[str, t.Any]] = {}
    healthy = False

    def log_message(self, *_arguments: t.Any) -> None:
        return

    def _send(self, status: int, data: t.Any = None) -> None:
        body = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _authorised(self) -> bool:
        key = self.scenario.get("api_key", "")
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self) -> None:
        if self.path == "/health":
            return self._send(self.scenario.get("health_status") or (200 if Engine.healthy else 503))
        if not self._authorised():
            return self._send(401, {"error": "Unauthorized"})
        if self.path == "/v1/models" and not self.scenario.get("no_models"):
            return self._send(200, {"data": [{"id": self.scenario.get("model", "tiny"), "max_model_len": 8192, "owned_by": "sglang"}]})
        if self.path == "/model_info":
            return self._send(200, {"model_path": self.scenario.get("model_path", "/srv/models/tiny")})
        if self.path == "/metrics":
            return self._send_text(self.scenario.get("metrics", ""))
        return self._send(404)

    def _send_text(self, text: str, kind: str = "text/plain") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._authorised():
            return self._send(401, {"error": "Unauthorized"})
        thinking = body["chat_template_kwargs"]["enable_thinking"]
        if body["temperature"] != 0 or (thinking and not self.scenario.get("thinks")):
            return self._send(400, {"error": "not the question that was agreed"})
        if body.get("stream"):
            return self._send_text(self.scenario["stream"], "text/event-stream")
        message = self.scenario.get("tool_message") if body.get("tools") else None
        if thinking:
            message = {"content": "x", "reasoning_content": self.scenario["thinks"], "tool_calls": None}
        message = message or {"content": self.scenario.get("answer", "\n\nHello from the tiny test model."), "reasoning_content": None, "tool_calls": None}
        time.sleep(float(self.scenario.get("answer_s", 0)))
        return self._send(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 8}})


def say(text: str) -> None:
    entry = {
        "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)),
        "_SYSTEMD_INVOCATION_ID": os.environ["INVOCATION_ID"],
        "_PID": str(os.getpid()),
        "MESSAGE": text,
    }
    with (Path(os.environ["KPRO_STANDIN_STATE"]) / "journal").open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(entry) + "\n")


def main() -> None:
    scenario = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Engine.scenario = scenario
    kept = []
    for step in scenario["steps"]:
        if "log" in step:
            say(step["log"])
        if "healthy" in step:
            Engine.healthy = step["healthy"]
        if "listen" in step:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", step["listen"]), Engine)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        if "mute" in step:
            kept.append(socket.create_server(("127.0.0.1", step["mute"])))
        if "exit" in step:
            os._exit(step["exit"])
        if "signal" in step:
            os.kill(os.getpid(), step["signal"])
        time.sleep(step.get("sleep", 0))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
