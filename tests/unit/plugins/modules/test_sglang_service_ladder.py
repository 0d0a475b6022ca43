# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run of the ladder: real engine processes (the light one) and HTTP, a stand-in systemctl and journal."""

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
from sglang_standins import Ended, StandinUnit, free_port, run_module

from ansible_collections.kpro.llm.plugins.module_utils._service.edge import read_start_note
from ansible_collections.kpro.llm.plugins.module_utils._service.ladder import memory_from
from ansible_collections.kpro.llm.plugins.module_utils._service.state_edge import ServiceState
from ansible_collections.kpro.llm.plugins.module_utils._start import watch_edge as _start_watch
from ansible_collections.kpro.llm.plugins.modules import sglang_service

LOADING = {"log": "Load weight begin. avail mem=18.82 GB"}
UP: list[dict[str, t.Any]] = [{"log": "gate: ok"}, {"log": "server_args={}"}, LOADING, {"listen": 0}, {"healthy": True}]
NO_MEMORY = [
    {"log": "gate: ok"},
    {"log": "Capture cuda graph begin. avail mem=1.00 GB"},
    {"log": "[2026-11-29 12:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"},
    {"log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.40 GiB. GPU 0 has a total capacity of 47.40 GiB"},
    {"signal": 9},
]
UNKNOWN = [
    {"log": "gate: ok"},
    {"log": "[2026-11-29 12:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"},
    {"log": "ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this architecture."},
    {"signal": 9},
]
LOADS = [{"log": "gate: ok"}, LOADING, {"log": "Loading safetensors checkpoint shards:  48% Completed"}]
LARGE, SMALL, OTHER = 8192, 4096, 2048


@pytest.fixture(autouse=True)
def as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("the files belong to root")
    monkeypatch.setattr(_start_watch, "CLOCK_PATH", str(tmp_path / "run" / "ready.json"))


