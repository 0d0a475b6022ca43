# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module against real processes; what /proc says about groups and devices comes from a folder in its form."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from sglang_standins import UNIT, Ended, StandinUnit, run_module

from ansible_collections.kpro.llm.plugins.module_utils._linux.processes_edge import ProcessTable
from ansible_collections.kpro.llm.plugins.module_utils._linux.processes_end_edge import Ender
from ansible_collections.kpro.llm.plugins.modules import gpu_cleanup

GROUP = f"/system.slice/{UNIT}"
SLEEPER = [sys.executable, "-c", "import time; print(flush=True); time.sleep(300)"]
STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(300)"]


class Processes:
    """Real processes, with a folder in the form of /proc that says which groups and devices they have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        (folder / "net").mkdir(parents=True)

    def start(self, argv: list[str], cgroup: str, devices: t.Sequence[str] = ()) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        self.running.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        place = self.folder / str(process.pid)
        (place / "fd").mkdir(parents=True)
        shutil.copy(f"/proc/{process.pid}/stat", place / "stat")
        (place / "cmdline").write_bytes(b"\0".join(word.encode() for word in argv))
        (place / "cgroup").write_text(f"12:devices:/other\n0::{cgroup}\n", encoding="ascii")
        (place / "maps").write_text("", encoding="ascii")
        for number, device in enumerate(devices):
            (place / "fd" / str(number)).symlink_to(device)
        return process

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def processes(tmp_path: Path, unit: StandinUnit, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Processes]:
    unit.set(ControlGroup=GROUP)
    played = Processes(tmp_path / "proc")
    monkeypatch.setattr(gpu_cleanup, "ProcessTable", lambda: ProcessTable(str(played.folder)))
    yield played
    played.close()


def cleanup(**options: t.Any) -> Ended:
    nobody = pwd.getpwuid(65534).pw_name
    return run_module(gpu_cleanup.main, **{"user": nobody, "roots": ["/opt/kpro-llm"], "memory_wait_s": 1, "cache_roots": [], **options})


def test_ours_are_ended_and_others_survive(processes: Processes) -> None:
    ours = processes.start(SLEEPER, GROUP, ["/dev/nvidia0"])
    other = processes.start(SLEEPER, "/system.slice/ollama.service", ["/dev/nvidia0", "/dev/nvidia-uvm"])
    mine = processes.start(SLEEPER, "/user.slice/user-1000.slice/session-1.scope")
    result = cleanup().result
    assert [(row["pid"], row["how"]) for row in result["ended"]] == [(ours.pid, "terminated")]
    assert ours.wait(5) == -15
    assert other.poll() is None and mine.poll() is None
    assert [(row["pid"], row["unit"], row["devices"]) for row in result["foreign"]] == [(other.pid, "ollama.service", ["/dev/nvidia-uvm", "/dev/nvidia0"])]
    assert result["changed"] and "in the control group" in result["plan"][0]


def test_check_mode_lists_and_ends_nothing(processes: Processes) -> None:
    ours = processes.start(SLEEPER, GROUP)
    result = cleanup(_ansible_check_mode=True).result
    assert result["changed"] and [(row["pid"], row["how"]) for row in result["ended"]] == [(ours.pid, "planned")]
    assert ours.poll() is None


def test_one_that_does_not_listen_is_killed(processes: Processes) -> None:
    stubborn = processes.start(STUBBORN, GROUP)
    began = time.monotonic()
    result = cleanup(term_wait_s=1).result
    assert [row["how"] for row in result["ended"]] == ["killed"]
    assert stubborn.wait(5) == -9 and time.monotonic() - began < 8


def test_a_running_service_is_no_leftover(processes: Processes, unit: StandinUnit) -> None:
    main = processes.start(SLEEPER, GROUP)
    unit.set(ActiveState="active", MainPID=str(main.pid))
    assert not cleanup().result["changed"]
    assert main.poll() is None


def test_a_second_run_changes_nothing(processes: Processes) -> None:
    assert not cleanup().result["changed"]


def test_a_reused_pid_is_left_alone(processes: Processes) -> None:
    process = processes.start(SLEEPER, GROUP)
    table = ProcessTable(str(processes.folder))
    judged = table.process(process.pid)
    assert judged is not None
    stat = processes.folder / str(process.pid) / "stat"
    fields = stat.read_text(encoding="ascii").split()
    fields[21] = str(int(fields[21]) + 1)
    stat.write_text(" ".join(fields), encoding="ascii")
    assert [ending.how for ending in Ender(table).end([judged], 1, 1)] == ["gone"]
    assert process.poll() is None


def test_one_that_is_gone_is_no_failure(processes: Processes) -> None:
    process = processes.start(SLEEPER, GROUP)
    judged = ProcessTable(str(processes.folder)).process(process.pid)
    assert judged is not None
    process.kill()
    process.wait()
    assert [ending.how for ending in Ender(ProcessTable(str(processes.folder))).end([judged], 1, 1)] == ["gone"]


def test_stale_files_of_ours_are_removed_while_nothing_runs(processes: Processes, unit: StandinUnit, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of another user")
    cache = tmp_path / "cache" / "kernels"
    cache.mkdir(parents=True)
    ours, others, kept = cache / "a.lock", cache / "b.lock", cache / "kernel.so"
    for path in (ours, others, kept):
        path.touch()
    os.chown(ours, 65534, -1)
    os.chown(kept, 65534, -1)
    main = processes.start(SLEEPER, GROUP)
    unit.set(ActiveState="active", MainPID=str(main.pid))
    assert cleanup(cache_roots=[str(tmp_path / "cache")]).result["removed"] == []
    unit.set(ActiveState="inactive", MainPID="0")
    main.kill()
    main.wait()
    result = cleanup(cache_roots=[str(tmp_path / "cache")]).result
    assert result["removed"] == [str(ours)]
    assert not ours.exists() and others.exists() and kept.exists()


def test_a_full_gpu_is_an_error_where_it_has_to_be_free(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "programs" / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\necho "0, GPU-aa, RTX A6000, 00000000:01:00.0, 49140, 9000, 40140, 8.6, Enabled, Disabled, 300.00, 580.173.02"\n', encoding="ascii"
    )
    smi.chmod(0o755)
    other = processes.start(SLEEPER, "/system.slice/ollama.service", ["/dev/nvidia0"])
    ended = cleanup(require_free=True)
    assert ended.rc == 1 and "9000 MiB still in use" in ended.result["msg"]
    assert f"pid {other.pid}" in ended.result["msg"] and "ollama.service" in ended.result["msg"]
    assert other.poll() is None
    assert cleanup().result["memory_used_mib"] == {"GPU-aa": 9000}


INSIDE = f"/lxc/129/ns/system.slice/{UNIT}"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "programs" / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("info", "attach", "ended"),
    [
        ("echo 'State: RUNNING'", "echo ActiveState=active; echo MainPID=812", 0),
        ("echo 'State: RUNNING'", "echo ActiveState=failed; echo MainPID=0", 1),
        ("echo 'State: RUNNING'", "exit 1", 0),
        ("echo 'State: STOPPED'", "exit 1", 1),
    ],
)
def test_the_node_ends_leftovers_of_a_container_only_if_its_service_does_not_run(
    processes: Processes, tmp_path: Path, info: str, attach: str, ended: int
) -> None:
    program(tmp_path, "lxc-info", info)
    program(tmp_path, "lxc-attach", attach)
    ours = processes.start(SLEEPER, INSIDE, ["/dev/nvidia0"])
    other = processes.start(SLEEPER, f"/lxc/131/ns/system.slice/{UNIT}", ["/dev/nvidia0"])
    result = cleanup(container=129).result
    assert len(result["ended"]) == ended and (ours.poll() is not None) == bool(ended)
    assert [row["pid"] for row in result["foreign"]] == [other.pid] and other.poll() is None


FULL = '"0, GPU-aa, RTX A6000, 00000000:01:00.0, 49140, 9000, 40140, 8.6, Enabled, Disabled, 300.00, 580.173.02"'
EMPTY = FULL.replace("9000, 40140", "3, 49137")


@pytest.fixture
def on_a_node(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node whose GPU holds memory until it is reset."""
    (tmp_path / "root" / "etc" / "pve").mkdir(parents=True)
    monkeypatch.setattr(gpu_cleanup, "HOST_ROOT", str(tmp_path / "root"))
    note = tmp_path / "was-reset"
    program(tmp_path, "nvidia-smi", f'case "$1" in --gpu-reset) echo "$3" >> {note};; *) if [ -e {note} ]; then echo {EMPTY}; else echo {FULL}; fi;; esac')
    return note


