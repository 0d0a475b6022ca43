#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How soon the service's modules return after the event that decides, against the loop that they replace.

    bench.py [--rounds 20] [--loop-s 20] [--loops 20]

Three events: a fatal line in the log of a start whose main process lives on, the first 200 of /health, and the driver's release of GPU memory.
Engine, processes, sockets, HTTP, signals and NVML calls are real; systemd, the engine and the driver are the stand-ins of tests and sandbox.
The loop is run too, as it was once typed by hand: `while ! tail -5 LOG | grep -q WORD; do sleep 20; done`, many of them side by side, begun at
different moments, all watching for one event. Median and 95th percentile, seconds. Needs root and a C compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GPU = ROOT / "tests" / "sandbox" / "gpu"
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit" / "plugins" / "modules")]

from sglang_standins import ENGINE, STANDINS, StandinUnit, free_port, run_module  # noqa: E402

from ansible_collections.kpro.llm.plugins.module_utils._start import watch_edge as _start_watch  # noqa: E402
from ansible_collections.kpro.llm.plugins.modules import gpu_cleanup, sglang_ready  # noqa: E402

LOADING = [{"log": "gate: ok"}, {"log": "server_args={}"}, {"log": "Load weight begin. avail mem=18.82 GB"}]
TARGETS_S = {"fatal line -> sglang_ready returned": 0.5, "first 200 -> sglang_ready returned": 0.5, "memory free -> gpu_cleanup returned": 0.2}
UUID = "GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641"
# The libraries are compiled without a version of their own; the "loaded module" has the same.
VERSION = "@@KPRO-DRIVER-VERSION@@"
NOBODY = 65534


@contextlib.contextmanager
def played_unit() -> t.Iterator[StandinUnit]:
    """The stand-in unit of the unit tests, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        state, programs = Path(folder) / "systemd", Path(folder) / "programs"
        state.mkdir()
        programs.mkdir()
        for name in ("systemctl", "journalctl"):
            (programs / name).write_text(f"#!{sys.executable} -SE\n{(STANDINS / name).read_text(encoding='utf-8')}", encoding="utf-8")
            (programs / name).chmod(0o755)
        before = os.environ["PATH"]
        os.environ.update(KPRO_STANDIN_STATE=str(state), PATH=f"{programs}{os.pathsep}{before}")
        _start_watch.CLOCK_PATH = str(Path(folder) / "ready.json")
        unit = StandinUnit(state)
        try:
            yield unit
        finally:
            unit.close()
            os.environ["PATH"] = before
            del os.environ["KPRO_STANDIN_STATE"]


def event_time(unit: StandinUnit, text: str) -> float:
    """Wall clock at which the engine wrote the line."""
    for line in (unit.folder / "journal").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if text in entry["MESSAGE"]:
            return int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    raise SystemExit(f"the stand-in engine never wrote {text!r}")


def start_delay(line: str, last: dict[str, t.Any]) -> float:
    """Seconds from the line that decides a start to the module's return."""
    port = free_port()
    steps = [*LOADING, {"listen": port}, {"sleep": 0.8 + random.random()}, last]
    with played_unit() as unit:
        identity = unit.run_engine(steps)
        run_module(sglang_ready.main, identity=identity, port=port, answer_pattern="hello", poll_s=30, level="health")
        return time.time() - event_time(unit, line)


