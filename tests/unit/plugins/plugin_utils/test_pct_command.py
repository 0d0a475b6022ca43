# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.plugin_utils import _pct_command as pct

MARK = "mark 1234"

# A stand-in for lxc-attach that runs the command in another folder than the caller's, as another file tree.
LXC_ATTACH = """#!/bin/sh
echo "$@" > "$STATE/argv"
while [ "$1" != -- ]; do shift; done
shift
cd "$STATE/container" && exec "$@"
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "container").mkdir()
    (tmp_path / "node").mkdir()
    for name, text in {"lxc-attach": LXC_ATTACH, "sudo": '#!/bin/sh\nshift\ntouch "$STATE/sudo"\nexec "$@"\n'}.items():
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def run(node: Path, command: str, entry: pct.Entry | None = None, login_shell: str = "/bin/sh", stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run what ssh would hand to the login shell of the node's user, and read the answer as the plugin does."""
    remote = pct.remote_command(entry or pct.Entry("129"), command, MARK)
    done = subprocess.run(
        [login_shell, "-c", remote],
        cwd=node / "node",
        input=stdin,
        capture_output=True,
        check=False,
        env={"PATH": f"{node / 'bin'}:/usr/bin:/bin", "STATE": str(node)},
    )
    rc, stderr = pct.true_answer(done.returncode, done.stderr, MARK)
    return rc, done.stdout, stderr


@pytest.mark.parametrize("login_shell", ["/bin/sh", "/bin/bash"])
def test_redirection_and_second_command_stay_in_the_container(node: Path, login_shell: str) -> None:
    rc, stdout, _stderr = run(node, "echo a > f; pwd", login_shell=login_shell)
    assert (rc, stdout.decode().strip()) == (0, str(node / "container"))
    assert (node / "container" / "f").read_text() == "a\n"
    assert not (node / "node" / "f").exists()


@pytest.mark.parametrize("rc", [0, 1, 2, 126, 127, 137, 254, 255])
def test_exit_codes_are_faithful(node: Path, rc: int) -> None:
    assert run(node, f"echo out; echo err >&2; exit {rc}") == (rc, b"out\n", b"err\n")


def test_255_keeps_stderr_without_a_line_end(node: Path) -> None:
    assert run(node, "printf err >&2; exit 255") == (255, b"", b"err")


def test_255_is_told_also_where_ssh_speaks_after_the_command() -> None:
    assert pct.true_answer(254, f"err\n{MARK}\ndebug1: Exit status 254\n".encode(), MARK) == (255, b"err\ndebug1: Exit status 254\n")


@pytest.mark.parametrize("word", ["a b", "it's", 'say "x"', "$HOME", "a\nb", "back\\slash", "`id`", "*", "ünicode"])
def test_words_arrive_as_they_are(node: Path, word: str) -> None:
    assert run(node, f"printf %s {shlex.quote(word)}")[1].decode() == word


def test_stdin_is_binary_safe(node: Path) -> None:
    data = bytes(range(256)) * 4096
    assert run(node, "cat", stdin=data) == (0, data, b"")


def test_environment_is_clean_but_complete() -> None:
    argv = pct.Entry("129").argv("true")
    assert argv[:4] == ["lxc-attach", "-n", "129", "--clear-env"]
    assert "HOME=/root" in argv
    assert "LANG=C.UTF-8" in argv
    assert f"PATH={pct.PATH}" in argv
    assert pct.PATH.startswith("/usr/local/sbin:/usr/local/bin:")


def test_pct_entry_clears_the_environment_too() -> None:
    argv = pct.Entry("129", program="pct").argv("true")
    assert argv[:6] == ["/usr/sbin/pct", "exec", "129", "--keep-env", "0", "--"]
    assert argv[6:10] == ["env", "HOME=/root", f"PATH={pct.PATH}", "LANG=C.UTF-8"]


def test_sudo_and_container_user(node: Path) -> None:
    assert run(node, "true", pct.Entry("129", sudo=True))[0] == 0
    assert (node / "sudo").exists()
    assert pct.Entry("129", user="sglang").argv("id")[-6:] == ["runuser", "-s", "/bin/sh", "sglang", "-c", "id"]


@pytest.mark.parametrize(
    ("entry", "rc", "stderr", "failed"),
    [
        (pct.Entry("129"), 1, b"lxc-attach: 129: ../src/lxc/attach.c: get_attach_context: 406 Connection refused - Failed to get init pid\n", True),
        (pct.Entry("12"), 1, b"lxc-attach: 129: ../src/lxc/attach.c: get_attach_context: 406 Failed to get init pid\n", False),
        (pct.Entry("129"), 1, b"Failed to get init pid\n", False),
        (pct.Entry("129", program="pct"), 255, b"container '129' not running!\n", True),
        (pct.Entry("129", program="pct"), 2, b"Configuration file 'nodes/pve1/lxc/129.conf' does not exist\n", True),
        (pct.Entry("129", program="pct"), 255, b"something of the command\n", False),
        (pct.Entry("129", sudo=True), 1, b"sudo: a password is required\n", True),
        (pct.Entry("129"), 1, b"sudo: a password is required\n", False),
        (pct.Entry("129"), 127, b"/bin/sh: 1: lxc-attach: not found\n", True),
        (pct.Entry("129"), 127, b"/bin/sh: 1: foo: not found\n", False),
    ],
)
def test_a_failure_to_enter_is_told_from_one_of_the_command(entry: pct.Entry, rc: int, stderr: bytes, failed: bool) -> None:
    assert bool(pct.entry_failed(entry, rc, stderr)) is failed


@pytest.mark.parametrize(
    ("answer", "kind", "node_name", "mention"),
    [
        ("nodes/kpro5\n/etc/pve/nodes/kpro5/lxc/129.conf\n", "here", "kpro5", "pct start 129"),
        ("nodes/kpro5\n/etc/pve/nodes/kpro6/lxc/129.conf\n", "elsewhere", "kpro6", "not on kpro5 but on kpro6"),
        ("nodes/kpro5\n/etc/pve/nodes/kpro5/qemu-server/129.conf\n", "vm", "kpro5", "virtual machine"),
        ("nodes/kpro5\n", "absent", "kpro5", "does not exist on kpro5"),
        ("", "unknown", "", "Proxmox VE node"),
    ],
)
def test_unreachable_says_where_the_container_is(answer: str, kind: str, node_name: str, mention: str) -> None:
    assert pct.location("129", answer) == (kind, node_name)
    assert mention in pct.unreachable_sentence("129", "kpro5", kind, node_name, "evidence")