def test_a_gpu_is_reset_only_on_request_on_a_node_and_with_no_client(processes: Processes, on_a_node: Path) -> None:
    assert cleanup(gpus=["GPU-aa"]).result["reset"] == [] and not on_a_node.exists()
    client = processes.start(SLEEPER, "/system.slice/ollama.service", ["/dev/nvidia1"])
    ended = cleanup(gpus=["GPU-aa"], reset=True)
    assert ended.rc == 1 and f"pid {client.pid}" in ended.result["msg"] and not on_a_node.exists() and client.poll() is None
    shutil.rmtree(processes.folder / str(client.pid))
    planned = cleanup(gpus=["GPU-aa"], reset=True, _ansible_check_mode=True).result
    assert planned["plan"] == ["Reset GPU GPU-aa"] and planned["changed"] and not on_a_node.exists()
    result = cleanup(gpus=["GPU-aa"], reset=True, require_free=True).result
    assert result["reset"] == ["GPU-aa"] and result["memory_used_mib"] == {"GPU-aa": 3}
    assert on_a_node.read_text(encoding="ascii").split() == ["GPU-aa"]
    assert not cleanup(gpus=["GPU-aa"], reset=True).result["changed"]


def test_a_reset_wants_a_node_and_a_name(processes: Processes, on_a_node: Path, tmp_path: Path) -> None:
    assert "no GPU is named" in cleanup(reset=True).result["msg"]
    (tmp_path / "root" / "etc" / "pve").rmdir()
    assert "only on the node" in cleanup(gpus=["GPU-aa"], reset=True).result["msg"]
    assert not on_a_node.exists()


def test_a_holder_that_cannot_end_is_named_as_such(processes: Processes, tmp_path: Path) -> None:
    other = processes.start(SLEEPER, "/system.slice/ollama.service", ["/dev/nvidia0"])
    stat = processes.folder / str(other.pid) / "stat"
    head, _bracket, rest = stat.read_text(encoding="ascii").rpartition(")")
    stat.write_text(f"{head}) D {rest.split(None, 1)[1]}", encoding="ascii")
    assert "waits in the kernel" in cleanup().result["foreign"][0]["note"]
