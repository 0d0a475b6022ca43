# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CONTRIBUTING.md names real files and the real floors, and has a checklist for each usual change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_house

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TOP = {path.name for path in ROOT.iterdir()}

USUAL_CHANGES = (
    "A new engine release",
    "A GPU type",
    "A diagnosis rule",
    "A container option (typed)",
    "A systemd option",
    "Proxmox VE 10 / Debian 14",
    "An apt mirror",
    "A metric check",
)


def paths_in(text: str) -> set[str]:
    """Return all paths of this repository that a page names, as links or as code; words behind a command are its arguments."""
    links = set(re.findall(r"\]\(([^)#]+)\)", text))
    code = {word.split()[0] for word in re.findall(r"`([^`\n]+)`", text)}
    return {link for link in links if "://" not in link} | {word for word in code if "/" in word and word.split("/")[0] in TOP | {"tests", "plugins", "roles"}}


def section(heading: str) -> str:
    return TEXT.partition(f"### {heading}\n")[2].partition("\n##")[0]


@pytest.mark.parametrize("path", sorted(paths_in(TEXT)))
def test_each_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("heading", USUAL_CHANGES)
def test_each_usual_change_has_a_checklist_that_names_files_and_a_test(heading: str) -> None:
    named = [path for path in paths_in(section(heading)) if (ROOT / path).is_file()]
    assert len(named) >= 2 and any(path.startswith("tests/") for path in named), heading


def test_the_map_shows_the_floors_as_they_are() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", TEXT, re.MULTILINE)
    assert {int(number): set(re.findall(r"`(_\w+)`", packages)) for number, packages in rows} == dict(enumerate(test_house.FLOORS))


@pytest.mark.parametrize(
    ("text", "found"), [("`plugins/absent.py`", {"plugins/absent.py"}), ("[x](docs/absent.md)", {"docs/absent.md"}), ("`bin/test --all`", {"bin/test"})]
)
def test_an_absent_path_would_be_found(text: str, found: set[str]) -> None:
    assert paths_in(text) == found


def test_the_readme_leads_here() -> None:
    assert "(CONTRIBUTING.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
