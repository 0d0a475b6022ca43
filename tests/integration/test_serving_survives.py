# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A serving engine survives re-runs: real systemd, journal, LXC and role; the engine is the light one, a stand-in.

Each case begins with a service that answers and runs the role once more (or kills it, or runs two of it). In the end the service answers, asked
from inside the container at its own port and with its own key, or the last message says truly why it does not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import typing as t
from collections.abc import Callable, Iterator

import pytest
import service_node
from service_node import ENV, ServiceNode
from test_service_faults import GO, GPUS, LOADED, SERVES, UNIT, Ended, Running, foreign, put, raised, until

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif(not os.environ.get("KPRO_TEST_EVERYTHING"), reason="a larger matrix: set KPRO_TEST_EVERYTHING=1")

BASE, BROKEN, SLOW, NO_MEMORY, HANGS, OTHER = 4096, 8192, 2048, 16384, 1024, 3072
NEW_PORT = 30123
UNKNOWN_MODEL = raised(
    "ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this architecture.",
)
GRAPHS = [
    {"start": {"case": "9b-2x4090", "scale": 0.004, "to": "Capture cuda graph end"}},
    *raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.40 GiB. GPU 0 has a total capacity of 47.40 GiB"),
]
SHARDS: list[dict[str, t.Any]] = [{"start": {"case": "9b-2x4090", "scale": 0.004, "to": "shards:  75%"}}]
# What the engine does by its context length.
CASES: dict[int, list[dict[str, t.Any]]] = {
    BROKEN: [*LOADED, {"sleep": 1.0}, *UNKNOWN_MODEL],
    SLOW: [*SHARDS, {"wait_for": GO}, *SERVES],
    NO_MEMORY: GRAPHS,
    HANGS: SHARDS,
}
LOST = "The new configuration was lost: the model type 'qwen9' is unknown"
BACK = "The last good configuration was restored and answers"
LEFT = "This run did not start it, so it was left as it is. The service still runs"

# Asks the service by what its own files say, as a client does.
ASK = """
import json, urllib.request
lines = dict(line.split(": ", 1) for line in open("/etc/kpro-llm/sglang.yaml") if ": " in line and not line.startswith("#"))
key, port, name = open("/etc/kpro-llm/api_key").read().strip(), int(lines["port"]), json.loads(lines["served-model-name"])
question = {"model": name, "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(question).encode(), {"Authorization": f"Bearer {key}"})
message = json.load(urllib.request.urlopen(request, timeout=10))["choices"][0]["message"]
print(json.dumps({"text": (message["content"] or "") + (message["reasoning_content"] or ""), "port": port, "name": name,
                  "context": int(lines["context-length"])}))
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A re-run.

    :param variables: beside those of the base.
    :param words: in the last message; none: the run ends well.
    :param same: the engine that served before is the one that answers in the end.
    :param context: with which context length the service answers in the end.
    """

    variables: t.Mapping[str, t.Any]
    words: tuple[str, ...] = ()
    same: bool = True
    context: int = BASE
    check: bool = False


def options(context: int) -> dict[str, t.Any]:
    return {"sglang_server__options": {"context_length": context, "max_running_requests": 4}}


