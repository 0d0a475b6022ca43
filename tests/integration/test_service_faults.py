# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The service phase against faults: real systemd, journal, LXC, GPU devices' modes; the engine is the light one, a stand-in.

Each case runs the role sglang_server as the deployment does and asserts what a person gets: class, cause, remedy. Only the hang may end by a limit.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import time
import typing as t
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import service_node
from service_node import ENV, MODEL, OTHER_VMID, PORT, SCENARIO, VMID, ServiceNode

from conftest import ROOT

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif(not os.environ.get("KPRO_TEST_EVERYTHING"), reason="a larger matrix: set KPRO_TEST_EVERYTHING=1")

UNIT = "kpro-sglang.service"
GPUS = ("GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641", "GPU-e3b7f2d9-0c58-4a1b-8e94-b5d702c9f661")
HOLDS = dict.fromkeys(GPUS, 41_000)
# A little, so that those who must survive are holders of both GPUs and none that disturbs.
LITTLE = dict.fromkeys(GPUS, 90)
FOREIGN = "/srv/light/foreign.json"
SCHEDULER, GO = "/srv/light/scheduler.pid", "/srv/light/go"

FIRST_LINES: list[dict[str, t.Any]] = [{"start": {"case": "9b-2x4090", "scale": 0.004, "to": "Mamba Cache is allocated"}}]
LOADED: list[dict[str, t.Any]] = [{"start": {"case": "9b-2x4090", "scale": 0.004}}, {"child": {"hold": HOLDS, "pid_file": SCHEDULER}}]
SERVES: list[dict[str, t.Any]] = [*LOADED, {"listen": 0}, {"sleep": 0.3}, {"healthy": True}]
# Serves once it is let go: for as long as a test needs it to be waited for.
WAITS: list[dict[str, t.Any]] = [*LOADED, {"wait_for": GO}, *SERVES[len(LOADED) :]]


