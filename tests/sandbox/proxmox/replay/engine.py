# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plays recorded scenarios against a node, step by step, and gathers what differs."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kpro_standin_pve import api
from kpro_standin_pve.errors import ApiError
from kpro_standin_pve.node import Node
from kpro_standin_pve.routes import Listed
from kpro_standin_pve.tasks import Outcome

from . import compare, situations

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
API = "/api2/json"
POLL_S = 0.02


class Commands(Protocol):
    """Runs a recorded command line: ``pct``, ``pvesh`` and other programs of the node."""

    def run(self, argv: list[str], stdin: bytes, env: dict[str, str], cwd: str | None) -> tuple[int, bytes, bytes]:
        """Return exit code, standard output and standard error."""


@dataclass
class Report:
    """How one scenario went."""

    scenario: str
    equal: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    different: dict[int, list[str]] = field(default_factory=dict)


def scenarios(kinds: tuple[str, ...]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (name, steps) of the recorded kinds in their order."""
    for kind in kinds:
        steps: list[dict[str, Any]] = []
        for line in (RECORDINGS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines():
            step = json.loads(line)
            if steps and steps[0]["scenario"] != step["scenario"]:
                yield steps[0]["scenario"], steps
                steps = []
            steps.append(step)
        yield steps[0]["scenario"], steps


class Player:
    """Plays scenarios; UPIDs answered by a step are put into the requests of later ones."""

    def __init__(self, node: Node, commands: Commands) -> None:
        self._node = node
        self._commands = commands
        self._upids: dict[str, str] = {}

    def play(self, name: str, steps: list[dict[str, Any]], skip: dict[int, str]) -> Report:
        """Play one scenario; steps in ``skip`` are not played (their reason is kept)."""
        report = Report(name)
        self._upids = {}
        with situations.of(name, self._node):
            self._play(report, steps, skip)
        return report

    def _play(self, report: Report, steps: list[dict[str, Any]], skip: dict[int, str]) -> None:
        for step in steps:
            number = step["step"]
            if number in skip:
                report.skipped[number] = skip[number]
                continue
            answer = self._answer(step)
            while "polled" in (step.get("note") or "") and _is_running_task(answer):
                time.sleep(POLL_S)
                answer = self._answer(step)
            self._keep_upid(number, answer)
            found = compare.differences(step["response"], answer, step.get("normalise") or [])
            if found:
                report.different[number] = found
            else:
                report.equal += 1

    def _answer(self, step: dict[str, Any]) -> dict[str, Any]:
        request = json.loads(self._fill(json.dumps(step["request"])))
        if step["transport"] == "rest":
            return self._rest(request)
        if step["transport"] == "file":
            return self._file(request)
        return self._command(request)

    def _fill(self, text: str) -> str:
        return re.sub(r"\{upid:step(\d+)\}", lambda found: self._upids.get(found[1], found[0]), text)

    def _keep_upid(self, number: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer.get("body")) if "body" in answer else answer.get("stdout") or ""
        found = re.search(r"UPID:[^\"\s\\]+:", text)
        if found:
            self._upids[str(number)] = found[0]

    def _rest(self, request: dict[str, Any]) -> dict[str, Any]:
        self._node.user = re.sub(r"^(?:ticket|token) ", "", request.get("auth") or "root@pam")
        path, _mark, query = request["path"].partition("?")
        path = re.sub(r"/+", "/", path.removeprefix(API)).rstrip("/") or "/"
        parameters = dict(request.get("params") or {})
        parameters.update(part.split("=", 1) for part in query.split("&") if part)
        try:
            data = api.call(self._node, request["method"], path, parameters, wait=False)
        except ApiError as error:
            newline = "" if error.status == 501 else "\n"
            body: dict[str, Any] = {"data": None, "message": f"{error.message}{newline}"}
            if error.errors:
                body["errors"] = error.errors
            return {"http_status": error.status, "body": body}
        finally:
            self._node.user = "root@pam"
        if isinstance(data, Listed):
            return {"http_status": 200, "body": {"data": data.data, "total": data.total}}
        return {"http_status": 200, "body": {"data": data.upid if isinstance(data, Outcome) else data}}

    def _file(self, request: dict[str, Any]) -> dict[str, Any]:
        path = self._node.config_path(Path(request["path"]).stem)
        if request["op"] == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(request["content"], encoding="utf-8")
            return {"rc": 0, "stderr": ""}
        if not path.exists():
            return {"exists": False, "content": ""}
        return {"exists": True, "content": path.read_text(encoding="utf-8")}

    def _command(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin = base64.b64decode(request.get("stdin_b64") or "") or (request.get("stdin") or "").encode()
        rc, out, err = self._commands.run(request["argv"], stdin, request.get("env") or {}, request.get("cwd"))
        answer: dict[str, Any] = {"rc": rc}
        for name, raw in (("stdout", out), ("stderr", err)):
            try:
                answer[name] = raw.decode()
            except UnicodeDecodeError:
                answer[f"{name}_b64"] = base64.b64encode(raw).decode()
        return answer


def _is_running_task(answer: dict[str, Any]) -> bool:
    data = (answer.get("body") or {}).get("data")
    return isinstance(data, dict) and data.get("status") == "running" and "upid" in data
