# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.processes import Process, listening_inodes, process_words, unified_cgroup, within_cgroup
from ansible_collections.kpro.llm.plugins.module_utils._linux.processes_edge import ProcessTable

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 41234 1 0000000000000000 100 0 0 10 0
   1: 0100007F:7530 0100007F:C350 01 00000000:00000000 00:00000000 00000000   999        0 41300 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20001 1 0000000000000000 100 0 0 10 0
"""


def test_only_listeners_of_the_port_count() -> None:
    assert listening_inodes(TCP, 30000) == {"41234"}
    assert listening_inodes(TCP, 22) == {"20001"}
    assert listening_inodes(TCP, 80) == set() and listening_inodes("", 80) == set()


def test_the_unified_group_stands_behind_the_v1_lines() -> None:
    text = "12:devices:/payload\n1:name=systemd:/payload\n0::/system.slice/kpro-sglang.service\n"
    assert unified_cgroup(text) == "/system.slice/kpro-sglang.service"
    assert unified_cgroup("12:devices:/payload\n") == ""


@pytest.mark.parametrize(("path", "inside"), [("/a.slice/x.service", True), ("/a.slice/x.service/y", True), ("/a.slice/x.service2", False), ("/", False)])
def test_below_a_group(path: str, inside: bool) -> None:
    assert within_cgroup(path, "/a.slice/x.service") is inside
    assert not within_cgroup(path, "")


def test_a_process_has_a_name_for_a_person() -> None:
    process = Process(9120, uid=998, command="ollama serve", cgroup="/system.slice/ollama.service")
    assert process_words(process) == "pid 9120 (ollama serve, uid 998, unit ollama.service)"
    assert process_words(Process(7), user="x") == "pid 7 (a process without a command line, user x)"


def test_a_real_listener_is_found() -> None:
    table = ProcessTable()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listens, holder = table.listener(port)
        assert listens and holder is not None and holder.pid == os.getpid()
        assert "python" in holder.command and holder.uid == os.geteuid() and holder.start_ticks > 0
    assert table.listener(port) == (False, None)


def test_open_devices_and_mapped_files_are_read(tmp_path: Path) -> None:
    place = tmp_path / "77"
    (place / "fd").mkdir(parents=True)
    (place / "stat").write_text(f"77 (py thon) S 1 {' '.join('0' for _number in range(17))} 4242 0\n", encoding="ascii")
    (place / "cmdline").write_bytes(b"")
    (place / "cgroup").write_text("0::/x\n", encoding="ascii")
    (place / "maps").write_text("7f00-7f01 r-xp 00000000 08:01 12 /opt/kpro-llm/a b.so\n7f02-7f03 rw-p 00000000 00:00 0\n", encoding="ascii")
    for name, target in (("0", "/dev/null"), ("5", "/dev/nvidia0"), ("6", "/dev/nvidia-uvm"), ("7", "/dev/nvidia0")):
        (place / "fd" / name).symlink_to(target)
    process = ProcessTable(str(tmp_path)).process(77, maps_of_uid=place.stat().st_uid)
    assert process == Process(
        77,
        uid=place.stat().st_uid,
        state="S",
        start_ticks=4242,
        parent_pid=1,
        command="[py thon]",
        cgroup="/x",
        devices=("/dev/nvidia-uvm", "/dev/nvidia0"),
        mapped=("/opt/kpro-llm/a b.so",),
    )
    assert ProcessTable(str(tmp_path)).process(78) is None