def raised(*lines: str) -> list[dict[str, t.Any]]:
    """A rank's exception and the end that follows, with the echoes around it."""
    return [
        {"log": "[2026-11-29 12:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"},
        {"log": '  File "/opt/kpro-llm/sglang/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 6362, in run_scheduler_process'},
        *({"log": line} for line in lines),
        {"log": "[2026-11-29 12:00:00] Received sigquit from a child process. It usually means the child failed."},
        {"signal": 9},
    ]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How the service phase ended."""

    rc: int
    output: str
    result: dict[str, t.Any]
    failures: list[dict[str, t.Any]]
    seconds: float

    @property
    def details(self) -> dict[str, t.Any]:
        """Of the task that lost the start."""
        assert self.rc, self.output
        found = next((failure["details"] for failure in self.failures if "diagnosis" in failure.get("details", {})), None)
        assert found is not None, self.output
        return found

    @property
    def loss(self) -> str:
        return str(self.details["loss"]["class"])

    def lost(self, class_: str, cause: str, remedy: str, *, loss: str = "") -> dict[str, t.Any]:
        """Assert how the start was lost, and that a person is told so in the last message too."""
        found: dict[str, t.Any] = self.details["diagnosis"]
        assert found["class"] == class_, found
        assert cause in found["cause"], found
        assert remedy in found["remedy"], found
        assert loss in ("", self.loss), self.details["loss"]
        assert self.loss != "timeout"
        last = self.failures[-1]["msg"]
        assert cause in last and remedy in last, last
        return found


class Running:
    """The service phase, under way."""

    begun: t.ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, node: ServiceNode, variables: dict[str, t.Any], *arguments: str, report: str = "report.json") -> None:
        self.report = node.folder / report
        self.report.unlink(missing_ok=True)
        given = json.dumps({**variables, "report": str(self.report)})
        argv = node.ansible("ansible-playbook", ROOT / "tests/integration/service/start.yml", "-e", given, *arguments)
        self.began = time.monotonic()
        self.process = subprocess.Popen(argv, env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
        self.begun.append(self.process)

    @classmethod
    def end_all(cls) -> None:
        """End what a test began and, having failed, did not wait for."""
        for process in cls.begun:
            process.kill()
            process.wait()
        cls.begun.clear()

    def end(self) -> Ended:
        output = self.process.communicate(timeout=1000)[0]
        texts = re.findall(r"^(?:fatal|\[ERROR\].*|failed): \[container\][^\n]*?: (?:FAILED|UNREACHABLE)! => (\{.*)", output, re.MULTILINE)
        failures = [json.JSONDecoder().raw_decode(text)[0] for text in texts]
        result = json.loads(self.report.read_text(encoding="utf-8")) if self.report.exists() else {}
        return Ended(self.process.returncode, output, result, failures, time.monotonic() - self.began)


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceNode]:
    """A node of its own for each file that uses it."""
    name = request.module.__name__.removeprefix("test_").replace("_", "-")
    started = service_node.start(f"{name}{os.environ.get('PYTEST_XDIST_WORKER', '')}", tmp_path_factory.mktemp("service"))
    yield started
    if not os.environ.get("KPRO_TEST_KEEP_NODE"):
        service_node.stop(started)


@dataclasses.dataclass
class Bystanders:
    """Processes that are none of ours, with GPUs open and some memory: none may be harmed by any test."""

    node: ServiceNode
    renewed: bool = False

    def start(self) -> None:
        self.renewed = True
        put(self.node, [{"hold": LITTLE}], path="/srv/light/little.json")
        engine = f"{ENV}/lib/python3.11/site-packages/sglang/launch_server.py"
        other = "mkdir -p /srv/light && cat > /srv/light/engine.py"
        text = (ROOT / "tests/sandbox/engine/light/engine.py").read_text(encoding="utf-8")
        little = json.dumps({"steps": [{"hold": LITTLE}]})
        node = self.node
        node.run(f"mkdir -p /srv/light && cat > /srv/light/engine.py && echo '{little}' > /srv/light/little.json", stdin=text)
        node.run(f"pct status {OTHER_VMID} | grep -q running || pct start {OTHER_VMID}")
        node.wait_until_up(OTHER_VMID)
        node.inside(other, stdin=text, vmid=OTHER_VMID)
        node.inside("cat > /srv/light/little.json", stdin=little, vmid=OTHER_VMID)
        started = "systemctl stop {unit} 2>/dev/null; systemd-run --quiet --collect --unit={unit}"
        holds = f"{started.format(unit='bystander')} python3 /srv/light/engine.py /srv/light/little.json"
        node.run(holds)
        node.inside(holds, vmid=OTHER_VMID)
        # A user's own python, and one of the service user that is no engine: a shell of his, say.
        node.inside(f"{started.format(unit='own')} --uid=nobody python3 {engine} /srv/light/little.json")
        node.inside(f'{started.format(unit="shell")} --uid=sglang python3 -c "import time; time.sleep(100000)"')

    def pids(self) -> list[str]:
        """Return who they are; the same answer later says that all live."""
        return [
            self.node.run("systemctl show -P MainPID bystander").strip(),
            self.node.inside("systemctl show -P MainPID bystander", vmid=OTHER_VMID).strip(),
            *self.node.inside("systemctl show -P MainPID own shell").split(),
        ]


@pytest.fixture(scope="module")
def bystanders(node: ServiceNode) -> Bystanders:
    found = Bystanders(node)
    found.start()
    return found


@pytest.fixture(autouse=True)
def harmless(node: ServiceNode, bystanders: Bystanders) -> Iterator[None]:
    """Begin with a stopped service; whoever is foreign lives on."""
    node.inside(
        f"systemctl stop {UNIT} foreign stray 2>/dev/null; systemctl reset-failed; rm -rf /etc/systemd/system/{UNIT}.d; systemctl daemon-reload", check=False
    )
    before = bystanders.pids()
    assert "0" not in before and len(before) == 4, before
    bystanders.renewed = False
    yield
    Running.end_all()
    # A reboot ends everybody.
    assert bystanders.renewed or bystanders.pids() == before


def put(node: ServiceNode, steps: list[dict[str, t.Any]], path: str = SCENARIO, **more: t.Any) -> None:
    node.inside(f"cat > {path}", stdin=json.dumps({"steps": steps, "scale": 0.1, **more}))


def begin(node: ServiceNode, steps: list[dict[str, t.Any]], variables: dict[str, t.Any] | None = None, **scenario: t.Any) -> Running:
    put(node, steps, **scenario)
    node.inside(f"rm -f {SCHEDULER} {GO}")
    return Running(node, {"sglang_server__gpus": list(GPUS), **(variables or {})})


def run(node: ServiceNode, steps: list[dict[str, t.Any]], variables: dict[str, t.Any] | None = None, **scenario: t.Any) -> Ended:
    return begin(node, steps, variables, **scenario).end()


def good(node: ServiceNode, **scenario: t.Any) -> dict[str, t.Any]:
    ended = run(node, SERVES, **scenario)
    assert ended.rc == 0 and ended.result["ready"], ended.output
    return ended.result


def foreign(node: ServiceNode, steps: list[dict[str, t.Any]], *, after_gate: bool = False, **scenario: t.Any) -> None:
    """Start a server that is none of ours in our container; after our gate if told so."""
    put(node, steps, path=FOREIGN, **scenario)
    wait = "while ! [ -e /run/kpro-sglang/started.json ]; do sleep 0.05; done;" if after_gate else ""
    program = f"exec python3 {ENV}/lib/python3.11/site-packages/sglang/launch_server.py {FOREIGN}"
    node.inside(f'systemd-run --quiet --collect --uid=nobody --unit=foreign sh -c "{wait} {program}"')


def until(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def waiting(node: ServiceNode) -> bool:
    """Whether sglang_ready has been called once and is called again."""
    return node.inside("cat /run/kpro-llm/ready.json", check=False) != ""


def logged(node: ServiceNode, text: str) -> bool:
    """Whether the start that is under way has written a text; the unit was stopped before."""
    return text in node.inside(
        f"systemctl -q is-active {UNIT} && journalctl --no-pager --output=cat _SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID {UNIT})", check=False
    )


# --- it works ---------------------------------------------------------------------------------------------------------------------------


def test_stale_log_and_leftovers_of_ours_do_not_matter(node: ServiceNode) -> None:
    """An earlier start's fatal lines are in the journal, a worker of an earlier run holds the GPUs: the next start is ready in one go."""
    put(node, [{"hold": HOLDS}], path="/srv/light/stray.json")
    lost = run(node, [*FIRST_LINES, *raised("AssertionError: max_running_request is zero")])
    lost.lost("state_slots_too_few", "fewer slots than one request needs", "max_mamba_cache_size")
    engine = f"{ENV}/lib/python3.11/site-packages/sglang/launch_server.py"
    node.inside(f"systemd-run --quiet --collect --uid=sglang --unit=stray {ENV}/bin/python {engine} /srv/light/stray.json")
    until(lambda: "41" in node.inside("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"), "the leftover holds memory")
    listed = node.module("gpu_cleanup", check=True, gpus=list(GPUS))
    assert [(row["how"], "runs from /opt/kpro-llm" in row["reason"]) for row in listed["ended"]] == [("planned", True)], listed
    ended = run(node, SERVES)
    assert ended.rc == 0 and ended.result["ready"], ended.output
    assert set(ended.result["phases_s"]) >= {"launch", "weights", "pools", "graphs", "warmup"}, ended.result
    assert node.inside("systemctl is-active stray", check=False).strip() != "active"


