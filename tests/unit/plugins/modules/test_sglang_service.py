# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module against a stand-in systemctl and real files."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import typing as t
import uuid
from pathlib import Path

import pytest
from sglang_standins import Ended, StandinUnit, run_module

from ansible_collections.kpro.llm.plugins.modules import sglang_service

CONFIG = 'model-path: "/srv/models/tiny"\napi-key: "@KPRO_API_KEY@"\ncontext-length: 8192\n'


@pytest.fixture
def options(tmp_path: Path) -> dict[str, t.Any]:
    etc = tmp_path / "etc"
    return {
        "unit_text": "[Service]\nExecStart=/bin/true\n",
        "rungs": [{"config_text": CONFIG}],
        "level": "none",
        "environment_text": "# engine\nHF_TOKEN=hf_abc\nA=1\n",
        "gate_text": "#!/usr/bin/python3\n",
        "launcher_text": "print()\n",
        "unit_path": str(etc / "unit.service"),
        "config_path": str(etc / "sglang.yaml"),
        "environment_path": str(etc / "sglang.env"),
        "gate_path": str(etc / "gate.py"),
        "launcher_path": str(etc / "launch.py"),
        "api_key_path": str(etc / "api_key"),
        "started_path": str(tmp_path / "run" / "started.json"),
        "state_path": str(tmp_path / "state"),
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "group": grp.getgrgid(os.getegid()).gr_name,
        "engine_version": "0.5.23",
        "model_path": "/srv/models/tiny",
        "served_name": "tiny",
    }


@pytest.fixture(autouse=True)
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the files belong to root")


def service(options: dict[str, t.Any], **more: t.Any) -> Ended:
    """Run the module as its action plugin does, until it has finished."""
    given = {**options, "run_id": uuid.uuid4().hex, **more}
    for call in range(1, 100):
        ended = run_module(sglang_service.main, **{"call": call, **given})
        if ended.rc or ended.result["finished"]:
            return ended
    raise AssertionError("the run did not end")


def note_start(options: dict[str, t.Any], unit: StandinUnit) -> None:
    """What the gate does at each start: leave the digest it was started with."""
    environment = Path(options["environment_path"]).read_text(encoding="utf-8")
    digest = environment.rpartition("KPRO_CONFIG_DIGEST=")[2].strip()
    path = Path(options["started_path"])
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": digest, "invocation_id": unit.properties["InvocationID"]}), encoding="utf-8")


def mode_of(path: str) -> str:
    return oct(stat.S_IMODE(os.stat(path).st_mode))


def test_a_first_run_writes_everything_and_starts(options: dict[str, t.Any], unit: StandinUnit) -> None:
    ended = service(options)
    assert ended.rc == 0
    result = ended.result
    assert result["changed"] and result["restarted"]
    assert unit.properties["ActiveState"] == "active"
    assert unit.properties["UnitFileState"] == "enabled"
    assert result["identity"]["invocation_id"] == unit.properties["InvocationID"]
    assert result["identity"]["main_pid"] == os.getpid()
    assert result["identity"]["main_start_ticks"] > 0
    assert result["identity"]["served_name"] == "tiny"
    order = [call.split()[0] for call in unit.calls if not call.startswith("show")]
    assert order == ["daemon-reload", "enable", "stop", "reset-failed", "reset-failed", "start"]


def test_the_key_is_made_once_and_shown_to_nobody(options: dict[str, t.Any], unit: StandinUnit) -> None:
    first = service(options, _ansible_diff=True)
    key = Path(options["api_key_path"]).read_text(encoding="utf-8").strip()
    assert len(key) > 40
    assert f'api-key: "{key}"' in Path(options["config_path"]).read_text(encoding="utf-8")
    assert mode_of(options["api_key_path"]) == "0o600"
    assert mode_of(options["config_path"]) == "0o640"
    assert mode_of(options["environment_path"]) == "0o600"
    assert key not in json.dumps(first.result)
    assert "hf_abc" not in json.dumps(first.result["diff"])
    service(options, force_restart=True)
    assert Path(options["api_key_path"]).read_text(encoding="utf-8").strip() == key


