# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The world of a test of hf_model: a hub (the sandbox's stand-in), a folder of models, a systemd stand-in; no root needed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kpro.llm.plugins.module_utils._job import long_job_edge as _long_job
from ansible_collections.kpro.llm.plugins.modules import hf_model

ROOT = Path(__file__).resolve().parents[4]
HUB = ROOT / "tests" / "sandbox" / "hub" / "standin_hub"
STANDINS = Path(__file__).parent / "standins"
REPOSITORY = "org/model"
MIB = 1 << 20


class Failed(Exception):
    """The module ended with ``failed``."""

    def __init__(self, result: dict[str, t.Any]) -> None:
        super().__init__(result["msg"])
        self.result = result


class World:
    """Folders and processes of one test; :meth:`close` ends what it started."""

    def __init__(self, folder: Path, monkeypatch: t.Any, capsys: t.Any) -> None:
        self.folder = folder
        self.models = folder / "hub"
        self.store = folder / "store"
        self.state = folder / "systemd"
        self._control = folder / "faults.json"
        self._log = folder / "requests.jsonl"
        self._capsys = capsys
        self.models.mkdir()
        self.state.mkdir()
        monkeypatch.setenv("PATH", f"{STANDINS}:{os.environ['PATH']}")
        monkeypatch.setenv("STANDIN_STATE", str(self.state))
        monkeypatch.setattr(_long_job, "RUN_DIRECTORY", str(folder / "run"))
        # In this process ansible-core would send a warning to the display.
        self.warned: list[str] = []
        monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: self.warned.append(text))
        for name in ("HF_ENDPOINT", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        argv = [sys.executable, str(HUB), "--bind", "127.0.0.1:0", "--models", str(self.models)]
        self._hub = subprocess.Popen(
            [*argv, "--faults", str(self._control), "--log", str(self._log)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert self._hub.stdout
        self.endpoint = self._hub.stdout.readline().split()[-1]

    # -- the hub --------------------------------------------------------------

    def put(self, path: str, size_bytes: int, seed: int = 1, repository: str = REPOSITORY) -> bytes:
        """Give the repository a file of random bytes, or replace it."""
        data = random.Random(f"{path} {seed}").randbytes(size_bytes)
        target = self.models / repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return data

    def put_small_model(self) -> None:
        """A config and two shards of 3 MiB."""
        self.put("config.json", 300)
        self.put("model-00001-of-00002.safetensors", 3 * MIB)
        self.put("model-00002-of-00002.safetensors", 3 * MIB)

    def faults(self, *rules: dict[str, t.Any], **settings: t.Any) -> None:
        """Set the faults of the hub."""
        draft = self._control.with_suffix(".new")
        draft.write_text(json.dumps({**settings, "rules": list(rules)}))
        draft.rename(self._control)

    def requests(self) -> list[dict[str, t.Any]]:
        """Return the requests that the hub has answered."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    def forget_requests(self) -> None:
        os.truncate(self._log, 0)

    def sent_bytes(self, suffix: str = "") -> int:
        return sum(one["bytes"] for one in self.requests() if one["path"].endswith(suffix))

    def fetched(self) -> list[str]:
        """Return the names of the files of which bytes were sent."""
        return sorted({one["path"].rpartition("/")[2] for one in self.requests() if one["bytes"]})

    # -- the module -----------------------------------------------------------

    def call(self, check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
        """Call the module once.

        :raises Failed: if it fails.
        """
        arguments = {"repository": REPOSITORY, "endpoint": self.endpoint, "store": str(self.store), "reserve_mib": 1, "poll_s": 20, **options}
        self._capsys.readouterr()
        with patch_module_args({**arguments, "_ansible_check_mode": check_mode}), contextlib.suppress(SystemExit):
            hf_model.main()
        result: dict[str, t.Any] = json.loads(self._capsys.readouterr().out)
        if result.get("failed"):
            raise Failed(result)
        return result

    def run(self, **options: t.Any) -> dict[str, t.Any]:
        """Call the module until it has finished, as the action plugin does; ``changed`` is of all calls together."""
        changed = False
        while True:
            result = self.call(**options)
            changed = changed or result["changed"]
            if result["finished"]:
                return {**result, "changed": changed}

    # -- the worker -----------------------------------------------------------

    def units(self) -> list[Path]:
        return [path for path in self.state.iterdir() if path.is_dir()]

    def worker_pid(self) -> int:
        return int((self.units()[0] / "pid").read_text())

    def kill_worker(self) -> None:
        """SIGKILL, as the kernel out of memory would do; returns when systemd knows."""
        os.kill(self.worker_pid(), signal.SIGKILL)
        self.wait_for((self.units()[0] / "exit").exists)

    def wait_for(self, condition: t.Callable[[], t.Any], timeout_s: float = 20.0) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, "the condition did not come true"
            time.sleep(0.02)

    def same_as_hub(self, folder: str, repository: str = REPOSITORY) -> bool:
        """Tell whether each file of the hub's folder lies in ``folder`` with the same content."""
        source = self.models / repository
        return all((Path(folder) / path.relative_to(source)).read_bytes() == path.read_bytes() for path in source.rglob("*") if path.is_file())

    def close(self) -> None:
        for unit in self.units():
            if (unit / "pid").exists() and not (unit / "exit").exists():
                # It may end by itself between the look and the signal.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int((unit / "pid").read_text()), signal.SIGKILL)
        self._hub.kill()
        self._hub.wait()
        if self._hub.stdout:
            self._hub.stdout.close()