WRONG = {"sglang_server__answer_pattern": "never said"}
BAD = options(BROKEN)
BACK_AGAIN = {"words": (LOST, BACK), "same": False}
RERUNS: dict[str, Case] = {
    "nothing": Case({}),
    "wrong_pattern": Case(WRONG, ("the answer was 'Hello from", LEFT)),
    "changed_question": Case({"sglang_server__question": "Six times seven?", "sglang_server__answer_pattern": "42"}, ("accepted is '42'", LEFT)),
    "no_tools": Case({"sglang_server__ready_level": "tools"}, ("tool", LEFT)),
    "wrong_pattern_in_check_mode": Case(WRONG, ("the answer was 'Hello from", LEFT), check=True),
    "bad_setting_in_check_mode": Case({**BAD, **WRONG}, check=True),
    "new_name_in_check_mode": Case({"sglang_server__served_name": "new"}, check=True),
    "no_time": Case({"sglang_server__ready_timeout_s": 1}),
    "no_patience": Case({"sglang_server__hang_budgets_s": {"serving": 1, "warmup": 1}}),
    "wrong_pattern_new_limits": Case({**WRONG, "sglang_server__ready_timeout_s": 300, "sglang_server__on_failure": "leave"}, (LEFT,)),
    "wrong_pattern_by_force": Case({**WRONG, "sglang_server__force_restart": True}, ("It still answers what it was asked before",), same=False),
    "bad_setting": Case(BAD, **BACK_AGAIN),
    "bad_setting_new_port": Case({**BAD, "sglang_server__port": NEW_PORT}, **BACK_AGAIN),
    "bad_setting_new_address": Case({**BAD, "sglang_server__bind_address": "127.0.0.1"}, **BACK_AGAIN),
    "bad_setting_new_name": Case({**BAD, "sglang_server__served_name": "new"}, **BACK_AGAIN),
    "bad_setting_new_key": Case({**BAD, "sglang_server__api_key": "another-key-123"}, **BACK_AGAIN),
    "bad_setting_no_key": Case({**BAD, "sglang_server__api_key": "none"}, **BACK_AGAIN),
    "bad_setting_new_level": Case({**BAD, "sglang_server__ready_level": "tools"}, **BACK_AGAIN),
    "bad_setting_wrong_pattern": Case({**BAD, **WRONG}, **BACK_AGAIN),
    "bad_setting_no_time": Case({**BAD, "sglang_server__ready_timeout_s": 6}, **BACK_AGAIN),
    "bad_setting_left": Case({**BAD, "sglang_server__on_failure": "leave"}, **BACK_AGAIN),
    "all_new": Case(
        {**BAD, **WRONG, "sglang_server__port": NEW_PORT, "sglang_server__bind_address": "127.0.0.1", "sglang_server__served_name": "new"}, **BACK_AGAIN
    ),
    "good_setting_wrong_pattern": Case({**options(OTHER), **WRONG}, ("the answer was 'Hello from", BACK), same=False),
    "good_setting_new_port": Case({**options(OTHER), "sglang_server__port": NEW_PORT}, same=False, context=OTHER),
    "good_setting_no_tools": Case({**options(OTHER), "sglang_server__ready_level": "tools"}, (BACK,), same=False),
    "ladder_that_ends": Case(
        {"sglang_server__profiles": [{"name": "a", "options": {"context_length": NO_MEMORY}}, {"name": "b", "options": {"context_length": BROKEN}}]},
        (LOST, "Before it, a was lost: out of memory in graph capture", BACK), same=False
    ),
    "ladder_with_a_good_rung": Case(
        {"sglang_server__profiles": [{"name": "a", "options": {"context_length": NO_MEMORY}}, {"name": "b", "options": {"context_length": OTHER}}]},
        same=False, context=OTHER
    ),
    "hang": Case({**options(HANGS), "sglang_server__hang_budgets_s": {"weights": 5}}, ("no new line for", BACK), same=False),
    "address_of_nobody": Case({"sglang_server__bind_address": "203.0.113.1"}, ("cannot be had", BACK, "correct sglang_server__bind_address"), same=False),
    "model_not_mounted": Case({"sglang_server__model_path": "/srv/models/absent"}, ("/srv/models/absent", BACK), same=False),
    "device_not_there": Case({"sglang_server__devices": ["/dev/nvidia9"]}, ("/dev/nvidia9", BACK), same=False),
    "unknown_option": Case({"sglang_server__options": {"no_such_flag": 1}}, ("SGLang 0.5.23 does not know it",)),
    "refused_option": Case({"sglang_server__options": {"reasoning_parser": "no_such_parser"}}, ("invalid choice", "The service still runs")),
    "pattern_that_is_none": Case({"sglang_server__answer_pattern": "("}, ("no regular expression", "The service still runs")),
}  # fmt: skip
IN_THE_GATE = {"wrong_pattern", "all_new"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceNode]:
    started = service_node.start(f"survives{os.environ.get('PYTEST_XDIST_WORKER', '')}", tmp_path_factory.mktemp("survives"))
    yield started
    if not os.environ.get("KPRO_TEST_KEEP_NODE"):
        service_node.stop(started)


@pytest.fixture(autouse=True)
def ended_in_the_end() -> Iterator[None]:
    yield
    Running.end_all()


def begin(node: ServiceNode, variables: t.Mapping[str, t.Any] | None = None, *arguments: str) -> Running:
    return Running(node, {"sglang_server__gpus": list(GPUS), **options(BASE), **(variables or {})}, *arguments)


def answer(node: ServiceNode) -> dict[str, t.Any]:
    """What the service answers; empty if it does not."""
    said = node.inside("python3 -", stdin=ASK, check=False)
    return dict(json.loads(said)) if said else {}


def invocation(node: ServiceNode) -> str:
    return node.inside(f"systemctl show -P InvocationID {UNIT}").strip()


