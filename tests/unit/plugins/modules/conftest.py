# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import sys
import typing as t
from pathlib import Path

import pytest
from sglang_standins import STANDINS, StandinUnit

if t.TYPE_CHECKING:
    from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import LxcNode


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[StandinUnit]:
    """A unit of systemd, played by stand-in programs that keep their state in a folder."""
    folder = tmp_path / "systemd"
    folder.mkdir()
    monkeypatch.setenv("KPRO_STANDIN_STATE", str(folder))
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("systemctl", "journalctl"):
        # Started directly by this Python without site packages: a run of a module calls them half a dozen times.
        text = (STANDINS / name).read_text(encoding="utf-8")
        (programs / name).write_text(f"#!{sys.executable} -SE\n{text}", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    played = StandinUnit(folder)
    yield played
    played.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[str]:
    """Where the Proxmox stand-in of a module of tests answers."""
    # The collection can't be imported yet when this file is read.
    from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import stand_in

    with stand_in(tmp_path_factory.mktemp("pve")) as found:
        yield found


@pytest.fixture
def node(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> LxcNode:
    """A node without containers, and the modules for containers run on it."""
    from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import LxcNode

    return LxcNode(address, tmp_path, monkeypatch, capsys)
