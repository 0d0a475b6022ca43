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
