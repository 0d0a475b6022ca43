# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that the ``pct`` connection sends to the node, and the reading of their answers. Pure."""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing as t

from ..module_utils._core.shown_text import one_line

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SYNTAX_ERROR = re.compile(
    rb"^(?:[\w./-]*/)?(?:ba|da)?sh: (?:-c: )?(?:line )?\d+: ((?:[Ss]yntax error|unexpected EOF while looking for matching)[^\n]*)", re.MULTILINE
)

# Sudo's own words.
_SUDO_REFUSES = re.compile(
    r"^(?:sudo: .*(?:password is required|no password was provided|not allowed|must be setuid|must have a tty).*"
    r"|\S+ is not (?:in the sudoers file|allowed to (?:run|execute)).*|Sorry, user \S+ (?:is not allowed|may not run sudo).*"
    r"|.*\bsudo: (?:command )?not found)$",
    re.MULTILINE,
)
# What the connection says of a container that is not there to be entered, by kind; all else is a fault of the way.
_NOT_THERE = ("is not running on", "is not on", "is a virtual machine on", "does not exist on")

# ssh ends with 255 for its own failures, so a 255 of the container's command travels as this code plus a mark on stderr.
_DISGUISED_RC = 254
_AS_ROOT = " as root"


@dataclasses.dataclass(frozen=True)
class Entry:
    """How a container is entered.

    :param vmid: container ID.
    :param program: ``lxc-attach`` or ``pct``.
    :param lxc_path: folder of LXC's containers if it is not LXC's own default.
    :param user: name of the user inside the container; empty for root.
    :param sudo: whether the node's user has to become root.
    """

    vmid: str
    program: str = "lxc-attach"
    lxc_path: str = ""
    user: str = ""
    sudo: bool = False

    def argv(self, command: str) -> list[str]:
        """Argument vector, on the node, that runs ``command`` by the container's ``/bin/sh``."""
        environment = {"HOME": "/root", "PATH": PATH, "LANG": "C.UTF-8"}
        inner = ["/bin/sh", "-c", command]
        if self.user:
            inner = ["runuser", "-s", "/bin/sh", self.user, "-c", command]
        if self.program == "pct":
            assignments = [f"{name}={value}" for name, value in environment.items()]
            return ["/usr/sbin/pct", "exec", self.vmid, "--keep-env", "0", "--", "env", *assignments, *inner]
        options = [word for name, value in environment.items() for word in ("--set-var", f"{name}={value}")]
        path = ["-P", self.lxc_path] if self.lxc_path else []
        return ["lxc-attach", *path, "-n", self.vmid, "--clear-env", *options, "--", *inner]


def remote_command(entry: Entry, command: str, mark: str) -> str:
    """Return the one string that ssh hands to the login shell of the node's user.

    Only ``exec`` and quoted words reach that shell, so it may be any; ``mark`` tells a 255 of the command from one of ssh.
    """
    return on_node(entry, entry_script(entry, command, mark))


def entry_script(entry: Entry, command: str, mark: str) -> str:
    """Return the script that enters the container from its node and runs ``command`` there."""
    disguise = f"if [ $r -eq 255 ]; then echo {shlex.quote(mark)} >&2; exit {_DISGUISED_RC}; fi; exit $r"
    # A command that fails may print what sudo prints: this line tells that sudo was passed.
    proof = f"[ $r -eq 0 ] || echo {shlex.quote(mark + _AS_ROOT)} >&2; " if entry.sudo else ""
    return f"{shlex.join(entry.argv(command))}; r=$?; {proof}{disguise}"


def on_node(entry: Entry, script: str) -> str:
    """Return the string for ssh that runs ``script`` as root on the node itself."""
    sudo = ["sudo", "-n"] if entry.sudo else []
    return "exec " + shlex.join([*sudo, "/bin/sh", "-c", script])


def holds_the_session(command: str) -> bool:
    """Tell whether a command ends in a background process that keeps the session's output open, so that it would not return.

    Ansible puts the command into quotes of its own and adds ``&& sleep 0``.
    """
    text = re.sub(r"\s*&&\s*sleep 0\s*['\"]*\s*$", "", command)
    found = re.search(r"(?<![&>])&[\s'\"\\]*$", text)
    if not found:
        return False
    last = re.split(r"[;\n]|&&|\|\|", text[: found.start()])[-1]
    both = re.search(r"&>|>&\s*[^\d\s]", last) or (re.search(r"(?<!2)>", last) and re.search(r"2>", last))
    return not both


def background_sentence(vmid: str) -> str:
    """Return why a command with a background process is not run, and what to do."""
    return (
        f"The command starts a background process that would keep this session to container {vmid} open: nothing was started."
        " Give it to systemd, which keeps it when the session closes (systemd-run --unit=NAME COMMAND), or redirect both of its outputs"
    )


def quoting_sentence(vmid: str, rc: int, stderr: bytes) -> str:
    """Return what a syntax error of the container's shell means; empty if the answer is not one.

    The node's shell gets quoted words only (:func:`remote_command`), so that it can't be the one that complains.
    """
    found = _SYNTAX_ERROR.search(stderr)
    if rc != 2 or not found:
        return ""
    words = found[1].decode(errors="replace")
    return f"The command was broken by quoting before it ran (shell syntax error inside container {vmid}: {words}): nothing was started by that shell"


def path_problem(vmid: str, path: str) -> str:
    """Return why a file can't be copied to or from a path, empty if it can."""
    if path.startswith("/"):
        return ""
    return f"path '{path}' is not absolute inside container {vmid}: '~' and relative paths mean another folder there than on the node"


