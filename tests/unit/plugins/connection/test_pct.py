# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin as Ansible loads it, against stand-ins for ssh and lxc-attach. The real container is in tests/integration."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.playbook.play_context import PlayContext
from ansible.plugins.connection import ssh as core_ssh
from ansible.plugins.loader import become_loader, connection_loader

from ansible_collections.kpro.llm.plugins.connection import pct
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import failure_case

# The last word of ssh's argument vector is the command for the node's login shell.
SSH = """#!/bin/sh
for last; do :; done
echo x >> "$STATE/round-trips"
cd "$STATE/node" && exec /bin/sh -c "$last"
"""
LXC_ATTACH = """#!/bin/sh
id=$2 clear= words=
while [ "$1" != -- ]; do
  case $1 in --clear-env) clear=-i ;; --set-var) words="$words $2" ;; esac
  shift
done
shift
[ -e "$STATE/running" ] || { echo "lxc-attach: $id: ../src/lxc/attach.c: get_attach_context: 406 Connection refused - Failed to get init pid" >&2; exit 1; }
cd "$STATE/container" && exec env $clear $words "$@"
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


# --- become for all hosts ------------------------------------------------------------------------------------------------

SECRET = "a secret of the node"
# Of sudo what the way needs: options, the prompt on standard error, the password on standard input, sudo's own words.
SUDO = """#!/bin/sh
echo "$*" >> "$STATE/sudo-arguments"
while :; do case $1 in -n) silent=1; shift ;; -p) prompt=$2; shift 2 ;; -u) shift 2 ;; -*) shift ;; *) break ;; esac; done
[ ! -e "$STATE/forbidden" ] || { echo "admin is not in the sudoers file." >&2; exit 1; }
if [ -e "$STATE/password" ]; then
  [ -z "$silent" ] || { echo "sudo: a password is required" >&2; exit 1; }
  printf %s "$prompt" >&2
  IFS= read -r given
  [ "$given" = "$(cat "$STATE/password")" ] || { echo "Sorry, try again." >&2; exit 1; }
fi
exec "$@"
"""


@pytest.fixture
def with_sudo(state: Path) -> Path:
    program = state / "bin/sudo"
    program.write_text(SUDO)
    program.chmod(0o755)
    return state


def become(connection: pct.Connection, method: str = "sudo", **options: object) -> None:
    """Give the connection a task's become as ansible-core does."""
    connection.set_become_plugin(become_loader.get(method))
    connection.become.set_options(direct={"become_user": "root", **options})


def test_nobody_becomes_root_inside_the_container(with_sudo: Path) -> None:
    connection = connect(ansible_user="root")
    become(connection, become_pass=SECRET)
    shell = connection._shell
    assert connection.become.build_become_command("id", shell) == "id"
    assert connection.exec_command("pwd")[1].decode().strip() == str(with_sudo / "container")
    assert not (with_sudo / "sudo-arguments").exists(), "the login is root"
    connection.become.set_options(direct={"become_user": "sglang"})
    assert "-u sglang" in connection.become.build_become_command("id", shell), "another user is meant inside"


