# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN for the engine (SGLang): plays the steps of a scenario and answers over HTTP as SGLang 0.5.23 was seen to do.

``engine.py SCENARIO.json``, or as ``python -m sglang.launch_server --config FILE`` with the scenario's path in KPRO_LIGHT_SCENARIO.
Steps and answers are listed in README.md beside this file. Standard library only.
"""

from __future__ import annotations

import datetime
import http.server
import json
import mmap
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import typing as t
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY_SOCKET = "/proc/driver/kpro-standin-memory"
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)( TP\d+)?\]")
# What systemd and our gate wrote around a recorded log, and lines that ask for an answer of this process.
_NOT_REPLAYED = re.compile(r"^(?:Starting |Started |Stopping |Stopped )|\.service: |^gate: |HTTP/1\.1\"|Uvicorn running|fired up and ready|Errno 98")


class Engine(http.server.BaseHTTPRequestHandler):
    """The HTTP interface. ``healthy``: the warm-up is over; before that /health answers 503."""

    scenario: t.ClassVar[dict[str, t.Any]] = {}
    options: t.ClassVar[dict[str, t.Any]] = {}
    healthy = False

    def log_message(self, *_arguments: t.Any) -> None:
        return

    @classmethod
    def choice(cls, name: str, option: str, default: str) -> str:
        """What the scenario says, or the option it was started with."""
        return str(cls.scenario.get(name, cls.options.get(option, default)))

    def _send(self, status: int, data: t.Any = None) -> None:
        body = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _authorised(self) -> bool:
        key = self.choice("api_key", "api-key", "")
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self) -> None:
        if self.path == "/health":
            return self._send(self.scenario.get("health_status") or (200 if Engine.healthy else 503))
        if not self._authorised():
            return self._send(401, {"error": "Unauthorized"})
        if self.path == "/v1/models" and not self.scenario.get("no_models"):
            name = self.choice("model", "served-model-name", "tiny")
            return self._send(200, {"data": [{"id": name, "max_model_len": 8192, "owned_by": "sglang"}]})
        if self.path == "/model_info":
            return self._send(200, {"model_path": self.choice("model_path", "model-path", "/srv/models/tiny")})
        if self.path == "/server_info" and "server_info" in self.scenario:
            return self._send(200, self.scenario["server_info"])
        if self.path == "/metrics":
            return self._send_text(self.scenario.get("metrics", ""))
        return self._send(404)

    def _send_text(self, text: str, kind: str = "text/plain") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._authorised():
            return self._send(401, {"error": "Unauthorized"})
        thinking = body["chat_template_kwargs"]["enable_thinking"]
        if body["temperature"] != 0 or (thinking and not self.scenario.get("thinks")):
            return self._send(400, {"error": "not the question that was agreed"})
        if body.get("stream"):
            return self._send_text(self.scenario["stream"], "text/event-stream")
        message = self.scenario.get("tool_message") if body.get("tools") else None
        if thinking:
            message = self.scenario.get("think_message") or {"content": "x", "reasoning_content": self.scenario["thinks"], "tool_calls": None}
        said = {"content": self.scenario.get("answer", "\n\nHello from the tiny test model."), "reasoning_content": self.scenario.get("reasons")}
        message = message or {**said, "tool_calls": None}
        time.sleep(float(self.scenario.get("answer_s", 0)))
        return self._send(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 8}})


def say(text: str) -> None:
    """Write a line of the log: to the stand-in journal of the unit tests, else to the unit's own output."""
    state = os.environ.get("KPRO_STANDIN_STATE")
    if not state:
        print(text, flush=True)
        return
    entry = {
        "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)),
        "_SYSTEMD_INVOCATION_ID": os.environ["INVOCATION_ID"],
        "_PID": str(os.getpid()),
        "MESSAGE": text,
    }
    with (Path(state) / "journal").open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(entry) + "\n")


def now() -> str:
    return datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")


