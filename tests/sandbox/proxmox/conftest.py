# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sandbox nodes for the tests of the Proxmox stand-in: started on first use, removed at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SANDBOX = Path(__file__).resolve().parent.parent / "sandbox"
LIMIT_S = 600


class SandboxNode:
    """One running node and what the tests do on it."""

    def __init__(self, name: str, suite: str) -> None:
        self.name = name
        self.suite = suite

    def run(self, line: str, check: bool = True, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run a line of shell on the node."""
        done = subprocess.run([SANDBOX, "ssh", self.name, "--", line], input=stdin, capture_output=True, check=False, timeout=LIMIT_S)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert not check or done.returncode == 0, f"{line}: {err}{out}"
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def out(self, line: str) -> str:
        """Return what a line prints, without the line end."""
        return self.run(line).stdout.strip()

    def get(self, path: str) -> Any:
        """Return the answer of ``pvesh get``."""
        return json.loads(self.out(f"pvesh get {path} --output-format json"))

    def task(self, words: str) -> str:
        """Run ``pvesh create|delete`` of a task and return how the task ended."""
        upid = json.loads(self.out(f"pvesh {words} --output-format json").splitlines()[-1])
        return str(self.get(f"/nodes/localhost/tasks/{upid}/status")["exitstatus"])


@pytest.fixture(scope="session")
def nodes() -> Iterator[Callable[[str], SandboxNode]]:
    """Return a function that gives the node of a suite."""
    started: dict[str, SandboxNode] = {}

    def node_of(suite: str) -> SandboxNode:
        if os.geteuid():
            pytest.fail("a sandbox node needs root")
        if suite not in started:
            name = f"proxmox-{suite}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
            subprocess.run([SANDBOX, "up", name, "--suite", suite], check=True, stdout=sys.stderr)
            started[suite] = SandboxNode(name, suite)
        return started[suite]

    yield node_of
    for node in started.values():
        subprocess.run([SANDBOX, "down", node.name], check=True, stdout=sys.stderr)