@pytest.mark.parametrize("of_task", [True, False])
def test_the_password_reaches_sudo_of_the_node_on_standard_input_only(with_sudo: Path, tmp_path: Path, of_task: bool) -> None:
    (with_sudo / "password").write_text(SECRET)
    connection = connect(ansible_user="admin", **({} if of_task else {"ansible_become_password": SECRET}))
    if of_task:
        become(connection, become_pass=SECRET)
    data = bytes(range(256)) * 100
    assert connection.exec_command("cat", in_data=data) == (0, data, b"")
    assert connection.exec_command("pwd; exit 3", sudoable=False)[:2] == (3, f"{with_sudo / 'container'}\n".encode())
    (tmp_path / "source").write_bytes(data)
    connection.put_file(str(tmp_path / "source"), str(with_sudo / "container/target"))
    connection.fetch_file(str(with_sudo / "container/target"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    assert SECRET not in (with_sudo / "sudo-arguments").read_text()


def test_a_password_that_is_not_asked_for_does_no_harm(with_sudo: Path) -> None:
    connection = connect(ansible_user="admin", pct_node_become_password=SECRET)
    assert connection.exec_command("cat", in_data=b"data") == (0, b"data", b"")


@pytest.mark.parametrize(
    ("password", "forbidden", "given", "words"),
    [
        (SECRET, False, "", r"needs root on kpro5, and admin does not get it there \(sudo: a password is required\)\. Allow admin password-less sudo"),
        (SECRET, False, "wrong", r"Incorrect sudo password\)\. Correct the password"),
        ("", True, "", r"not in the sudoers file\.\)\. Allow admin to use sudo"),
        ("", True, "wrong", r"not in the sudoers file\.\)\. Allow admin to use sudo"),
    ],
)
def test_why_the_login_is_not_root_on_the_node(with_sudo: Path, password: str, forbidden: bool, given: str, words: str) -> None:
    if password:
        (with_sudo / "password").write_text(password)
    if forbidden:
        (with_sudo / "forbidden").touch()
    connection = connect(ansible_user="admin", **({"pct_node_become_password": given} if given else {}))
    with pytest.raises(AnsibleConnectionFailure, match=words) as error:
        connection.exec_command("true")
    assert not pct.pct.is_not_there(str(error.value))


def test_sudo_of_a_command_inside_is_not_the_way(with_sudo: Path) -> None:
    words = b"sudo: a password is required\n"
    assert connect(ansible_user="admin").exec_command(f"echo '{words.decode().strip()}' >&2; exit 1") == (1, b"", words)


def test_a_stopped_container_is_told_also_by_way_of_a_password(with_sudo: Path) -> None:
    (with_sudo / "password").write_text(SECRET)
    (with_sudo / "running").rmdir()
    with pytest.raises(AnsibleConnectionFailure, match="Failed to get init pid"):
        connect(ansible_user="admin", ansible_become_password=SECRET).exec_command("true")


# --- failure cases from the field ----------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the plugin says at the terminal."""
    said: list[str] = []
    for name in ("warning", "v"):
        monkeypatch.setattr(pct.display, name, lambda text, **_how: said.append(text))
    return said


@pytest.mark.parametrize("wrap", ["{}", "/bin/sh -c {} && sleep 0", "/bin/sh -c {}"])
def test_a_background_process_that_would_hold_the_session_is_not_started(state: Path, wrap: str) -> None:
    """LLMX-020."""
    case = failure_case("LLMX-020")
    command = shlex.join(case["repro"]["argv"][4:])
    with pytest.raises(AnsibleError) as error:
        connect().exec_command(wrap.format(command if wrap == "{}" else shlex.quote(command)))
    message = str(error.value)
    assert all(words in message for words in case["expect"]["must_mention"]) and "129" in message
    assert "nothing was started" in message and not (state / "round-trips").exists()


@pytest.mark.parametrize("command", ["sleep 30 >/dev/null 2>&1 &", "sleep 30 &>/dev/null &", "true && echo 'R&D'", "echo a & wait"])
def test_what_does_not_hold_the_session_runs(state: Path, command: str) -> None:
    assert connect().exec_command(command)[0] == 0


def test_a_large_file_is_streamed_and_that_is_said(state: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """LLMX-041: pct push is not used, as it ends with 0 when it fails."""
    case = failure_case("LLMX-041")
    monkeypatch.setattr(pct, "PIECE_BYTES", 1000)
    source = tmp_path / "weights"
    source.write_bytes(os.urandom(5200))
    connect().put_file(str(source), str(state / "container/weights"))
    assert (state / "container/weights").read_bytes() == source.read_bytes()
    assert all(words in told[0] for words in case["expect"]["must_mention"]) and "6 pieces" in told[0]


@pytest.mark.parametrize("path", ["~svc/.ansible/tmp/x", ".ansible/tmp/x"])
def test_a_path_that_another_shell_would_expand_is_refused_at_once(state: Path, tmp_path: Path, path: str) -> None:
    """LLMX-076."""
    (tmp_path / "x").write_text("x")
    for transfer in (connect().put_file, connect().fetch_file):
        source, target = (str(tmp_path / "x"), path) if transfer.__name__ == "put_file" else (path, str(tmp_path / "y"))
        with pytest.raises(AnsibleError) as error:
            transfer(source, target)
        assert all(words in str(error.value) for words in failure_case("LLMX-076")["expect"]["must_mention"]) and path in str(error.value)
    assert not (state / "round-trips").exists()


def test_nothing_of_the_callers_environment_comes_along(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLMX-135: asked for in so many words, because the default of pct exec differs between releases."""
    for name in failure_case("LLMX-135")["repro"]["caller_env"]:
        monkeypatch.setenv(name, "of-the-caller")
    _rc, stdout, _stderr = connect().exec_command("env")
    assert b"of-the-caller" not in stdout and b"HOME=/root" in stdout
    argv = pct.pct.Entry("129", "pct").argv("env")
    assert argv[argv.index("--keep-env") + 1] == "0"


def test_a_command_broken_by_quoting_is_told_from_a_program_that_failed(state: Path, told: list[str]) -> None:
    """LLMX-146."""
    case = failure_case("LLMX-146")
    rc, _stdout, _stderr = connect().exec_command('pkill -f "launch_server"; nohup bash -lc \'start --name "a b"\' >/dev/null 2>&1; echo "')
    assert rc == 2 and all(words in told[0] for words in case["expect"]["must_mention"]), told
    assert "container 129" in told[0] and "crashed" not in told[0]
    told.clear()
    # The same words, quoted as Ansible does it, arrive whole through all shells.
    words = "start --name \"a b\" 'c d' $HOME"
    assert connect().exec_command(f"printf %s {shlex.quote(words)}")[1] == words.encode()
    assert connect().exec_command("exit 2")[0] == 2 and told == []
