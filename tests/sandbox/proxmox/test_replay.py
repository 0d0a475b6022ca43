# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in held to recorded exchanges of a real Proxmox VE 9.2.

Without root, most of it runs in a temporary folder with containers that only remember whether they run. Marked
``sandbox``: everything that can be shown only by real containers, on a node that this test starts and removes.
``pytest -rs`` lists what is not replayed, by name.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from replay import compare, engine, inline, over_https, scope  # noqa: E402

SCENARIOS: dict[str, dict[str, Any]] = json.loads((engine.RECORDINGS / "scenarios.json").read_text(encoding="utf-8"))
INLINE = [entry for entry in engine.scenarios(scope.KINDS[scope.INLINE]) if not scope.is_left_out(entry[0], scope.INLINE)]
OVER_HTTPS = [entry for entry in engine.scenarios(scope.KINDS[scope.OVER_HTTPS]) if not scope.is_left_out(entry[0], scope.OVER_HTTPS)]


def judge(report: engine.Report, lane: str) -> None:
    """Fail on a difference that is not foretold, and on a foretold one that is none (any more)."""
    foretold = scope.different(report.scenario, lane)
    surprises = {step: text for step, text in report.different.items() if step not in foretold}
    assert not surprises, f"{report.scenario}: {json.dumps(surprises, indent=1, ensure_ascii=False)}"
    stale = sorted(set(foretold) - set(report.different))
    assert not stale, f"{report.scenario}: steps {stale} are equal, take them out of replay/scope.py"


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a node on which the recorded fixtures were played."""
    root = tmp_path_factory.mktemp("node") / "root"
    inline.lay_out(root)
    node, _driver = inline.make_node(root)
    player = engine.Player(node, inline.InlineCommands(node))
    for name, steps in engine.scenarios(("fixture",)):
        judge(player.play(name, steps, {}), scope.INLINE)
    shutil.rmtree(root / "var/lib/vz/template")
    return root


@pytest.mark.parametrize(("name", "steps"), INLINE, ids=[name for name, _steps in INLINE])
def test_a_recorded_scenario_gets_the_recorded_answers(name: str, steps: list[dict[str, Any]], fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures, tmp_path / "root", symlinks=True)
    node, _driver = inline.make_node(tmp_path / "root")
    player = engine.Player(node, inline.InlineCommands(node))
    report = player.play(name, steps, scope.skipped(steps, scope.INLINE))
    judge(report, scope.INLINE)
    assert report.equal


@pytest.mark.parametrize(("name", "steps"), OVER_HTTPS, ids=[name for name, _steps in OVER_HTTPS])
def test_a_recorded_login_gets_the_recorded_answers(name: str, steps: list[dict[str, Any]], fixtures: Path, tmp_path: Path) -> None:
    if any(step["transport"] == "proxmoxer" for step in steps):
        pytest.importorskip("proxmoxer")
    shutil.copytree(fixtures, tmp_path / "root", symlinks=True)
    node, _driver = inline.make_node(tmp_path / "root")
    with over_https.front(node) as (port, certificate):
        report = over_https.OverHttps(node, port, certificate).play(name, steps, scope.skipped(steps, scope.OVER_HTTPS))
    judge(report, scope.OVER_HTTPS)
    assert report.equal


@pytest.mark.parametrize("name", sorted(scope.LEFT_OUT))
def test_a_scenario_is_left_out_by_name(name: str) -> None:
    assert name in SCENARIOS
    pytest.skip(f"{name}: {SCENARIOS[name]['steps']} steps not replayed: {scope.LEFT_OUT[name]}")


def test_every_recorded_scenario_is_replayed_or_left_out_by_name() -> None:
    replayed = {name for lane in scope.KINDS for name, _steps in engine.scenarios(scope.KINDS[lane])}
    assert set(SCENARIOS) == (replayed - scope.LEFT_OUT.keys()) | scope.LEFT_OUT.keys()


@pytest.mark.parametrize(
    ("recorded", "ours", "normalise"),
    [
        ({"http_status": 500, "body": None}, {"http_status": 200, "body": None}, []),
        ({"http_status": 200, "body": {"data": 1}}, {"http_status": 200, "body": {"data": 2}}, []),
        ({"rc": 255, "stdout": "", "stderr": "a\n"}, {"rc": 255, "stdout": "", "stderr": "b\n"}, []),
        ({"rc": 4}, {"rc": 0}, ["response.rc~nonzero_only"]),
        ({"exists": True, "content": "net0: hwaddr=BC:24:11:00:00:01,a\n"},
         {"exists": True, "content": "net0: hwaddr=BC:24:11:00:00:02,b\n"}, ["response.content~mac"]),
        ({"rc": 0, "stdout": "NAME\n900 x\n"}, {"rc": 0, "stdout": "NAME\n901 x\n"}, ["response.stdout~other_rows_allowed"]),
        ({"rc": 0, "stdout_b64": "AA=="}, {"rc": 0, "stdout_b64": "AQ=="}, []),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_noticed(recorded: dict[str, Any], ours: dict[str, Any], normalise: list[str]) -> None:
    assert compare.differences(recorded, ours, normalise)


@pytest.mark.sandbox
def test_real_containers_give_the_recorded_answers(nodes: Any) -> None:
    node = nodes("trixie")
    copied = subprocess.run(["tar", "-C", HERE, "--exclude=__pycache__", "-cf", "-", "."], check=True, capture_output=True)
    node.run("mkdir -p /root/replay && tar -C /root/replay -xf -", stdin=copied.stdout)
    played = node.run("cd /root/replay && exec unshare --uts python3 -m replay.on_node")
    reports = [json.loads(line) for line in played.stdout.splitlines()]
    names = [name for name, _steps in engine.scenarios(scope.KINDS[scope.ON_NODE]) if not scope.is_left_out(name, scope.ON_NODE)]
    assert [report["scenario"] for report in reports] == names
    surprises = []
    for report in reports:
        numbers = {int(step): text for step, text in report["different"].items()}
        try:
            judge(engine.Report(report["scenario"], report["equal"], {}, numbers), scope.ON_NODE)
        except AssertionError as surprise:
            surprises.append(str(surprise))
    assert not surprises, "\n".join(surprises)