class Service:
    """The service of a container, as its deployments see it."""

    def __init__(self, unit: StandinUnit, tmp_path: Path) -> None:
        self.unit, self.port = unit, free_port()
        etc = tmp_path / "etc"
        places = {"unit": "unit.service", "config": "sglang.yaml", "environment": "sglang.env", "gate": "gate.py", "launcher": "launch.py", "api_key": "key"}
        self.state = tmp_path / "state"
        self.options: dict[str, t.Any] = {
            **{f"{role}_path": str(etc / name) for role, name in places.items()},
            "unit_text": "[Service]\n",
            "environment_text": "A=1\n",
            "gate_text": "#!/usr/bin/python3\n",
            "launcher_text": "print()\n",
            "started_path": str(tmp_path / "started" / "started.json"),
            "state_path": str(self.state),
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "group": grp.getgrgid(os.getegid()).gr_name,
            "engine_version": "0.5.23",
            "model_path": "/srv/models/tiny",
            "served_name": "tiny",
            "answer_pattern": "hello from",
            "question": "Who are you?",
            "timeout_s": 60,
            "poll_s": 2,
        }

    def config(self, context: int, port: int = 0, name: str = "tiny") -> str:
        head = f'model-path: "/srv/models/tiny"\nserved-model-name: "{name}"\nhost: "127.0.0.1"\nport: {port or self.port}\napi-key: "@KPRO_API_KEY@"\n'
        return f"{head}context-length: {context}\n"

    def rungs(self, *contexts: int, **more: t.Any) -> list[dict[str, t.Any]]:
        return [{"name": f"c{context}", "config_text": self.config(context, **more), "args": {"context_length": context}} for context in contexts]

    def engine(self, cases: dict[int, list[dict[str, t.Any]]] | None = None, **scenario: t.Any) -> None:
        """What the engine does from now on, by its context length."""
        named = {str(context): steps for context, steps in (cases or {}).items()}
        self.unit.plays(self.options, [{"by_option": {"option": "context-length", "cases": named, "else": UP}}], **scenario)

    def call(self, *contexts: int, run: str, call: int = 1, **options: t.Any) -> Ended:
        given = {**self.options, "rungs": self.rungs(*contexts), "port": self.port, "run_id": run, "call": call, **options}
        return run_module(sglang_service.main, **given)

    def deploy(self, *contexts: int, calls: int = 60, **options: t.Any) -> Ended:
        """Run a deployment to its end, or (``calls``) until its controller is killed."""
        run = uuid.uuid4().hex
        for call in range(1, calls + 1):
            ended = self.call(*contexts, run=run, call=call, **options)
            if ended.rc or ended.result["finished"]:
                break
        return ended

    @property
    def invocation(self) -> str:
        return self.unit.properties.get("InvocationID", "") if self.unit.properties["ActiveState"] == "active" else ""

    def kept(self, name: str) -> dict[str, t.Any]:
        path = self.state / name
        return t.cast("dict[str, t.Any]", json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


@pytest.fixture
def service(unit: StandinUnit, tmp_path: Path) -> Service:
    return Service(unit, tmp_path)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """A file that an engine waits for."""
    return tmp_path / "go"


@pytest.fixture
def serving(service: Service) -> Service:
    """A service that answers, deployed with the smaller configuration."""
    service.engine()
    ended = service.deploy(SMALL)
    assert ended.rc == 0 and ended.result["ready"], ended.result
    return service


# --- a ladder -----------------------------------------------------------------------------------------------------------------------------


def test_the_next_rung_follows_a_lost_one_and_stays(service: Service) -> None:
    service.engine({LARGE: NO_MEMORY})
    ended = service.deploy(LARGE, SMALL)
    assert ended.rc == 0, ended.result
    result = ended.result
    assert (result["rung"], result["rung_name"], result["ready"], result["args"]) == (1, "c4096", True, {"context_length": 4096})
    assert result["restarted"] and [row["name"] for row in result["lost"]] == ["c8192"]
    assert "c8192: out of memory in graph capture" in result["given_up"][0] and result["lost"][0]["diagnosis"]["class"] == "graph_capture_oom"
    assert not (service.state / "ladder.json").exists()
    before = service.invocation
    again = service.deploy(LARGE, SMALL, calls=1)
    assert again.rc == 0 and not again.result["changed"] and not again.result["restarted"] and service.invocation == before
    assert again.result["failed_rungs"].keys() == {"0"}
    service.engine()
    assert service.deploy(LARGE, SMALL, retry=True).result["rung"] == 0


def test_other_inputs_forget_what_failed(service: Service) -> None:
    service.engine({LARGE: NO_MEMORY})
    assert service.deploy(LARGE, SMALL).result["rung"] == 1
    service.engine()
    assert service.deploy(LARGE, SMALL, environment_text="CUDA_VISIBLE_DEVICES=GPU-bb\n").result["rung"] == 0


def test_a_rung_that_the_plan_refuses_is_passed_over(service: Service) -> None:
    service.engine()
    rungs = service.rungs(LARGE, SMALL)
    rungs[0]["refused"] = "state of 48 requests"
    ended = service.deploy(rungs=rungs)
    assert ended.result["rung"] == 1 and ended.result["failed_rungs"] == {"0": "state of 48 requests"}


def test_a_ladder_ends(service: Service) -> None:
    service.engine({LARGE: NO_MEMORY, SMALL: NO_MEMORY})
    ended = service.deploy(LARGE, SMALL)
    assert ended.rc == 1 and "no other configuration to run: out of memory in graph capture" in ended.result["msg"]
    assert ended.result["msg"].count("so the service does not run now") == 1 and not service.invocation
    assert [row["name"] for row in ended.result["details"]["lost"]] == ["c8192", "c4096"]


def test_a_failure_that_a_smaller_rung_cannot_cure_ends_the_run(service: Service) -> None:
    service.engine({LARGE: UNKNOWN})
    ended = service.deploy(LARGE, SMALL)
    assert ended.rc == 1 and [row["name"] for row in ended.result["details"]["lost"]] == ["c8192"]


def test_what_answered_is_kept_with_what_it_was_asked(service: Service) -> None:
    service.engine(answer="wrong")
    assert service.deploy(SMALL).rc == 1 and not service.kept("last_good.json")
    assert service.deploy(SMALL, answer_pattern="wrong").rc == 0
    good = service.kept("last_good.json")
    assert good["names"]["served_name"] == "tiny" and "context-length: 4096" in good["texts"]["config"] and good["rung"] == 0
    assert good["check"] == {
        "address": "127.0.0.1", "port": service.port, "level": "answer", "question": "Who are you?", "answer_pattern": "wrong",
        "max_tokens": 64, "answer_timeout_s": 300,
    }  # fmt: skip
    assert stat.S_IMODE((service.state / "last_good.json").stat().st_mode) == 0o600


def smaller(ended: Ended) -> list[str]:
    return [words for words in ended.result["warnings_found"] if "last good run" in words]


def test_a_smaller_pool_than_in_the_last_good_run_is_a_warning(service: Service) -> None:
    metrics = 'sglang:max_total_num_tokens{x="1"} %d\n'
    service.engine(metrics=metrics % 100_000)
    first = service.deploy(SMALL)
    assert (first.result["pools"], first.result["last_good_pools"]) == ({"kv_tokens": 100_000}, {}) and not smaller(first)
    service.engine(metrics=metrics % 60_000)
    for _twice in range(2):
        again = service.deploy(SMALL, force_restart=True)
        assert smaller(again) == ["size of the KV pool (tokens) is 60000, 40 % below the 100000 of the last good run"]
    # Another configuration has other sizes.
    assert not smaller(service.deploy(LARGE))


# --- the way back -------------------------------------------------------------------------------------------------------------------------


def test_the_last_good_configuration_is_judged_by_what_was_kept_with_it(serving: Service) -> None:
    """New port, name, question, level and key, and an engine that fails with them: the old one answers its own question on its own port."""
    serving.engine({LARGE: UNKNOWN})
    rungs = serving.rungs(LARGE, port=free_port(), name="new")
    new = {"rungs": rungs, "port": free_port(), "served_name": "new", "question": "New?", "answer_pattern": "never said", "level": "tools"}
    ended = serving.deploy(**new, api_key_source="given", api_key="another-key-123", timeout_s=1)
    said = ended.result["msg"]
    assert ended.rc == 1 and "The new configuration was lost: the model type 'qwen9' is unknown" in said, said
    assert "The last good configuration was restored and answers" in said and serving.invocation
    assert ended.result["details"]["diagnosis"]["class"] == "model_type_unknown" and ended.result["details"]["restored"]
    key = Path(serving.options["api_key_path"]).read_text(encoding="utf-8").strip()
    assert key != "another-key-123" and key in Path(serving.options["config_path"]).read_text(encoding="utf-8")
    back = serving.deploy(SMALL)
    assert back.rc == 0 and not back.result["restarted"]


def test_a_record_of_the_first_release_knows_no_check_and_is_asked_where_its_configuration_listens(serving: Service) -> None:
    good = serving.kept("last_good.json")
    del good["check"], good["api_key"]
    (serving.state / "last_good.json").write_text(json.dumps(good), encoding="utf-8")
    serving.engine({LARGE: UNKNOWN})
    ended = serving.deploy(LARGE, port=free_port(), answer_pattern="never said")
    assert "The last good configuration was restored and answers" in ended.result["msg"] and serving.invocation


def test_a_restored_service_that_answers_otherwise_is_left_and_told(serving: Service) -> None:
    serving.engine({LARGE: UNKNOWN}, answer="something else")
    ended = serving.deploy(LARGE)
    assert "was restored and does not answer as it did: the answer was 'something else'" in ended.result["msg"]
    assert "It was left as it is. The service still runs" in ended.result["msg"] and serving.invocation


def test_a_way_back_that_is_lost_too_is_told(serving: Service) -> None:
    serving.engine({LARGE: UNKNOWN, SMALL: NO_MEMORY})
    ended = serving.deploy(LARGE)
    said = ended.result["msg"]
    assert "the model type 'qwen9' is unknown" in said and "was restored and was lost as well: out of memory in graph capture" in said
    assert "It was stopped, so the service does not run now" in said and not serving.invocation


def test_the_way_back_is_waited_for_without_a_limit(serving: Service, go: Path) -> None:
    serving.engine({LARGE: UNKNOWN, SMALL: [*LOADS, {"wait_for": str(go)}, *UP]})
    run, waits = uuid.uuid4().hex, 0
    for call in range(1, 30):
        ended = serving.call(LARGE, run=run, call=call, timeout_s=1, poll_s=1)
        if ended.rc:
            break
        waits += "weights are loaded (48 %)" in ended.result["progress"]
        if waits == 4:
            go.touch()
    assert waits >= 4 and "was restored and answers" in ended.result["msg"], ended.result


def test_after_a_roll_back_nothing_is_tried_again_unless_asked(serving: Service) -> None:
    serving.engine({LARGE: NO_MEMORY, OTHER: NO_MEMORY})
    assert "restored and answers" in serving.deploy(LARGE, OTHER).result["msg"]
    before = serving.invocation
    again = serving.deploy(LARGE, OTHER, port=free_port(), answer_pattern="never")
    assert again.rc == 1 and "is known to fail and was not tried again: out of memory" in again.result["msg"]
    assert "The last good configuration stays and answers" in again.result["msg"] and serving.invocation == before
    assert serving.deploy(LARGE, OTHER, _ansible_check_mode=True).rc == 1
    planned = serving.deploy(LARGE, OTHER, retry=True, _ansible_check_mode=True)
    assert planned.rc == 0 and planned.result["rung"] == 0 and planned.result["restarted"]


def test_an_address_of_another_machine_is_not_asked(serving: Service, go: Path) -> None:
    """Whatever answers there is not this service."""
    serving.engine({LARGE: [*LOADS, {"wait_for": str(go)}, *UNKNOWN]})
    run = uuid.uuid4().hex
    first = serving.call(LARGE, run=run, poll_s=3, address="203.0.113.1")
    assert first.rc == 0 and not first.result["finished"] and first.result["level"] == "", first.result
    go.touch()
    assert "restored and answers" in serving.deploy(LARGE, address="203.0.113.1").result["msg"]


@pytest.mark.parametrize("now", ["CUDA_VISIBLE_DEVICES=GPU-bb\nKPRO_DRIVER_VERSION=580.1\n", 'CUDA_VISIBLE_DEVICES=GPU-aa\nKPRO_DRIVER_VERSION="590.2"\n'])
def test_a_good_configuration_of_other_hardware_is_not_restored(service: Service, now: str) -> None:
    service.engine({LARGE: UNKNOWN})
    assert service.deploy(SMALL, environment_text='CUDA_VISIBLE_DEVICES=GPU-aa\nKPRO_DRIVER_VERSION="580.1"\n').rc == 0
    ended = service.deploy(LARGE, environment_text=now)
    assert "no other configuration to run (the last good one was for other GPUs or another driver)" in ended.result["msg"]


def test_a_unit_that_systemd_refuses_brings_the_last_good_one_back(serving: Service) -> None:
    (serving.unit.folder / "refuse-start").touch()
    run = uuid.uuid4().hex
    first = serving.call(LARGE, run=run)
    assert first.rc == 0 and "c8192 was lost: systemd could not start it" in first.result["progress"]
    (serving.unit.folder / "refuse-start").unlink()
    ended = serving.call(LARGE, run=run, call=2)
    assert "restored and answers" in ended.result["msg"]


# --- a serving engine is sacred -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answer_pattern": "never said"}, "the answer was 'Hello from"),
        ({"question": "Other?", "answer_pattern": "42"}, "accepted is '42'"),
        ({"level": "tools"}, "tool-call-parser"),
        ({"served_name": "wished"}, "the server serves tiny, wanted is wished"),
        ({"port": 1, "timeout_s": 2, "poll_s": 1}, "The start goes on"),
    ],
)
def test_a_failed_check_is_reported_and_stops_nothing(serving: Service, changes: dict[str, t.Any], words: str) -> None:
    before = serving.invocation
    for check_mode in (True, False):
        ended = serving.deploy(SMALL, _ansible_check_mode=check_mode, **changes)
        assert serving.invocation == before
        assert (check_mode and "port" in changes) or (ended.rc == 1 and words in ended.result["msg"]), ended.result
        assert "port" in changes or "This run did not start it, so it was left as it is. The service still runs" in ended.result["msg"]
    assert serving.deploy(SMALL).rc == 0 and serving.invocation == before


