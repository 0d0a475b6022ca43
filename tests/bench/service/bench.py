#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How soon sglang_ready returns after the event that decides, against the loop it replaces.

    bench.py [--rounds 20] [--loop-s 20]

Two events: a fatal line in the log of a start whose main process lives on, and the first 200 of /health. The stand-ins of the unit
tests play systemd and the engine (real processes, real HTTP). The loop is `sleep LOOP; tail -5 LOG | grep`, as it was once done by
hand; its delay is what the same events cost it, event times being spread evenly over its period. Median and 95th percentile, seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit" / "plugins" / "modules")]

from sglang_standins import STANDINS, StandinUnit, free_port, run_module  # noqa: E402

from ansible_collections.kpro.llm.plugins.modules import sglang_ready  # noqa: E402

LOADING = [{"log": "gate: ok"}, {"log": "server_args={}"}, {"log": "Load weight begin. avail mem=18.82 GB"}]


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
        os.environ.update(KPRO_STANDIN_STATE=str(state), PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
        sglang_ready.CLOCK_PATH = str(Path(folder) / "ready.json")
        unit = StandinUnit(state)
        try:
            yield unit
        finally:
            unit.close()


def event_time(unit: StandinUnit, text: str) -> float:
    """Wall clock at which the engine wrote the line."""
    for line in (unit.folder / "journal").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if text in entry["MESSAGE"]:
            return int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    raise SystemExit(f"the stand-in engine never wrote {text!r}")


def delay(event: str) -> float:
    """Seconds from the event to the module's return."""
    wait = 0.8 + random.random()
    port = free_port()
    if event == "fatal":
        line, steps = "Scheduler hit an exception", [*LOADING, {"sleep": wait}, {"log": "[x TP0] Scheduler hit an exception: Traceback"}]
    else:
        line, steps = "ready to roll", [*LOADING, {"listen": port}, {"sleep": wait}, {"healthy": True, "log": "The server is fired up and ready to roll!"}]
    with played_unit() as unit:
        identity = unit.run_engine(steps)
        run_module(sglang_ready.main, identity=identity, port=port, answer_pattern="hello", poll_s=30, level="health", on_failure="leave")
        return time.time() - event_time(unit, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loop-s", type=float, default=20.0)
    chosen = parser.parse_args()
    measured: dict[str, list[float]] = {"fatal": [], "ready": []}
    for _round in range(chosen.rounds):
        for event, delays in measured.items():
            delays.append(delay(event))
    loop = [chosen.loop_s * (number + 0.5) / chosen.rounds for number in range(chosen.rounds)]
    print(f"load average {os.getloadavg()[0]:.1f}, {chosen.rounds} rounds")
    for name, delays in {**measured, f"loop of {chosen.loop_s:g} s": loop}.items():
        print(f"{name:<14} median {statistics.median(delays):7.3f} s   p95 {sorted(delays)[int(0.95 * (len(delays) - 1))]:7.3f} s")


if __name__ == "__main__":
    main()