class Play:
    """Plays the steps of a scenario, one after another."""

    def __init__(self, options: dict[str, t.Any]) -> None:
        self._options = options
        self._kept: list[t.Any] = []
        self._children: dict[int, int] = {}
        self._port_lost = False

    def run(self, steps: list[dict[str, t.Any]]) -> t.NoReturn:
        self._play(steps)
        while True:
            self._watch_children(None)

    def _play(self, steps: list[dict[str, t.Any]]) -> None:
        for step in steps:
            for name, value in step.items():
                getattr(self, f"step_{name}")(value)

    def step_by_option(self, what: dict[str, t.Any]) -> None:
        """The steps of the value that an ``option`` of the configuration has, else those of ``else``."""
        self._play(what["cases"].get(str(self._options.get(what["option"], "")), what.get("else", [])))

    def step_log(self, text: str) -> None:
        say(text)

    def step_sleep(self, seconds: float) -> None:
        self._watch_children(float(seconds))

    def step_replay(self, what: dict[str, t.Any]) -> None:
        """Lines of a recorded log, in their own time times ``scale``, from one pattern to another (the lines that match are not played)."""
        text = (HERE / "logs" / f"{what['log']}.log").read_text(encoding="utf-8")
        self._play_lines(text.splitlines(), what)

    def step_start(self, what: dict[str, t.Any]) -> None:
        """A start on GPUs with the sizes that a public log of ``case`` has, composed in the engine's words."""
        cases = json.loads((HERE / "startup_logs.json").read_text(encoding="utf-8"))["cases"]
        case = next(case for case in cases if case["id"] == what["case"])
        self._play_lines(start_lines(case), what)

    def _play_lines(self, lines: list[str], what: dict[str, t.Any]) -> None:
        scale, begin, end = float(what.get("scale", 0.0)), what.get("from", ""), what.get("to", "")
        playing, before = not begin, None
        for line in lines:
            if playing and end and re.search(end, line):
                return
            if not playing:
                playing = bool(re.search(begin, line))
                continue
            if _NOT_REPLAYED.search(line):
                continue
            stamp = _STAMP.match(line)
            if stamp:
                at = datetime.datetime.fromisoformat(stamp[1])
                self.step_sleep(scale * (at - before).total_seconds() if before else 0)
                before = at
                line = _STAMP.sub(f"[{now()}{stamp[2] or ''}]", line)
            say(line)

    def step_hold(self, what: dict[str, int]) -> None:
        """Have the GPUs open and hold memory of each, by UUID; the driver's account takes it back when this process ends."""
        hold(what)

    def step_child(self, what: dict[str, t.Any]) -> None:
        """A scheduler process; its end is noticed as the real engine notices it."""
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _name_process(f"sglang::{what.get('name', 'scheduler')}")
            hold(what.get("hold", {}))
            while True:
                signal.pause()
        self._children[os.pidfd_open(pid)] = pid
        path = what.get("pid_file")
        if path:
            Path(path).write_text(str(pid), encoding="ascii")

    def _watch_children(self, seconds: float | None) -> None:
        ended, _write, _error = select.select(list(self._children), [], [], seconds)
        for handle in ended:
            pid, status = os.waitpid(self._children.pop(handle), 0)
            code = os.waitstatus_to_exitcode(status)
            say(f"[{now()}] Subprocess scheduler_0 (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
            say(f"[{now()}] SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            say(f"[{now()}] Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
            time.sleep(5 * float(Engine.scenario.get("scale", 1.0)))
            say(f"[{now()}] kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
            self.step_signal(signal.SIGKILL)

    def step_listen(self, port: int) -> None:
        """Take the port (0: the one of the options). If somebody else has it, say so and go on as the real engine does."""
        port = port or int(self._options.get("port", 30000))
        address = str(self._options.get("host", "127.0.0.1"))
        say(f"[{now()}] INFO:     Started server process [{os.getpid()}]")
        try:
            server = http.server.ThreadingHTTPServer((address, port), Engine)
        except OSError:
            self._port_lost = True
            say(f"[{now()}] ERROR:    [Errno 98] error while attempting to bind on address ('{address}', {port}): address already in use")
            say(f"[{now()}] INFO:     Waiting for application shutdown.")
            return
        say(f"[{now()}] INFO:     Uvicorn running on http://{address}:{port} (Press CTRL+C to quit)")
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def step_healthy(self, healthy: bool) -> None:
        """The warm-up is over; whoever answered it, the engine says that it is ready."""
        Engine.healthy = healthy
        if healthy:
            signal.signal(signal.SIGTERM, lambda _number, _frame: drain())
            say(f"[{now()}] The server is fired up and ready to roll!")
        if self._port_lost:
            os._exit(3)

    def step_mute(self, port: int) -> None:
        self._kept.append(socket.create_server(("127.0.0.1", port)))

    def step_wait_for(self, path: str) -> None:
        """Until a file is there."""
        while not Path(path).exists():
            time.sleep(0.05)

    def step_wait_port(self, port: int) -> None:
        """Until somebody listens on a port."""
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port or int(self._options.get("port", 30000)))) == 0:
                    return
            time.sleep(0.05)

    def step_exit(self, code: int) -> None:
        os._exit(code)

    def step_signal(self, number: int) -> None:
        for pid in self._children.values():
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), number)
        time.sleep(60)