class Driver:
    """The GPU stand-in by itself: its NVML over a folder, and the account of memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        for name, minor in (("nvidia0", 0), ("nvidiactl", 255)):
            os.mknod(folder / name, 0o020666, os.makedev(195, minor))
        (folder / "loaded.json").write_text(json.dumps({"nvidia": {"version": VERSION, "flavour": "open"}}), encoding="ascii")
        shown = folder / "proc" / "driver" / "nvidia" / "kpro-standin"
        shown.parent.mkdir(parents=True)
        shown.touch()
        flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-ffreestanding", "-fno-stack-protector", "-fvisibility=hidden"]
        places = [f'-DSTATE="{shown}"', f'-DDEV="{folder}"']
        subprocess.run(["cc", *flags, *places, "-o", folder / "libnvidia-ml.so.1", GPU / "userland" / "nvml.c"], check=True)
        shutil.copy(ENGINE, folder / "engine.py")
        self.account = subprocess.Popen([sys.executable, GPU / "kernel" / "memory.py", folder / "memory", folder])

    def choose(self, teardown_s: float) -> None:
        gpu = {"name": "NVIDIA RTX A6000", "uuid": UUID, "bus_id": "0000:41:00.0", "minor": 0, "memory_mib": 49140, "compute_capability": "8.6"}
        (self.folder / "gpu.json").write_text(json.dumps({"gpus": [gpu], "teardown_s": teardown_s}), encoding="ascii")

    def released(self) -> float:
        """Wall clock at which the libraries last began to show the memory as free."""
        events = (self.folder / "memory.events").read_text(encoding="ascii").splitlines()
        return float(next(line for line in reversed(events) if " released " in line).split()[0])

    def close(self) -> None:
        self.account.kill()
        self.account.wait()


def release_delay(driver: Driver) -> float:
    """Seconds from the release of a leftover's memory, which comes after its end, to the module's return."""
    driver.choose(teardown_s=0.3 + random.random())
    port, scenario = free_port(), driver.folder / "scenario.json"
    scenario.write_text(json.dumps({"steps": [{"hold": {UUID: 40000}}, {"listen": port}, {"healthy": True}]}), encoding="ascii")
    env = {**os.environ, "KPRO_STANDIN_MEMORY": str(driver.folder / "memory")}
    # The system's own Python: another user may have no way to this one.
    leftover = subprocess.Popen(["/usr/bin/python3", driver.folder / "engine.py", scenario], env=env, user=NOBODY, stdout=subprocess.PIPE, cwd="/")
    assert leftover.stdout is not None
    while b"ready to roll" not in leftover.stdout.readline():
        pass
    with played_unit():
        options = {"user": "nobody", "roots": [str(driver.folder)], "port": port, "gpus": [UUID], "require_free": True, "cache_roots": []}
        ended = run_module(gpu_cleanup.main, **options)
        returned = time.time()
    leftover.wait()
    if ended.rc or [row["how"] for row in ended.result["ended"]] != ["terminated"]:
        raise SystemExit(f"gpu_cleanup did not do its work: {ended.result}")
    return returned - driver.released()


def loop_delays(period_s: float, loops: int) -> list[float]:
    """Seconds from one event to the return of each of many hand-made loops."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        log.write_text("Load weight begin\n", encoding="ascii")
        line = f"while ! tail -5 {log} | grep -q exception; do sleep {period_s}; done; date +%s.%N"
        running = []
        for _loop in range(loops):
            running.append(subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, text=True))
            time.sleep(period_s / loops)
        event = time.time()
        with log.open("a", encoding="ascii") as file:
            file.write("Scheduler hit an exception\n")
        return [float(process.communicate()[0]) - event for process in running]


def row(name: str, delays: list[float], target_s: float | None = None) -> str:
    middle, high = statistics.median(delays), sorted(delays)[round(0.95 * (len(delays) - 1))]
    target = f"   target < {target_s:g} s: {'met' if high < target_s else 'MISSED'}" if target_s else ""
    return f"{name:<40} median {middle:7.3f} s   p95 {high:7.3f} s{target}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loop-s", type=float, default=20.0)
    parser.add_argument("--loops", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if os.environ.get("KPRO_BENCH_LIBRARIES") != "there":
            # The dynamic loader reads its path once, at the start of a program.
            driver = Driver(Path(folder))
            driver.choose(0)
            env = {**os.environ, "LD_LIBRARY_PATH": folder, "KPRO_BENCH_LIBRARIES": "there", "KPRO_BENCH_FOLDER": folder}
            try:
                sys.exit(subprocess.run([sys.executable, *sys.argv], env=env, check=False).returncode)
            finally:
                driver.close()
    driver = Driver.__new__(Driver)
    driver.folder = Path(os.environ["KPRO_BENCH_FOLDER"])
    fatal = {"log": "[x TP0] Scheduler hit an exception: Traceback"}
    measured: dict[str, list[float]] = {name: [] for name in TARGETS_S}
    for _round in range(chosen.rounds):
        delays = (start_delay("Scheduler hit an exception", fatal), start_delay("ready to roll", {"healthy": True}), release_delay(driver))
        for name, delay in zip(measured, delays, strict=True):
            measured[name].append(delay)
    print(f"load average {os.getloadavg()[0]:.1f}, {chosen.rounds} rounds")
    for name, delays_s in measured.items():
        print(row(name, delays_s, TARGETS_S[name]))
    print(row(f"loop of {chosen.loop_s:g} s: event -> returned", loop_delays(chosen.loop_s, chosen.loops)))


if __name__ == "__main__":
    main()
