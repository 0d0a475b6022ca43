# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The light engine is held to what the real one was seen to say and do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import typing as t
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FIXTURES = ROOT / "tests/unit/plugins/module_utils/fixtures"
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.kpro.llm.plugins.module_utils._engine.start_log import read_start_log  # noqa: E402

UUID = "GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "venv"
    subprocess.run([sys.executable, HERE / "light" / "install", folder], check=True)
    return folder / "lib/python3.11/site-packages"


@pytest.fixture
def play(packages: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Play steps as the engine is started by the service."""
    running: list[subprocess.Popen[str]] = []

    def start(steps: list[dict[str, t.Any]], port: int = 0, **scenario: t.Any) -> subprocess.Popen[str]:
        (tmp_path / "scenario.json").write_text(json.dumps({"steps": steps, "scale": 0.01, **scenario}), encoding="utf-8")
        (tmp_path / "config.yaml").write_text(f'host: "127.0.0.1"\nport: {port}\nserved-model-name: "light"\n', encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(packages), "KPRO_LIGHT_SCENARIO": str(tmp_path / "scenario.json"), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"KPRO_STANDIN_MEMORY": str(tmp_path / "memory")}
        argv = [sys.executable, "-m", "sglang.launch_server", "--config", str(tmp_path / "config.yaml")]
        running.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", sorted(path.stem for path in (FIXTURES / "sglang_logs").glob("*.log")))
def test_a_recorded_log_is_replayed_word_for_word(play: Callable[..., subprocess.Popen[str]], name: str) -> None:
    said = play([{"replay": {"log": name}}, {"exit": 0}]).communicate(timeout=60)[0].splitlines()
    real = (FIXTURES / "sglang_logs" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    left_out = [line for line in real if line.partition("] ")[2] not in {text.partition("] ")[2] for text in said} and line not in said]
    # What systemd and the gate said, and what this process says itself when it does it.
    own = ("Start", "Stop", "gate: ", "GET /", "POST /", ".service: ", "Uvicorn running", "fired up", "Errno 98")
    assert all(any(word in line for word in own) for line in left_out), left_out


def test_the_composed_starts_read_as_starts(play: Callable[..., subprocess.Popen[str]]) -> None:
    """Each public log has its phases in the engine's order."""
    cases = [case["id"] for case in json.loads((FIXTURES / "plan/startup_logs.json").read_text(encoding="utf-8"))["cases"]]
    steps = [step for case in cases for step in ({"log": f"case {case}"}, {"start": {"case": case}})]
    said = play([*steps, {"exit": 0}]).communicate(timeout=60)[0]
    assert said.count("case ") == len(cases) > 20
    for text in said.split("case ")[1:]:
        phases = list(read_start_log(["gate: ok", *text.splitlines()]).begun_s)
        assert phases == ["gate", "launch", "options", "distributed", "weights", "pools", "graphs", "scheduler"], text


def test_exit_codes_of_0_5_23(play: Callable[..., subprocess.Popen[str]]) -> None:
    loading = play([{"log": "loads"}, {"sleep": 60}])
    assert loading.stdout is not None and loading.stdout.readline() == "loads\n"
    loading.send_signal(signal.SIGTERM)
    assert loading.wait(20) == -signal.SIGTERM
    serving = play([{"listen": free_port()}, {"healthy": True}])
    assert serving.stdout is not None
    while "fired up" not in serving.stdout.readline():
        pass
    serving.send_signal(signal.SIGTERM)
    assert "Gracefully exiting" in serving.communicate(timeout=20)[0] and serving.returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = play([{"listen": other.getsockname()[1]}, {"healthy": True}])
        said = taken.communicate(timeout=20)[0]
    assert "[Errno 98]" in said and "fired up and ready to roll" in said and taken.returncode == 3


def test_a_killed_scheduler_ends_it_by_signal_9(play: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    main = play([{"child": {"pid_file": str(tmp_path / "pid")}}, {"log": "forked"}, {"sleep": 60}])
    assert main.stdout is not None and main.stdout.readline() == "forked\n"
    os.kill(int((tmp_path / "pid").read_text(encoding="ascii")), signal.SIGKILL)
    said = main.communicate(timeout=20)[0]
    assert "crashed with exit code -9. Triggering SIGQUIT" in said and main.returncode == -signal.SIGKILL


def test_memory_is_held_until_the_process_ends(play: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps({"gpus": [{"uuid": UUID, "memory_mib": 49140}]}), encoding="ascii")
    (tmp_path / "loaded.json").write_text(json.dumps({"nvidia": {"version": "1", "flavour": "open"}}), encoding="ascii")
    shown = tmp_path / "proc/driver/nvidia/kpro-standin"
    shown.parent.mkdir(parents=True)
    shown.touch()
    account = subprocess.Popen([sys.executable, ROOT / "tests/sandbox/gpu/kernel/memory.py", tmp_path / "memory", tmp_path])
    try:
        until((tmp_path / "memory").exists)
        holder = play([{"hold": {UUID: 41000}}, {"log": "held"}, {"sleep": 60}])
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        text = shown.read_text(encoding="ascii")
        assert "gpu0.used_mib=41000\n" in text and f"gpu0.process0.pid={holder.pid}\n" in text
        holder.kill()
        until(lambda: "gpu0.used_mib=0\n" in shown.read_text(encoding="ascii"))
    finally:
        account.kill()
        account.wait()


def test_the_parser_refuses_what_it_does_not_know(packages: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('model-path: "/srv/x"\nenable-metrics: true\nno-such-flag: 1\n', encoding="utf-8")
    code = (
        "import argparse, sys; from sglang.srt.server_args import ServerArgs; from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger;"
        " parser = argparse.ArgumentParser(prog='sglang serve'); ServerArgs.add_cli_args(parser);"
        " parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(['--config', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, config], env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "unrecognized arguments: --no-such-flag" in done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
