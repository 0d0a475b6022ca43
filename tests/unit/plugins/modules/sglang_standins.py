# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A unit of systemd played by stand-in programs on PATH, for the tests of the service's modules."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t
import uuid
from pathlib import Path

from ansible.module_utils.testing import patch_module_args

STANDINS = Path(__file__).parent / "standins" / "sglang"
# The sandbox's light engine: one program plays the engine everywhere.
ENGINE = Path(__file__).parents[3] / "sandbox" / "engine" / "light" / "engine.py"
UNIT = "kpro-sglang.service"


class Ended(t.NamedTuple):
    """How a module ended."""

    rc: int
    result: dict[str, t.Any]


def run_module(main: t.Callable[[], None], **options: t.Any) -> Ended:
    """Run a module's ``main`` in this process and return what it printed."""
    out = io.StringIO()
    with patch_module_args(options), contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            return Ended(int(end.code or 0), json.loads(out.getvalue().splitlines()[-1]))
    raise AssertionError("the module did not end")


def free_port() -> int:
    """Return a TCP port of the loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def unified_cgroup_of_this_process() -> str:
    text = Path("/proc/self/cgroup").read_text(encoding="ascii")
    return next(line[3:] for line in text.splitlines() if line.startswith("0::"))


class StandinUnit:
    """Plays systemd for one unit: its properties, its journal, and a main process whose end it reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.watcher: threading.Thread | None = None
        (folder / "journal").touch()
        (folder / "calls").touch()
        self.set(ActiveState="inactive", SubState="dead", LoadState="loaded", NRestarts="0", MainPID="0", UnitFileState="disabled", NeedDaemonReload="no")

    @property
    def properties(self) -> dict[str, str]:
        return t.cast("dict[str, str]", json.loads((self.folder / "unit.json").read_text(encoding="utf-8")))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text(encoding="utf-8").splitlines()

    def set(self, **properties: str) -> None:
        path = self.folder / "unit.json"
        have = self.properties if path.exists() else {}
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(have | properties), encoding="utf-8")
        draft.replace(path)

    def say(self, text: str, **fields: str) -> None:
        entry = {"__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)), "_PID": "1", "MESSAGE": text} | fields
        with (self.folder / "journal").open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(entry) + "\n")

    def run_engine(self, steps: list[dict[str, t.Any]], **scenario: t.Any) -> dict[str, t.Any]:
        """Start the stand-in engine as the unit's main process and return the run identity."""
        invocation = uuid.uuid4().hex
        path = self.folder / "scenario.json"
        path.write_text(json.dumps({"steps": steps, **scenario}), encoding="utf-8")
        env = {**os.environ, "INVOCATION_ID": invocation}
        self.process = subprocess.Popen([sys.executable, str(ENGINE), str(path)], env=env)
        pid = str(self.process.pid)
        self.set(
            ActiveState="active",
            SubState="running",
            InvocationID=invocation,
            MainPID=pid,
            ExecMainPID=pid,
            ControlGroup=unified_cgroup_of_this_process(),
            ExecMainStartTimestampMonotonic=str(int(time.monotonic() * 1e6)),
            ExecMainCode="0",
            ExecMainStatus="0",
            Result="success",
        )
        self.watcher = threading.Thread(target=self._watch, args=(self.process, invocation), daemon=True)
        self.watcher.start()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        return {
            "unit": UNIT,
            "invocation_id": invocation,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            "main_pid": int(pid),
            "main_start_ticks": int(stat.rpartition(")")[2].split()[19]),
            "n_restarts": 0,
            "engine_version": "0.5.23",
            "model_path": "/srv/models/tiny",
            "served_name": "tiny",
        }

    def plays(self, options: t.Mapping[str, t.Any], steps: list[dict[str, t.Any]], **scenario: t.Any) -> None:
        """Have each start run the light engine with the configuration that the module wrote."""
        path = self.folder / "scenario.json"
        path.write_text(json.dumps({"steps": steps, "scale": 0.1, "model_path": options["model_path"], **scenario}), encoding="utf-8")
        places = {name: options[f"{name}_path"] for name in ("config", "environment", "started")}
        (self.folder / "plays.json").write_text(json.dumps({**places, "scenario": str(path), "engine": str(ENGINE)}), encoding="utf-8")

    def stop(self) -> None:
        """Stop the unit, as somebody at a shell does."""
        subprocess.run(["systemctl", "stop", UNIT], check=True)

    def _watch(self, process: subprocess.Popen[bytes], invocation: str) -> None:
        rc = process.wait()
        if self.properties.get("InvocationID") != invocation:
            return
        code, status = ("2", -rc) if rc < 0 else ("1", rc)
        self.set(
            ActiveState="activating",
            SubState="auto-restart",
            MainPID="0",
            ExecMainCode=code,
            ExecMainStatus=str(status),
            Result="signal" if rc < 0 else "exit-code",
        )
        words = f"code=killed, status={status}/KILL" if rc < 0 else f"code=exited, status={status}/n/a"
        self.say(f"{UNIT}: Main process exited, {words}", INVOCATION_ID=invocation)

    def close(self) -> None:
        pid = int(self.properties.get("MainPID") or 0)
        if (self.folder / "plays.json").exists() and pid:
            self.set(ActiveState="inactive", MainPID="0")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.watcher is not None:
            self.watcher.join(5)
