# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox node with one plain container, for tests that need the real way: SSH, LXC, systemd."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from plain_node import ROOT, SANDBOX, VMID, Node, inventory_of, port_of, start, stop

__all__ = ["ROOT", "SANDBOX", "VMID", "Node", "inventory_of", "port_of"]


@pytest.fixture(scope="session", params=os.environ.get("KPRO_TEST_SUITES", "trixie").split(","))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Start a node, create a running container on it, and take both away in the end."""
    # Files may run side by side, each with a node of its own.
    name = f"integration-{request.param}{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    try:
        yield start(name, request.param, tmp_path_factory.mktemp("inventory"))
    finally:
        stop(name)
