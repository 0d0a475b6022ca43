# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``pct push`` and ``pct pull``: one file in or out of a running container. They exit 0 on failure, as Proxmox's do."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from . import cli_options, store
from .cli_options import UsageError
from .errors import ApiError, bad_parameters, failed
from .locks import config_lock
from .lxc_config import root_ids
from .node import Node
from .schema import check_value
from .tasks import run_task

STRING = {"type": "string"}
OPTIONS = {"perms": STRING, "user": STRING, "group": STRING}
POSITIONAL = {"push": ("vmid", "file", "destination"), "pull": ("vmid", "path", "destination")}
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Copy:
    """One copy: mode and owner of the destination, ids as they are on the node."""

    source: str
    destination: str
    mode: int | None
    user: str | None
    group: str | None
    shift: tuple[int, int]


def run(node: Node, command: str, argv: Sequence[str]) -> int:
    """Run ``pct push|pull ARGS``."""
    names = POSITIONAL[command]
    usage = f"pct {command} {' '.join(f'<{name}>' for name in names)} [OPTIONS]"
    try:
        options, _rest = cli_options.parse(argv, OPTIONS, names)
        vmid = options["vmid"]
        if reason := check_value("vmid", vmid, {"type": "integer", "format": "pve-vmid"}):
            raise bad_parameters({"vmid": reason})
        config = store.load(node, vmid)
        pid = node.driver.init_pid(node, vmid) if node.driver.is_running(node, vmid) else None
        if pid is None:
            raise failed(f"can't {command} file: CT {vmid} not running")
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage}\n")
        return 255
    except ApiError as error:
        return cli_options.report(error, usage)
    shift = root_ids(config) if command == "push" else (0, 0)

    def work(_task: object, at: Node) -> None:
        with config_lock(at, vmid):
            copy = Copy(
                options[names[1]], options["destination"], _mode(options.get("perms")), options.get("user"),
                options.get("group"), shift,
            )  # fmt: skip
            (_push if command == "push" else _pull)(pid, copy)

    outcome = run_task(node, f"{command}_file", vmid, work)
    if not outcome.is_success:
        cli_options.notice(outcome.exitstatus)
    return 0


def _mode(perms: str | None) -> int | None:
    if perms is None:
        return None
    text = perms if perms.startswith("0") else f"0{perms}"
    if not re.fullmatch(r"0[0-7]{3,4}", text):
        raise failed(f"invalid mode: '{text}'")
    return int(text, 8)


def _ids(copy: Copy) -> tuple[int, int]:
    """Resolve names by the files of the current root (the container's after a chroot)."""
    return (
        copy.shift[0] + _id("passwd", "uid", copy.user),
        copy.shift[1] + _id("group", "gid", copy.group),
    )


def _id(file: str, noun: str, name: str | None) -> int:
    if name is None:
        return 0
    if name.isdigit():
        return int(name)
    with open(f"/etc/{file}", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            fields = line.split(":")
            if fields[0] == name:
                return int(fields[2])
    raise failed(f"failed to get {noun} for: {name}")


def _in_container(pid: int, work: object) -> None:
    """Run ``work`` in a child whose root is the container's; its error text comes back over a pipe."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
            os.fchdir(root)
            os.chroot(".")
            os.chdir("/")
            work()  # type: ignore[operator]
        except ApiError as error:
            os.write(writable, error.message.encode(errors="surrogateescape"))
            code = 1
        finally:
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _pid, status = os.waitpid(child, 0)
    if text or os.waitstatus_to_exitcode(status):
        raise failed(text or "copy failed")


def _create(copy: Copy) -> int:
    try:
        target = os.open(copy.destination, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise failed(f"failed to create file: {copy.destination}: {error.strerror}") from error
    return target


def _copy(source: int, target: int) -> None:
    try:
        while block := os.read(source, BLOCK_BYTES):
            view = memoryview(block)
            while view:
                view = view[os.write(target, view) :]
    except IsADirectoryError:
        pass  # as recorded: a folder as source gives an empty file and no word


def _push(pid: int, copy: Copy) -> None:
    try:
        source = os.open(copy.source, os.O_RDONLY)
    except OSError:
        raise failed(f"failed to open {copy.source} for reading") from None

    def work() -> None:
        owner = _ids(copy)
        target = _create(copy)
        _copy(source, target)
        os.fchown(target, *owner)
        os.fchmod(target, 0o644 if copy.mode is None else copy.mode)

    _in_container(pid, work)


def _pull(pid: int, copy: Copy) -> None:
    owner = _ids(copy)
    target = _create(copy)
    if copy.user is not None or copy.group is not None:
        os.fchown(target, *owner)
    if copy.mode is not None:
        os.fchmod(target, copy.mode)

    def work() -> None:
        try:
            source = os.open(copy.source, os.O_RDONLY)
        except OSError as error:
            raise failed(f"failed to open {copy.source}: {error.strerror}") from error
        _copy(source, target)

    _in_container(pid, work)