# --- memory: the five texts, and what is like them ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Text:
    """An error text of the engine and what it means."""

    line: str
    class_: str
    cause: str
    remedy: str
    direction: str
    before: tuple[str, ...] = ()


TEXTS = {
    "increase": Text(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "pools_too_large",
        "14.1 GiB free after loading - 22.9 GiB x (1 - 0.85) = 10.6 GiB",
        "Set a smaller max_running_requests",
        "lower",
    ),
    "raise": Text(
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.85. Raise --mem-fraction-static above 0.884 (minimum "
        "viable value for this model and GPU).",
        "fraction_too_low",
        "0.884 is needed",
        "Raise mem_fraction_static above 0.884",
        "raise",
    ),
    "state": Text(
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-1291 (total_rest_memory=-3.05 GB, "
        "mamba_cache_per_req=76.00 MB). Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static",
        "hybrid_state_pool_too_large",
        "-3.05 GiB rest",
        "lowering it makes this worse",
        "raise",
    ),
    "slots": Text(
        "AssertionError: The mamba state cache is too small to serve any requests: max_running_requests is zero",
        "state_slots_too_few",
        "fewer slots than one request needs",
        "max_mamba_cache_size",
        "raise",
    ),
    "pool": Text(
        "RuntimeError: Memory pool size is too small",
        "pools_too_large",
        "do not fit into the 10.6 GiB",
        "Set a smaller max_running_requests",
        "lower",
        ("[2026-11-29 12:00:00] Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting "
         "--max-running-requests.",),
    ),
    "unbalanced": Text(
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=22.93",
        "gpu_unbalanced",
        "free memory differs by more than 10 %",
        "Look at the GPUs' memory on the node",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "increase" else everything) for name in TEXTS])
def test_not_enough_memory(node: ServiceNode, name: str) -> None:
    text = TEXTS[name]
    before = [{"log": line} for line in text.before]
    ended = run(node, [*before, *FIRST_LINES, *raised(text.line)])
    found = ended.lost(text.class_, text.cause, text.remedy)
    assert found["direction"] == text.direction and text.line in "\n".join(found["evidence"])
    until(lambda: node.inside(f"systemctl is-active {UNIT}", check=False).strip() in ("inactive", "failed"), "what was lost is stopped")


@everything
def test_weights_do_not_fit(node: ServiceNode) -> None:
    """The main process lives on for minutes; the first rank's error decides, not its end."""
    oom = (
        "[2026-11-29 12:00:00 TP1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 1 has a total capacity of 47.53 GiB of which"
        " 600.00 MiB is free. Process 4711 has 12.30 GiB memory in use."
    )
    to_weights = [{"start": {"case": "9b-2x4090", "scale": 0.004, "to": "Load weight end"}}]
    steps = [*to_weights, {"log": "[2026-11-29 12:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):"}, {"log": oom}]
    ended = run(node, steps)
    found = ended.lost("rank_died_main_alive", "process 4711 holds 12.30 GiB", "other holders of GPU memory", loss="start_failed")
    assert found["phase"] == "weights"


# --- who holds the GPUs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [pytest.param("container"), pytest.param("node", marks=everything)])
def test_somebody_else_holds_the_gpus(node: ServiceNode, place: str) -> None:
    """From inside, only that memory is in use can be seen; from the node, whose it is. Nobody is ended."""
    vmid = OTHER_VMID if place == "container" else 0
    start = "systemd-run --quiet --collect --unit=big python3 /srv/light/engine.py /srv/light/big.json"
    big = json.dumps({"steps": [{"hold": {GPUS[1]: 30_000}}]})
    enter: Callable[..., str] = (lambda line, **more: node.inside(line, vmid=vmid, **more)) if vmid else node.run
    enter("cat > /srv/light/big.json", stdin=big)
    enter(start)
    try:
        until(lambda: "30" in node.inside("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"), "memory is held")
        pid = int(enter("systemctl show -P MainPID big"))
        ended = run(node, SERVES)
        found = ended.lost("gpu_occupied", f"{GPUS[1]} holds 30", "kpro.llm.gpu_cleanup on the node names", loss="crashed")
        assert found["phase"] == "gate"
        where = {"container": VMID, "gpus": list(GPUS), "require_free": True, "memory_wait_s": 1}
        seen = node.module("gpu_cleanup", "node", **where)
        assert seen["failed"] and GPUS[1] in seen["msg"] and GPUS[0] not in seen["msg"], seen
        holder = f"container {OTHER_VMID}" if vmid else "big.service"
        assert holder in seen["msg"] and "not ours" in seen["msg"], seen
        row = next(row for row in seen["details"]["foreign"] if row["unit"] == "big.service")
        assert row["container"] == vmid and "/dev/nvidia1" in row["devices"]
        assert int(enter("systemctl show -P MainPID big")) == pid
    finally:
        enter("systemctl stop big")


@everything
def test_cleanup_returns_when_memory_is_free(node: ServiceNode) -> None:
    """The driver frees memory a while after the process is gone; the module waits for that and for nothing longer."""
    change_gpu_choices(node, teardown_s=1.5)
    try:
        put(node, [{"hold": HOLDS}], path="/srv/light/stray.json")
        engine = f"{ENV}/lib/python3.11/site-packages/sglang/launch_server.py"
        node.inside(f"systemd-run --quiet --collect --uid=sglang --unit=stray {ENV}/bin/python {engine} /srv/light/stray.json")
        until(lambda: "41" in node.inside("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"), "the leftover holds memory")
        done = node.module("gpu_cleanup", gpus=list(GPUS), require_free=True)
        assert not done["failed"] and [row["how"] for row in done["ended"]] == ["terminated"], done
        assert all(mib < 500 for mib in done["memory_used_mib"].values()), done
        assert {row["unit"] for row in done["foreign"]} == {"own.service"}
    finally:
        change_gpu_choices(node, teardown_s=0)


def change_gpu_choices(node: ServiceNode, **changes: t.Any) -> None:
    choices = {**json.loads(node.run("cat /etc/kpro-standin/gpu.json")), **changes}
    node.run("cat > /etc/kpro-standin/gpu.json && /usr/lib/kpro-standin/gpu/kernel.py refresh", stdin=json.dumps(choices))


# --- the start, and after -----------------------------------------------------------------------------------------------------------------


@everything
def test_unit_that_never_started(node: ServiceNode) -> None:
    node.inside(
        f'mkdir -p /etc/systemd/system/{UNIT}.d && printf "[Service]\\nUser=ghost\\n" > /etc/systemd/system/{UNIT}.d/broken.conf && systemctl daemon-reload'
    )
    ended = run(node, SERVES)
    assert ended.rc and ended.seconds < 120
    failure = ended.failures[0]
    assert failure["details"]["diagnosis"]["class"] == "never_started", failure
    assert "exit code 217" in failure["msg"] and "user credentials" in failure["msg"] and "systemctl cat" in failure["remedy"], failure["msg"]


@everything
def test_crash_after_ready(node: ServiceNode) -> None:
    identity = good(node)["identity"]
    node.inside(f"systemctl kill --kill-whom=main --signal=SIGKILL {UNIT}")
    seen = node.module("sglang_ready", identity=identity, port=PORT, level="health", poll_s=5)
    assert seen["failed"] and seen["details"]["diagnosis"]["class"] == "killed_from_outside", seen
    assert "signal 9" in seen["msg"] and "while it served" in seen["msg"] and seen["remedy"], seen["msg"]


@everything
def test_crash_loop(node: ServiceNode) -> None:
    """systemd starts it again and again: the wait for the first start ends, and says which start it is about."""
    steps = [*FIRST_LINES, *raised("RuntimeError: CUDA error: an illegal memory access was encountered")]
    first = run(node, steps, {"sglang_server__restart_delay_s": 1, "sglang_server__on_failure": "leave"})
    identity = node.inside(f"systemctl show -P InvocationID {UNIT}")
    # It may have been started again before somebody looked.
    assert first.details["diagnosis"]["class"] in ("cuda_error", "crash_loop") and "illegal memory access" in first.details["diagnosis"]["cause"]
    until(lambda: int(node.inside(f"systemctl show -P NRestarts {UNIT}")) >= 2, f"it was restarted ({identity})")
    seen = node.module("sglang_ready", identity=first_identity(node, first), port=PORT, poll_s=5)
    assert seen["failed"] and seen["details"]["diagnosis"]["class"] == "crash_loop", seen
    assert "NRestarts 0 -> " in seen["msg"] and "illegal memory access" in seen["msg"] and "Stop the unit" in seen["remedy"], seen


def first_identity(node: ServiceNode, ended: Ended) -> dict[str, t.Any]:
    """Return the identity of the start that the role waited for."""
    found = next(failure["details"]["identity"] for failure in ended.failures if "identity" in failure.get("details", {}))
    return dict(found)


@pytest.mark.parametrize(
    ("mute", "after_gate"),
    [pytest.param(False, True), *(pytest.param(*values, marks=everything) for values in ((False, False), (True, False), (True, True)))],
)
def test_port_of_somebody_else(node: ServiceNode, mute: bool, after_gate: bool) -> None:
    """Another server answers /health with 200 and serves a model of the same name, or only listens; it got the port before or after our gate looked."""
    theirs: list[dict[str, t.Any]] = [{"mute": PORT}] if mute else [{"listen": PORT}, {"healthy": True}]
    foreign(node, theirs, after_gate=after_gate, model="light", model_path=MODEL)
    if not after_gate:
        until(lambda: f":{PORT:04X} " in node.inside("cat /proc/net/tcp"), "the other server listens")
    ended = run(node, [*LOADED, {"wait_port": 0}, {"listen": 0}, {"sleep": 30}, {"healthy": True}])
    found = ended.lost("other_server_answers", f"port {PORT} is held by pid", "End the other server or choose another sglang_server__port")
    assert "not by kpro-sglang.service" in found["cause"] and "unit foreign.service" in found["cause"]
    assert node.inside("systemctl is-active foreign").strip() == "active"


@everything
def test_hang_in_load(node: ServiceNode) -> None:
    """The one case that may end by a limit: the phase's own."""
    hangs = [{"start": {"case": "9b-2x4090", "scale": 0.004, "to": "shards:  50%"}}]
    ended = run(node, hangs, {"sglang_server__hang_budgets_s": {"weights": 6}})
    found = ended.lost("hang", "no new line for", "sglang_server__hang_budgets_s", loss="hang")
    assert found["phase"] == "weights" and "25 %" in found["cause"]


@everything
@pytest.mark.parametrize(
    ("scenario", "class_", "cause", "remedy"),
    [
        ({"model": "another"}, "wrong_model", "serves another, wanted is light", "Another server may have the port"),
        ({"model_path": "/srv/models/old"}, "wrong_model", "loaded /srv/models/old", "older configuration"),
        ({"answer": "!!!!!!!!!!!!!!!!"}, "wrong_answer", "!!!!!!!!", "do not use this service"),
        (
            {"tool_message": {"content": '<tool_call>{"name": "get_time"}</tool_call>', "tool_calls": None}},
            "tool_parser_wrong",
            "tool call",
            "tool_call_parser",
        ),
    ],
    ids=["model", "path", "garbage", "parser"],
)
def test_what_answers_is_wrong(node: ServiceNode, scenario: dict[str, t.Any], class_: str, cause: str, remedy: str) -> None:
    ended = run(node, SERVES, {"sglang_server__ready_level": "tools" if "tool_message" in scenario else "answer"}, **scenario)
    ended.lost(class_, cause, remedy, loss=class_)


# --- what it was started with -------------------------------------------------------------------------------------------------------------


@everything
def test_bad_flag_is_refused_before_anything_is_touched(node: ServiceNode) -> None:
    before = good(node)["identity"]
    for options, words in (
        ({"no_such_flag": 1}, "engine option no_such_flag: SGLang 0.5.23 does not know it"),
        ({"reasoning_parser": "no_such_parser"}, "the installed engine refuses them: argument --reasoning-parser: invalid choice"),
    ):
        ended = run(node, SERVES, {"sglang_server__options": options})
        assert ended.rc and words in ended.failures[-1]["msg"], ended.output
        assert re.search("Look at sglang serve --help|Correct sglang_server__options", ended.failures[-1]["msg"])
        assert node.inside(f"systemctl show -P MainPID {UNIT}").strip() == str(before["main_pid"])


@everything
@pytest.mark.parametrize(
    ("log", "end", "class_", "cause", "remedy"),
    [
        ("unknown_option", {"exit": 2}, "bad_option", "refuses its options", "Correct sglang_server__options"),
        ("model_path_absent", {"exit": 1}, "model_path_missing", "no model folder", "model store is mounted"),
        ("weights_truncated", {"signal": 9}, "weights_truncated", "not whole", "kpro.llm.hf_model"),
        ("tokenizer_absent", {"signal": 9}, "tokenizer_missing", "tokenizer files are missing", "kpro.llm.hf_model"),
        ("no_memory", {"signal": 9}, "hybrid_state_pool_too_large", "not one slot", "Raise mem_fraction_static"),
    ],
)
def test_recorded_logs_of_the_real_engine(node: ServiceNode, log: str, end: dict[str, int], class_: str, cause: str, remedy: str) -> None:
    """A flag that only the engine refuses, a model path that is none, a truncated shard: the real engine's own log and exit."""
    ended = run(node, [{"replay": {"log": log, "scale": 0.02}}, end])
    ended.lost(class_, cause, remedy)
    if end == {"exit": 2}:
        assert node.inside(f"systemctl show -P NRestarts {UNIT}").strip() == "0"


@everything
def test_model_that_is_not_mounted(node: ServiceNode) -> None:
    ended = run(node, SERVES, {"sglang_server__model_path": "/srv/models/absent"})
    ended.lost("model_path_missing", "/srv/models/absent", "model store is mounted")


# --- killed from outside -------------------------------------------------------------------------------------------------------------------


@everything
def test_killed_scheduler(node: ServiceNode) -> None:
    running = begin(node, [*LOADED, {"sleep": 120}])
    until(lambda: node.inside(f"cat {SCHEDULER}", check=False) != "", "it has loaded")
    node.inside(f"kill -9 $(cat {SCHEDULER})")
    found = running.end().lost("child_killed", "ended by signal 9", "kernel")
    assert "crashed with exit code -9" in found["evidence"][0]


# As a kernel with a memory controller showed it for a container whose limit was hit (the sandbox's kernel has none).
MEMORY_EVENTS = "low 0\nhigh 0\nmax 1312\noom 1\noom_kill 1\noom_group_kill 0\n"


@everything
def test_ram_kill(node: ServiceNode) -> None:
    """The kernel's count decides; exit code and log are those of any killed scheduler."""
    events = "/srv/light/memory.events"
    node.inside(f"cat > {events}", stdin=MEMORY_EVENTS.replace("oom_kill 1", "oom_kill 0"))
    # It listens before it has loaded, so that the role ends and the module can be given the recorded file.
    early = run(node, [*FIRST_LINES, {"child": {"pid_file": SCHEDULER}}, {"listen": 0}, {"sleep": 300}], {"sglang_server__ready_level": "port"})
    assert early.rc == 0, early.output
    options = {"identity": early.result["identity"], "port": PORT, "level": "health", "memory_events": events}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(node.module, "sglang_ready", **options)
        until(lambda: waiting(node), "the module waits")
        node.inside(f"cat > {events}", stdin=MEMORY_EVENTS)
        node.inside(f"kill -9 $(cat {SCHEDULER})")
        seen = asked.result()
    found = seen["details"]["diagnosis"]
    assert found["class"] == "ram_kill" and "want of main memory" in seen["msg"] and "Raise gpu_container__memory_mib" in seen["remedy"], seen


@everything
def test_container_stopped_while_waiting(node: ServiceNode, bystanders: Bystanders) -> None:
    running = begin(node, WAITS)
    until(lambda: waiting(node), "the module waits")
    node.run(f"pct stop {VMID}")
    ended = running.end()
    node.run(f"pct start {VMID}")
    node.wait_until_up()
    node.inside(f"touch {GO}")
    bystanders.start()
    assert ended.rc, ended.output
    said = ended.failures[-1]["msg"]
    assert "was stopped while this step waited" in said and f"Container {VMID} is not running" in said and f"pct start {VMID}" in said, ended.output
    assert good(node)["ready"]


@everything
def test_journal_rotated_while_waiting(node: ServiceNode) -> None:
    running = begin(node, [*FIRST_LINES, {"wait_for": "/srv/light/rotated"}, *raised("AssertionError: max_running_request is zero")])
    until(lambda: logged(node, "Load weight end"), "it loads")
    node.inside("journalctl --rotate && journalctl --vacuum-size=1K && touch /srv/light/rotated", check=False)
    running.end().lost("state_slots_too_few", "fewer slots", "max_mamba_cache_size")
    node.inside("rm /srv/light/rotated")


@everything
@pytest.mark.parametrize("how", ["in_order", "at_once"])
def test_node_rebooted_while_waiting(node: ServiceNode, bystanders: Bystanders, how: str) -> None:
    """In order: the container goes first, under the module or before its next call. At once: the wait finds it again and sees that it is another boot."""
    running = begin(node, WAITS)
    until(lambda: waiting(node), "the module waits")
    node.reboot(in_order=how == "in_order")
    ended = running.end()
    node.inside(f"touch {GO}")
    bystanders.start()
    if how == "in_order" and not any("diagnosis" in failure.get("details", {}) for failure in ended.failures):
        said = ended.failures[-1]["msg"]
        assert "was stopped while this step waited" in said and "or run the deployment again" in said, ended.output
    else:
        found = ended.details["diagnosis"]
        told = {"container_stopping": "the container is shutting down", "identity_changed": "the container was booted again"}
        assert found["class"] in told and told[found["class"]] in found["cause"] and "Run the deployment again" in found["remedy"], found
        assert how == "in_order" or found["class"] == "identity_changed", found
    # What came back by itself after the boot is left alone, or started once more if the lost start was ended.
    assert good(node)["identity"]["n_restarts"] == 0