def drain() -> t.NoReturn:
    """End as 0.5.23 does when it serves."""
    say(f"[{now()}] SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    say(f"[{now()}] Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    say(f"[{now()}] INFO:     Finished server process [{os.getpid()}]")
    os._exit(0)


_held: list[t.Any] = []


def hold(mib_by_uuid: dict[str, int]) -> None:
    """Have the device nodes open (no driver answers an ordinary open here, so by path only) and memory in the driver's account."""
    if not mib_by_uuid:
        return
    _held.extend(os.open(path, os.O_PATH) for path in map(str, sorted(Path("/dev").glob("nvidia*"))) if re.fullmatch(r"/dev/nvidia(\d+|-uvm|ctl)", path))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ.get("KPRO_STANDIN_MEMORY", MEMORY_SOCKET))
    connection.sendall(json.dumps(mib_by_uuid).encode())
    connection.recv(16)
    _held.append(connection)


def _name_process(name: str) -> None:
    Path("/proc/self/comm").write_text(name[:15], encoding="ascii")


def start_lines(case: dict[str, t.Any]) -> list[str]:
    """Return the lines of a start with the sizes of a public log; the seconds between them are typical ones."""
    # A list has a figure for each rank; the first stands for all.
    log = {name: value[0] if isinstance(value, list) and name != "graph_bs" else value for name, value in case["log"].items() if value is not None}
    args, clock = case.get("args", {}), datetime.datetime(2026, 1, 1)
    ranks = int(args.get("tp_size", 1))
    lines: list[str] = []

    def put(text: str, after_s: float, each: bool = True) -> None:
        nonlocal clock
        clock += datetime.timedelta(seconds=after_s)
        for rank in range(ranks) if each else [None]:
            lines.append(f"[{clock:%Y-%m-%d %H:%M:%S}{'' if rank is None else f' TP{rank}'}] {text}")

    put(f"server_args={args!r}", 12, each=False)
    put("Init torch distributed begin.", 25)
    put(f"Init torch distributed ends. elapsed=3.10 s, mem usage={log.get('init_gib', 0.19):.2f} GB", 3)
    put(f"Load weight begin. avail mem={log.get('free_begin', case.get('free_before_gib', 0)):.2f} GB", 1)
    for percent in (0, 25, 50, 75, 100):
        put(f"Loading safetensors checkpoint shards: {percent:3d}% Completed", 20, each=False)
    put(f"Load weight end. elapsed=101.20 s, avail mem={log.get('after_weights', 0):.2f} GB, mem usage={log.get('weights_gib', 0):.2f} GB.", 1)
    if "state_slots" in log:
        sizes = f"conv_state size: {log.get('conv_gib', 0):.2f}GB, ssm_state size: {log.get('ssm_gib', 0):.2f}GB"
        put(f"Mamba Cache is allocated. max_mamba_cache_size: {log['state_slots']}, {sizes}", 1)
    if "k_gib" in log:
        put(f"KV Cache is allocated. #tokens: {log['max_total_num_tokens']}, K size: {log['k_gib']:.2f} GB, V size: {log['v_gib']:.2f} GB", 1)
    put(f"Memory pool end. avail mem={log.get('pool_end', 0):.2f} GB", 1)
    put(f"Capture cuda graph begin. This can take up to several minutes. avail mem={log.get('graph_begin', log.get('pool_end', 0)):.2f} GB", 1)
    put(f"Capture cuda graph end. Time elapsed: 62.00 s. mem usage={log.get('graph_gib', 0):.2f} GB. avail mem={log.get('final_avail', 0):.2f} GB.", 62)
    figures = f"max_total_num_tokens={log.get('max_total_num_tokens', 0)}, chunked_prefill_size={log.get('chunked_prefill_size', 4096)}"
    put(f"{figures}, max_running_requests={log.get('max_running_requests', 8)}, context_len={args.get('context_length', 8192)}", 1)
    return lines


def options_of(path: str) -> dict[str, t.Any]:
    """Read the engine's config file: one ``name: value`` a line, values as in JSON where they are quoted."""
    found: dict[str, t.Any] = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, colon, value = line.partition(":")
        if colon and name and not name.startswith(("#", " ")):
            text = value.strip()
            found[name.strip()] = json.loads(text) if text[:1] in ('"', "[", "{") else text.strip("'")
    return found


def main() -> None:
    arguments = sys.argv[1:]
    options = options_of(arguments[arguments.index("--config") + 1]) if "--config" in arguments else {}
    path = Path(os.environ["KPRO_LIGHT_SCENARIO"] if options or not arguments else arguments[0])
    # The libraries of a real environment are mapped; this stands for them.
    _held.append(mmap.mmap(os.open(__file__, os.O_RDONLY), 0, prot=mmap.PROT_READ))
    Engine.scenario, Engine.options = json.loads(path.read_text(encoding="utf-8")), options
    Play(options).run(Engine.scenario["steps"])


if __name__ == "__main__":
    main()