@pytest.fixture
def serving(node: ServiceNode) -> ServiceNode:
    """A service that was deployed with the base's settings, and answers."""
    script(node)
    node.inside(f"systemctl stop foreign 2>/dev/null; rm -f {GO}", check=False)
    said = answer(node)
    same = (said.get("context"), said.get("port"), said.get("name")) == (BASE, service_node.PORT, "light")
    if not same or node.inside("ls /var/lib/kpro-llm/ladder.json", check=False):
        ended = begin(node).end()
        assert ended.rc == 0 and ended.result["ready"], ended.output
    assert "Hello" in answer(node)["text"]
    return node


def script(node: ServiceNode, **more: t.Any) -> None:
    steps = [{"by_option": {"option": "context-length", "cases": {str(context): case for context, case in CASES.items()}, "else": SERVES}}]
    put(node, steps, **more)


def last_message(ended: Ended) -> str:
    assert ended.rc, ended.output
    return str(ended.failures[-1]["msg"])


def survived(node: ServiceNode, context: int = BASE) -> None:
    said = answer(node)
    assert "Hello from" in said.get("text", "") and said["context"] == context, said
    assert node.inside("ls /var/lib/kpro-llm/ladder.json", check=False) == "", "the run left no unfinished business"


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in IN_THE_GATE else everything) for name in RERUNS])
def test_rerun(serving: ServiceNode, name: str) -> None:
    case = RERUNS[name]
    before = invocation(serving)
    ended = begin(serving, case.variables, *(["--check", "--diff"] if case.check else [])).end()
    if case.words:
        said = last_message(ended)
        assert all(words in said for words in case.words), said
    else:
        assert ended.rc == 0, ended.output
    survived(serving, case.context)
    assert (invocation(serving) == before) is case.same
    if case.same:
        assert "changed: [container]\n" not in ended.output or case.check, ended.output


# --- an engine that a check does not fit ------------------------------------------------------------------------------------------------------


@everything
def test_thinking_model_whose_answer_misses(node: ServiceNode) -> None:
    """It was deployed as far as its health, and answers nothing but thoughts."""
    script(node, answer="", reasons="I am a model, hello from me")
    assert begin(node, {"sglang_server__ready_level": "health", "sglang_server__force_restart": True}).end().rc == 0
    before = invocation(node)
    said = last_message(begin(node).end())
    assert "all went into the reasoning" in said and LEFT in said
    assert invocation(node) == before and "hello from me" in answer(node)["text"]
    # And a bad setting brings it back by its own level.
    said = last_message(begin(node, BAD).end())
    assert LOST in said and BACK in said and "hello from me" in answer(node)["text"]
    node.inside(f"systemctl stop {UNIT}")


@everything
def test_engine_that_boots_is_waited_for_and_left(serving: ServiceNode) -> None:
    """It was started by the container's boot and by no run."""
    serving.run(f"pct reboot {serving.vmid}")
    serving.wait_until_up()
    said = last_message(begin(serving, WRONG).end())
    assert "the answer was 'Hello from" in said and LEFT in said
    survived(serving)


@everything
def test_engine_that_was_killed_is_started_and_survives_a_wrong_pattern(serving: ServiceNode) -> None:
    serving.inside(f"systemctl kill --signal=SIGKILL {UNIT}")
    said = last_message(begin(serving, WRONG).end())
    assert "It still answers what it was asked before" in said
    survived(serving)


@everything
def test_port_of_somebody_else(serving: ServiceNode) -> None:
    foreign(serving, [{"listen": NEW_PORT}, {"healthy": True}], model="light")
    until(lambda: f":{NEW_PORT:04X} " in serving.inside("cat /proc/net/tcp"), "the other server listens")
    said = last_message(begin(serving, {"sglang_server__port": NEW_PORT}).end())
    assert f"port {NEW_PORT} is held by pid" in said and BACK in said
    assert serving.inside("systemctl is-active foreign").strip() == "active"
    survived(serving)


# --- time -----------------------------------------------------------------------------------------------------------------------------------


def test_start_that_is_slower_than_the_limit(serving: ServiceNode) -> None:
    """T2-19: neither the new start nor the way back is stopped for time."""
    said = last_message(begin(serving, {**options(SLOW), "sglang_server__ready_timeout_s": 6}).end())
    assert re.search(r"still loading \(\d+ %\)", said) and "The start goes on. Run the deployment again to wait on" in said, said
    loading = invocation(serving)
    assert serving.inside(f"systemctl is-active {UNIT}").strip() == "active"
    serving.inside(f"touch {GO}")
    ended = begin(serving, options(SLOW)).end()
    assert ended.rc == 0 and ended.result["ready"] and invocation(serving) == loading, ended.output
    survived(serving, SLOW)