def test_what_was_restarted_unchanged_and_answers_as_before_is_left(serving: Service) -> None:
    before = serving.invocation
    ended = serving.deploy(SMALL, force_restart=True, answer_pattern="never said")
    assert ended.rc == 1 and "It still answers what it was asked before" in ended.result["msg"]
    assert serving.invocation not in ("", before)


def test_a_new_setting_with_a_wrong_question_brings_the_old_one_back(serving: Service) -> None:
    ended = serving.deploy(LARGE, answer_pattern="never said")
    assert "The new configuration was lost: the answer was 'Hello" in ended.result["msg"]
    assert "The last good configuration was restored and answers" in ended.result["msg"]


def test_a_service_that_no_run_has_kept_is_kept_before_it_is_replaced(serving: Service) -> None:
    (serving.state / "last_good.json").write_text("{ damaged", encoding="utf-8")
    serving.engine({LARGE: UNKNOWN})
    ended = serving.deploy(LARGE, served_name="new", port=free_port())
    assert "The last good configuration was restored and answers" in ended.result["msg"], ended.result


# --- time ---------------------------------------------------------------------------------------------------------------------------------


def test_a_limit_ends_the_wait_and_the_next_run_waits_on(service: Service, go: Path) -> None:
    service.engine({SMALL: [*LOADS, {"wait_for": str(go)}, *UP]})
    ended = service.deploy(SMALL, timeout_s=8, poll_s=2)
    said = ended.result["msg"]
    assert ended.rc == 1 and "still loading (48 %)" in said and "The start goes on" in said and "Run the deployment again to wait on" in said
    assert ended.result["details"]["loss"]["class"] == "timeout" and not ended.result["details"]["stopped"]
    before = service.invocation
    again = service.deploy(SMALL, timeout_s=2, poll_s=1)
    assert again.rc == 1 and "still loading" in again.result["msg"], "it waits anew, not on"
    assert service.invocation == before
    go.touch()
    last = service.deploy(SMALL, timeout_s=30)
    assert last.rc == 0 and last.result["ready"] and service.invocation == before and not (service.state / "ladder.json").exists()


