# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin as Ansible loads it, against stand-ins for ssh and lxc-attach. The real container is in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure
from ansible.playbook.play_context import PlayContext
from ansible.plugins.connection import ssh as core_ssh
from ansible.plugins.loader import connection_loader

from ansible_collections.kpro.llm.plugins.connection import pct

# The last word of ssh's argument vector is the command for the node's login shell.
SSH = """#!/bin/sh
for last; do :; done
echo x >> "$STATE/round-trips"
cd "$STATE/node" && exec /bin/sh -c "$last"
"""
LXC_ATTACH = """#!/bin/sh
id=$2
while [ "$1" != -- ]; do shift; done
shift
[ -e "$STATE/running" ] || { echo "lxc-attach: $id: ../src/lxc/attach.c: get_attach_context: 406 Connection refused - Failed to get init pid" >&2; exit 1; }
cd "$STATE/container" && exec "$@"
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("bin", "node", "container", "running"):
        (tmp_path / name).mkdir()
    for name, text in {"ssh": SSH, "lxc-attach": LXC_ATTACH}.items():
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("STATE", str(tmp_path))
    return tmp_path


def connect(**variables: object) -> pct.Connection:
    connection = connection_loader.get("kpro.llm.pct", PlayContext(), None)
    connection.set_options(var_options={"pct_vmid": 129, "ansible_host": "node.example", "pct_node": "kpro5", **variables})
    return connection


def test_every_option_of_the_installed_ssh_plugin_is_kept() -> None:
    connection = connect()
    for name in yaml.safe_load(core_ssh.DOCUMENTATION)["options"]:
        connection.get_option(name)


def test_defaults_suit_a_container_and_can_be_overridden() -> None:
    connection = connect()
    assert connection.get_option("pipelining") is True
    assert connection.get_option("use_tty") is False
    assert connect(ansible_pipelining=False, ansible_ssh_use_tty=True).get_option("pipelining") is False


def test_a_command_is_one_round_trip(state: Path) -> None:
    assert connect().exec_command("pwd") == (0, f"{state / 'container'}\n".encode(), b"")
    assert (state / "round-trips").read_text() == "x\n"


def test_255_of_a_command_is_not_unreachable(state: Path) -> None:
    rc, _stdout, stderr = connect().exec_command("echo why >&2; exit 255")
    assert (rc, stderr) == (255, b"why\n")


def test_a_stopped_container_is_unreachable_with_a_sentence(state: Path) -> None:
    (state / "running").rmdir()
    with pytest.raises(AnsibleConnectionFailure, match=r"129 on kpro5.*Failed to get init pid"):
        connect().exec_command("true")


@pytest.mark.parametrize("size", [0, 1, 1000, 2500, 3000])
@pytest.mark.parametrize("name", ["plain", "with space", "it's", "two\nlines"])
def test_files_of_any_size_in_pieces(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, name: str) -> None:
    monkeypatch.setattr(pct, "PIECE_BYTES", 1000)
    data = bytes(i * 7 % 256 for i in range(size))
    (tmp_path / "source").write_bytes(data)
    connection = connect()
    target = state / "container" / name
    target.write_bytes(b"longer than what comes" * 300)
    connection.put_file(str(tmp_path / "source"), str(target))
    assert target.read_bytes() == data
    connection.fetch_file(str(target), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data


def test_sudo_for_a_node_user_other_than_root() -> None:
    assert connect(ansible_user="admin")._entry().sudo is True
    assert connect(ansible_user="root")._entry().sudo is False
    assert connect(ansible_user="admin", pct_node_privilege="root")._entry().sudo is False