@everything
def test_way_back_that_is_slower_than_the_limit(serving: ServiceNode) -> None:
    slow_back = {"by_option": {"option": "context-length", "cases": {str(BROKEN): CASES[BROKEN]}, "else": [*SHARDS, {"sleep": 15}, *SERVES]}}
    put(serving, [slow_back])
    said = last_message(begin(serving, {**BAD, "sglang_server__ready_timeout_s": 5}).end())
    assert LOST in said and BACK in said
    survived(serving)


# --- killed controllers, and two at once -----------------------------------------------------------------------------------------------------


def reading(serving: ServiceNode) -> Callable[[], dict[str, t.Any]]:
    def read() -> dict[str, t.Any]:
        text = serving.inside("cat /var/lib/kpro-llm/ladder.json", check=False)
        return dict(json.loads(text)) if text else {}

    return read


AT: dict[str, Callable[[dict[str, t.Any]], bool]] = {
    "before_the_start": lambda record: bool(record),
    "while_it_loads": lambda record: bool(record.get("identity")),
    "after_the_loss": lambda record: bool(record.get("lost")),
    "on_the_way_back": lambda record: record.get("rung") == -1 and bool(record.get("identity")),
}


@pytest.mark.parametrize("then", ["the_same", "the_old"])
@pytest.mark.parametrize("point", [pytest.param(point, marks=() if point == "while_it_loads" else everything) for point in AT])
def test_killed_controller(serving: ServiceNode, point: str, then: str) -> None:
    """The next run goes on, or, with the old settings, finds or makes the old service."""
    if then == "the_old" and point != "while_it_loads" and not os.environ.get("KPRO_TEST_EVERYTHING"):
        pytest.skip("a larger matrix: set KPRO_TEST_EVERYTHING=1")
    broken = {str(BROKEN): [*SHARDS, {"sleep": 4}, *UNKNOWN_MODEL]}
    put(serving, [{"by_option": {"option": "context-length", "cases": broken, "else": [{"sleep": 3}, *SERVES]}}])
    running, read = begin(serving, BAD), reading(serving)
    until(lambda: AT[point](read()), point)
    running.process.kill()
    running.process.wait()
    ended = begin(serving, BAD if then == "the_same" else None).end()
    if then == "the_same":
        said = last_message(ended)
        assert LOST in said and BACK in said, said
    else:
        assert ended.rc == 0 and ended.result["ready"], ended.output
    survived(serving)


@everything
@pytest.mark.parametrize("second", ["the_same", "another"])
def test_second_controller_at_once(serving: ServiceNode, second: str) -> None:
    """Two runs of one deployment end alike; of two deployments the later one decides, and the first one says so."""
    put(serving, [{"by_option": {"option": "context-length", "cases": {str(BROKEN): [*SHARDS, {"sleep": 12}, *UNKNOWN_MODEL]}, "else": SERVES}}])
    first, read = begin(serving, BAD), reading(serving)
    until(lambda: AT["while_it_loads"](read()), "the first one has started")
    later = Running(serving, {"sglang_server__gpus": list(GPUS), **(BAD if second == "the_same" else options(OTHER))}, report="later.json")
    later_ended, first_ended = later.end(), first.end()
    if second == "the_same":
        assert BACK in last_message(later_ended)
        assert "another run" in last_message(first_ended) or BACK in last_message(first_ended), first_ended.output
    else:
        assert later_ended.rc == 0 and later_ended.result["ready"], later_ended.output
        assert "another run took over" in last_message(first_ended) and "The service still runs" in last_message(first_ended)
    survived(serving, BASE if second == "the_same" else OTHER)


# --- damaged state ----------------------------------------------------------------------------------------------------------------------------


@everything
@pytest.mark.parametrize("how", ["echo broken > {}", "mkfifo {}", "ln -s /dev/zero {}", "truncate -s 1T {}", "true {}"])
def test_damaged_state(serving: ServiceNode, how: str) -> None:
    """What serves is kept before it is replaced, where its record is lost; nothing hangs on what lies in its place."""
    files = ("/var/lib/kpro-llm/last_good.json", "/var/lib/kpro-llm/rungs.json", "/var/lib/kpro-llm/ladder.json")
    serving.inside("; ".join(f"rm -rf {file}; {how.format(file)}" for file in files))
    said = last_message(begin(serving, BAD).end())
    assert LOST in said and BACK in said
    survived(serving)
    assert begin(serving).end().rc == 0


@everything
def test_engine_of_a_restored_environment(serving: ServiceNode) -> None:
    """Another environment with another engine version that does not start: the old one comes back with its own."""
    newer = f"{ENV}-2"
    service_node.put_engine(serving, newer, version="0.5.24")
    said = last_message(begin(serving, {**BAD, "sglang_server__venv": newer}).end())
    assert "installed is sglang 0.5.24" in said and BACK in said
    survived(serving)