def test_a_silent_phase_loses_a_start_of_ours(serving: Service) -> None:
    serving.engine({LARGE: LOADS})
    ended = serving.deploy(LARGE, hang_budgets_s={"weights": 3})
    assert "no new line for" in ended.result["msg"] and "restored and answers" in ended.result["msg"]
    assert ended.result["details"]["loss"]["class"] == "hang"


def test_a_server_that_says_it_serves_and_does_not_is_lost_in_the_end(serving: Service) -> None:
    serving.engine({LARGE: [*LOADS, {"log": "The server is fired up and ready to roll!"}]})
    ended = serving.deploy(LARGE, hang_budgets_s={"serving": 3})
    assert "in the phase 'serving'" in ended.result["msg"] and "restored and answers" in ended.result["msg"]


# --- runs that are killed, and runs side by side ---------------------------------------------------------------------------------------------


POINTS: dict[str, t.Callable[[dict[str, t.Any]], bool]] = {
    "the first rung loads": lambda record: record["rung"] == 0 and bool(record["identity"]),
    "it was lost": lambda record: len(record["lost"]) == 1 and not record["identity"],
    "the next one loads": lambda record: record["rung"] == 1 and bool(record["identity"]),
    "the way back loads": lambda record: record["rung"] == -1 and bool(record["identity"]),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_is_gone_on_with(serving: Service, go: Path, point: str) -> None:
    """The story is told whole by the next run."""
    waits = {name: [{"log": "gate: ok"}, {"wait_for": str(go)}] for name in POINTS}
    begin = [waits[name] if name == point else [] for name in ("the first rung loads", "the next one loads", "the way back loads")]
    serving.engine({LARGE: [*begin[0], *NO_MEMORY], OTHER: [*begin[1], *UNKNOWN], SMALL: [*begin[2], *UP]})
    run = uuid.uuid4().hex
    for call in range(1, 20):
        assert serving.call(LARGE, OTHER, run=run, call=call, poll_s=1).rc == 0
        if POINTS[point](serving.kept("ladder.json")):
            break
    go.touch()
    ended = serving.deploy(LARGE, OTHER)
    assert ended.rc == 1 and "restored and answers" in ended.result["msg"], ended.result
    assert [row["name"] for row in ended.result["details"]["lost"]] == ["c8192", "c2048"]
    assert serving.unit.properties["ActiveState"] == "active"


def test_a_start_that_was_not_noted_any_more_is_taken_for_ours(service: Service) -> None:
    service.engine({SMALL: [*LOADS, {"sleep": 60}]})
    service.deploy(SMALL, calls=1, poll_s=1)
    before, record = service.invocation, service.kept("ladder.json")
    (service.state / "ladder.json").write_text(json.dumps({**record, "identity": {}}), encoding="utf-8")
    service.deploy(SMALL, calls=1, poll_s=1)
    assert service.invocation == before and service.kept("ladder.json")["identity"]["invocation_id"] == before and service.kept("ladder.json")["owned"]


def test_a_start_that_ended_unseen_is_followed_by_the_next_rung(service: Service, go: Path) -> None:
    service.engine({LARGE: [*LOADS, {"wait_for": str(go)}, *NO_MEMORY[1:]]})
    service.deploy(LARGE, SMALL, calls=1, poll_s=1)
    go.touch()
    while service.unit.properties["ActiveState"] == "active":
        pass
    planned = service.deploy(LARGE, SMALL, _ansible_check_mode=True)
    assert planned.rc == 0 and planned.result["rung"] == 1 and planned.result["restarted"] and not service.invocation
    ended = service.deploy(LARGE, SMALL)
    assert ended.rc == 0 and ended.result["rung"] == 1 and [row["name"] for row in ended.result["lost"]] == ["c8192"]


def test_an_unfinished_start_that_somebody_stopped_is_made_again(service: Service) -> None:
    service.engine({SMALL: [*LOADS, {"sleep": 60}]})
    service.deploy(SMALL, calls=1, poll_s=1)
    service.unit.stop()
    service.engine()
    assert service.deploy(SMALL).rc == 0


def test_a_killed_run_whose_start_answers_what_it_was_asked_is_not_stopped_by_another_question(serving: Service, go: Path) -> None:
    serving.engine({LARGE: [*LOADS, {"wait_for": str(go)}, *UP]})
    serving.deploy(LARGE, calls=1, poll_s=1)
    go.touch()
    before = serving.invocation
    ended = serving.deploy(LARGE, question="Other?", answer_pattern="never said")
    assert ended.rc == 1 and "It still answers what it was asked before" in ended.result["msg"] and serving.invocation == before


def test_the_later_of_two_runs_decides_and_the_first_ends(serving: Service, go: Path) -> None:
    serving.engine({LARGE: [*LOADS, {"sleep": 60}], OTHER: [*LOADS, {"wait_for": str(go)}, *UP]})
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    assert not serving.call(LARGE, run=first, poll_s=1).result["finished"]
    assert not serving.call(OTHER, run=second, poll_s=1).result["finished"]
    before = serving.invocation
    told = serving.call(LARGE, run=first, call=2, poll_s=1)
    assert told.rc == 1 and "another run took over with other settings" in told.result["msg"] and "The service still runs" in told.result["msg"]
    assert serving.invocation == before
    go.touch()
    assert serving.call(OTHER, run=second, call=2, poll_s=20).result["ready"] and serving.invocation == before


def test_two_runs_of_one_deployment_end_alike(serving: Service, go: Path) -> None:
    serving.engine({LARGE: [*LOADS, {"wait_for": str(go)}, *UP]})
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    assert not serving.call(LARGE, run=first, poll_s=1).result["finished"]
    before = serving.invocation
    assert not serving.call(LARGE, run=second, poll_s=1).result["finished"]
    assert not serving.call(LARGE, run=first, call=2, poll_s=1).result["finished"]
    go.touch()
    assert serving.call(LARGE, run=second, call=2, poll_s=20).result["ready"]
    assert serving.call(LARGE, run=first, call=3, poll_s=20).result["ready"] and serving.invocation == before


def test_a_run_that_was_taken_over_acts_no_more(serving: Service, go: Path) -> None:
    serving.engine({LARGE: [*LOADS, {"wait_for": str(go)}, *UNKNOWN]})
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    serving.call(LARGE, run=first, poll_s=1)
    serving.call(LARGE, run=second, poll_s=1)
    go.touch()
    seen = serving.call(LARGE, run=first, call=2, poll_s=20)
    assert seen.rc == 0 and seen.result["progress"] == "another run took over and goes on"
    assert serving.kept("ladder.json")["lost"] == []
    for call in range(2, 9):
        ended = serving.call(LARGE, run=second, call=call, poll_s=10)
        if ended.rc:
            break
    assert "restored and answers" in ended.result["msg"]
    last = serving.call(LARGE, run=first, call=3)
    assert last.rc == 1 and "another run took over and ended" in last.result["msg"] and serving.invocation


# --- damaged and hostile files of state -----------------------------------------------------------------------------------------------------


def spoil_fifo(path: Path) -> None:
    os.mkfifo(path)


def spoil_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def spoil_giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def spoil_deep(path: Path) -> None:
    path.write_text("[" * 200_000, encoding="ascii")


def spoil_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00{")


def spoil_types(path: Path) -> None:
    odd = {"texts": [], "digest": 7, "failed": {"x": 1}, "inputs": {}, "run": [], "rung": "0", "owned": 1, "identity": [1], "check": None, "lost": "x"}
    path.write_text(json.dumps(odd), encoding="ascii")


SPOIL = (spoil_fifo, spoil_link, spoil_giant, spoil_deep, spoil_bytes, spoil_types)


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_spoilt_file_counts_as_none_and_is_named(tmp_path: Path, spoil: t.Callable[[Path], None]) -> None:
    for name in ("ladder.json", "rungs.json", "last_good.json"):
        spoil(tmp_path / name)
    state = ServiceState(str(tmp_path))
    assert state.record() is None and not state.good() and state.good_pools("d") == {}
    assert memory_from(state.rungs(), "i").failed == {}
    assert len(state.faults) >= (1 if spoil is spoil_types else 3), state.faults
    state.keep_rungs({"inputs": "i", "failed": {}})
    assert ServiceState(str(tmp_path)).rungs() == {"inputs": "i", "failed": {}}
    assert not Path("/etc/passwd").is_symlink() and stat.S_IMODE(Path("/etc/passwd").stat().st_mode) == 0o644


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_spoilt_note_of_the_gate_counts_as_none(tmp_path: Path, spoil: t.Callable[[Path], None]) -> None:
    """The service's user may write there, and could lead root anywhere, or let it wait for ever."""
    spoil(tmp_path / "started.json")
    assert read_start_note(str(tmp_path / "started.json")) == (("7", "") if spoil is spoil_types else ("", ""))


def test_spoilt_files_stop_neither_run_nor_service(serving: Service) -> None:
    for name, spoil in (("ladder.json", spoil_fifo), ("rungs.json", spoil_link), ("last_good.json", spoil_deep)):
        (serving.state / name).unlink(missing_ok=True)
        spoil(serving.state / name)
    before = serving.invocation
    ended = serving.deploy(SMALL)
    assert ended.rc == 0 and ended.result["ready"] and serving.invocation == before, ended.result
    serving.engine({LARGE: UNKNOWN})
    assert "restored and answers" in serving.deploy(LARGE).result["msg"]