def true_answer(rc: int, stderr: bytes, mark: str) -> tuple[int, bytes]:
    """Return exit code and standard error of the command, as they were inside the container."""
    stderr = stderr.replace(f"{mark}{_AS_ROOT}\n".encode(), b"")
    line = mark.encode() + b"\n"
    # ssh's own debug lines may follow it; the mark is random, so it is nobody else's.
    if rc == _DISGUISED_RC and line in stderr:
        return 255, stderr.replace(line, b"")
    return rc, stderr


def got_root(stderr: bytes, mark: str) -> bool:
    """Tell from an answer as it came, with a failure in it, whether the node's user got to be root there."""
    return f"{mark}{_AS_ROOT}\n".encode() in stderr


def entry_failed(entry: Entry, rc: int, stderr: bytes, as_root: bool = False) -> str:
    """Return why the container could not be entered, or an empty text if it was.

    ``lxc-attach`` ends with 1 and ``pct`` with any code, so the text decides; it is bound to the program and the ID, as a
    command inside may print much the same.

    :param as_root: sudo on the node was passed, so that its words are those of a command inside.
    """
    if rc == 0:
        return ""
    text = stderr.decode("utf-8", "replace")
    vmid = re.escape(entry.vmid)
    patterns = {
        "lxc-attach": rf"^lxc-attach: {vmid}: .*(Failed to get init pid|Failed to attach|Connection refused)",
        "pct": rf"^(container '{vmid}' not running!|Configuration file 'nodes/[^/]+/lxc/{vmid}\.conf' does not exist)",
    }
    found = re.search(patterns[entry.program], text, re.MULTILINE)
    if found:
        return _line_of(text, found)
    if entry.sudo and not as_root and (found := _SUDO_REFUSES.search(text)):
        return found.group(0).strip()
    missing = re.search(r"^.*(lxc-attach|/usr/sbin/pct): (command |)not found$", text, re.MULTILINE)
    return missing.group(0) if missing and rc == 127 else ""


def _line_of(text: str, found: re.Match[str]) -> str:
    return text[found.start() :].splitlines()[0]


def where_is(vmid: str) -> str:
    """Script for the node that tells where the cluster keeps the configuration of ``vmid``; read by :func:`location`."""
    quoted = shlex.quote(vmid)
    return f"readlink /etc/pve/local; ls -d /etc/pve/nodes/*/*/{quoted}.conf 2>/dev/null; true"


def location(vmid: str, answer: str) -> tuple[str, str]:
    """Return ``(kind, node)`` from the answer to :func:`where_is`.

    ``kind`` is ``here`` (so it is stopped), ``elsewhere``, ``vm`` (the ID belongs to a virtual machine), ``absent`` or
    ``unknown`` (the node answered nothing that reads like Proxmox).
    """
    lines = answer.splitlines()
    local = next((line.rsplit("/", 1)[-1] for line in lines if re.fullmatch(r"(/etc/pve/)?nodes/[^/]+", line)), "")
    if not local:
        return "unknown", ""
    found = re.search(rf"^/etc/pve/nodes/([^/]+)/([^/]+)/{re.escape(vmid)}\.conf$", answer, re.MULTILINE)
    if not found:
        return "absent", local
    node, kind = found.groups()
    if kind != "lxc":
        return "vm", node
    return ("here" if node == local else "elsewhere"), node


def no_root_sentence(vmid: str, node: str, user: str, evidence: str, with_password: bool) -> str:
    """Say that the node's user can't get to be root there, which entering a container needs, and what to do about it."""
    who = f"The way into container {vmid} needs root on {node}, and {user} does not get it there"
    if re.search("sudo: (command )?not found", evidence):
        remedy = "Install sudo there, or log in as root (ansible_user)"
    elif re.search("sudoers|not allowed|may not run", evidence):
        remedy = f"Allow {user} to use sudo there, or log in as root (ansible_user)"
    elif with_password:
        remedy = f"Correct the password for sudo (ansible_become_password of {node} and of the container's host), or allow {user} password-less sudo"
    else:
        remedy = (
            f"Allow {user} password-less sudo there, or give the password for sudo to the container's host, too"
            " (ansible_become_password, or pct_node_become_password)"
        )
    return f"{who} ({evidence}). {remedy}"


def refused_root(entry: Entry, evidence: str) -> bool:
    """Tell whether what stopped the entry is the node's sudo, and not the container."""
    return entry.sudo and bool(_SUDO_REFUSES.search(evidence))


def is_not_there(sentence: str) -> bool:
    """Tell whether a sentence of this connection is about a container that is stopped or elsewhere, with the way itself in order."""
    return any(words in sentence for words in _NOT_THERE)


def unreachable_sentence(vmid: str, node: str, kind: str, found_on: str, evidence: str) -> str:
    """Say why the container can't be entered and what to do about it."""
    reasons: dict[str, t.Callable[[], str]] = {
        "here": lambda: f"Container {vmid} is not running on {node}. Start it there with 'pct start {vmid}', or run the deployment again",
        "elsewhere": lambda: (
            f"Container {vmid} is not on {node} but on {found_on}. Set pct_node to {found_on}, or move the container back with 'pct migrate {vmid}'"
        ),
        "vm": lambda: f"{vmid} is a virtual machine on {found_on}, not a container. Choose another pct_vmid",
        "absent": lambda: f"Container {vmid} does not exist on {node}. Create it by running the deployment, or correct pct_vmid and pct_node",
    }
    text = reasons.get(kind, lambda: f"Container {vmid} on {node} can't be entered. Check that {node} is the Proxmox VE node of this container")()
    return f"{text} ({one_line(evidence)})"