def test_a_second_run_changes_nothing(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    note_start(options, unit)
    before = unit.properties
    ended = service(options)
    assert not ended.result["changed"] and ended.result["plan"] == []
    assert unit.properties == before


def test_a_changed_option_restarts(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    note_start(options, unit)
    invocation = unit.properties["InvocationID"]
    ended = service(options, rungs=[{"config_text": CONFIG.replace("8192", "4096")}])
    assert ended.result["plan"][-1] == "Restart the service (changed: config)"
    assert unit.properties["InvocationID"] != invocation


def test_a_changed_comment_is_written_but_restarts_nothing(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    note_start(options, unit)
    invocation = unit.properties["InvocationID"]
    ended = service(options, rungs=[{"config_text": f"# a note\n{CONFIG}"}])
    assert ended.result["changed"] and not ended.result["restarted"]
    assert unit.properties["InvocationID"] == invocation
    assert not service(options, rungs=[{"config_text": f"# a note\n{CONFIG}"}]).result["changed"]


def test_a_restart_that_was_interrupted_is_made_up_for(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    note_start(options, unit)
    (unit.folder / "refuse-start").touch()
    changed = {**options, "rungs": [{"config_text": CONFIG.replace("8192", "4096")}]}
    refused = service(changed)
    assert refused.rc == 1 and refused.result["details"]["diagnosis"]["class"] == "never_started"
    assert "systemd could not start it: Job for the unit failed" in refused.result["msg"] and "systemctl cat" in refused.result["remedy"]
    (unit.folder / "refuse-start").unlink()
    ended = service(changed)
    assert ended.result["plan"] == ["Start the service"]


def test_a_process_older_than_its_files_is_restarted(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    note_start(options, unit)
    environment = Path(options["environment_path"])
    service(options, environment_text="A=2\n")
    # The gate of the new start never ran: the note is still that of the first start, made under the same invocation.
    path = Path(options["started_path"])
    note = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(note | {"invocation_id": unit.properties["InvocationID"]}), encoding="utf-8")
    assert "A=2" in environment.read_text(encoding="utf-8")
    assert service(options, environment_text="A=2\n").result["plan"] == ["Restart the service (it was started with an older configuration)"]


def test_check_mode_touches_nothing(options: dict[str, t.Any], unit: StandinUnit, tmp_path: Path) -> None:
    ended = service(options, _ansible_check_mode=True, _ansible_diff=True)
    assert ended.result["changed"] and ended.result["restarted"]
    assert not (tmp_path / "etc").exists()
    assert unit.properties["ActiveState"] == "inactive"
    assert all(call.startswith("show") for call in unit.calls)
    assert "context-length: 8192" in json.dumps(ended.result["diff"])


def test_stopped_stops_and_disables(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    ended = service(options, state="stopped")
    assert ended.result["changed"]
    assert unit.properties["ActiveState"] == "inactive" and unit.properties["UnitFileState"] == "disabled"
    assert not service(options, state="stopped").result["changed"]


def test_a_crashed_unit_is_started_with_a_clean_start_limit(options: dict[str, t.Any], unit: StandinUnit) -> None:
    service(options)
    note_start(options, unit)
    unit.set(ActiveState="activating", SubState="auto-restart", MainPID="0", NRestarts="3")
    ended = service(options)
    assert ended.result["plan"] == ["Start the service"]
    assert unit.properties["NRestarts"] == "0"


def test_no_key_must_be_said_in_so_many_words(options: dict[str, t.Any], unit: StandinUnit) -> None:
    ended = service(options, api_key_source="none", rungs=[{"config_text": "port: 1\n"}])
    assert ended.result["api_key_path"] == ""
    assert not Path(options["api_key_path"]).exists()


def test_a_given_key_is_used_and_hidden(options: dict[str, t.Any], unit: StandinUnit) -> None:
    ended = service(options, api_key_source="given", api_key="my-own-key-123", _ansible_diff=True)
    assert "my-own-key-123" in Path(options["config_path"]).read_text(encoding="utf-8")
    assert "my-own-key-123" not in json.dumps({name: ended.result[name] for name in ("diff", "plan", "identity")})


def test_the_engines_parser_refuses_before_anything_is_written(options: dict[str, t.Any], unit: StandinUnit, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'grep -q "context-length: 8192" "$3" || exit 0\n'
        'grep -q "@KPRO_API_KEY@" "$3" || exit 9\n'
        'echo "usage: sglang serve" >&2\n'
        'echo "sglang serve: error: unrecognized arguments: --context-length" >&2\n'
        "exit 2\n",
        encoding="utf-8",
    )
    python.chmod(0o755)
    ended = service(options, engine_python=str(python))
    assert ended.rc == 1
    assert "unrecognized arguments: --context-length" in ended.result["msg"]
    assert not (tmp_path / "etc").exists()
    assert service(options, engine_python=str(python), rungs=[{"config_text": "context-length: 1\n"}]).rc == 0


def test_an_unknown_user_is_named(options: dict[str, t.Any], unit: StandinUnit) -> None:
    ended = service(options, group="no-such-group")
    assert ended.rc == 1 and "no-such-group" in ended.result["msg"] and "sglang_runtime" in ended.result["msg"]


def test_missing_texts_are_named(options: dict[str, t.Any], unit: StandinUnit) -> None:
    ended = service({**options, "gate_text": None})
    assert ended.rc == 1 and "gate_text" in ended.result["msg"]
