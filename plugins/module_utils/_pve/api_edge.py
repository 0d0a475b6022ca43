# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the Proxmox API: what the core needs of it, and the way through ``pvesh`` on the node."""

from __future__ import annotations

import concurrent.futures
import json
import time
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command, CommandResult
from . import answers as text

# Values are text, numbers or booleans.
Params = t.Mapping[str, t.Any]
READ_TRIES = 5


class PveError(KproError):
    """Proxmox refused a call; ``reason`` is its own text.

    Any refused write may have been written all the same (a missing ``dev[n]`` node, a lock timeout): read again before deciding.
    """


class PveTimeout(KproError):
    """Proxmox did not answer in time; the outcome of a write is not known."""


class PveApi(t.Protocol):
    """The Proxmox API as the core sees it; paths are those of the API without ``/api2/json``."""

    @property
    def user(self) -> str:
        """Who asks, for example ``root@pam``; a token as ``user@realm!name``."""

    def get(self, path: str, params: Params | None = None) -> t.Any:
        """Return the data of a read."""

    def get_all(self, paths: t.Sequence[tuple[str, Params]]) -> list[t.Any]:
        """Return the data of several reads, a :class:`PveError` in the place of each refused one."""

    def put(self, path: str, params: Params) -> t.Any:
        """Change something at once."""

    def task(self, verb: str, path: str, params: Params, timeout_s: float) -> str:
        """Start a task by ``create``, ``set`` or ``delete`` and return its UPID, whether or not it has ended."""


def good(answer: t.Any) -> t.Any:
    """Return one of the answers of :meth:`PveApi.get_all`.

    :raises PveError: if the read was refused.
    """
    if isinstance(answer, PveError):
        raise answer
    return answer


class Pvesh:
    """The API through ``pvesh`` on a node, as root: complete (also what is root@pam only), about a second for each call.

    :param read_timeout_s: longest wait for one read or configuration change.
    :param deadline_s: longest time for one read with all its tries.
    :param note: receives one sentence for each repeated read.
    """

    def __init__(
        self,
        command: Command,
        read_timeout_s: float = 60.0,
        deadline_s: float = 600.0,
        note: t.Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._command = command
        self._read_timeout_s = read_timeout_s
        self._deadline_s = deadline_s
        self._note = note

    @property
    def user(self) -> str:
        """Who asks: pvesh is always root."""
        return "root@pam"

    def get(self, path: str, params: Params | None = None) -> t.Any:
        """Return the data of a read; a read that takes too long is repeated within the deadline.

        :raises PveError: if Proxmox refuses it.
        :raises PveTimeout: if no try is answered in time.
        """
        return with_retries(
            lambda: self._answer(self._run("get", path, params or {}, self._read_timeout_s)),
            f"reading {path}",
            self._read_timeout_s,
            self._deadline_s,
            self._note,
        )

    def get_all(self, paths: t.Sequence[tuple[str, Params]]) -> list[t.Any]:
        """Return the data of several reads made side by side, a :class:`PveError` in the place of each refused one."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(paths) or 1) as pool:
            return list(pool.map(lambda item: read_or_error(self, *item), paths))

    def put(self, path: str, params: Params) -> t.Any:
        """Change something at once.

        :raises PveError: if Proxmox answers with an error; the change may have been written.
        """
        return self._answer(self._run("set", path, params, self._read_timeout_s))

    def task(self, verb: str, path: str, params: Params, timeout_s: float) -> str:
        """Start a task and wait for its end as ``pvesh`` does (exit code 0 even if it failed); its state tells how it ended.

        :raises PveError: if the task was not started.
        :raises PveTimeout: if it has no end after ``timeout_s``.
        """
        result = self._run(verb, path, params, timeout_s)
        upid = text.find_upid(result.stdout)
        if not upid:
            self._refuse_failure(result)
            raise PveError(" ".join(result.argv[:3]), f"no task name in the answer: {result.last_error_line}")
        return upid

    def _run(self, verb: str, path: str, params: Params, timeout_s: float) -> CommandResult:
        argv = ["pvesh", verb, path]
        for key, value in params.items():
            argv += [f"--{key}", ("1" if value else "0") if isinstance(value, bool) else str(value)]
        try:
            return self._command.run([*argv, "--output-format", "json"], timeout_s=timeout_s)
        except KproError as error:
            if "no end after" not in error.reason:
                remedy = "This is no node of Proxmox VE, or PATH lacks its programs"
                raise KproError("pvesh", error.reason, remedy) from error
            raise PveTimeout(f"pvesh {verb} {path}", error.reason) from error

    def _answer(self, result: CommandResult) -> t.Any:
        self._refuse_failure(result)
        return json.loads(result.stdout) if result.stdout.strip() else None

    @staticmethod
    def _refuse_failure(result: CommandResult) -> None:
        if result.rc != 0:
            raise PveError(" ".join(result.argv[:3]), text.message_of(result.stderr) or result.last_error_line, rc=result.rc)


def read_or_error(api: PveApi, path: str, params: Params) -> t.Any:
    """Return the data of a read, or the :class:`PveError` that refused it."""
    try:
        return api.get(path, params)
    except PveError as error:
        return error


def with_retries(
    read: t.Callable[[], t.Any],
    what: str,
    read_timeout_s: float,
    deadline_s: float,
    note: t.Callable[[str], None],
) -> t.Any:
    """Repeat a read that got no answer in time, up to five times within a deadline; for reads only.

    :raises PveTimeout: naming both limits, if no try was answered.
    """
    end = time.monotonic() + deadline_s
    for attempt in range(1, READ_TRIES + 1):
        try:
            return read()
        except PveTimeout as error:
            left_s = end - time.monotonic()
            limits = f"no answer within {read_timeout_s:g} s while {what} (deadline of the task is {deadline_s:g} s, {left_s:.0f} s left)"
            if attempt == READ_TRIES or left_s <= 0:
                raise PveTimeout("Proxmox API", limits, "Look at the node's load and at pvedaemon and pmxcfs") from error
            note(f"Proxmox API: {limits}; reading again, attempt {attempt + 1} of {READ_TRIES}")
            time.sleep(min(2.0 ** (attempt - 1), max(left_s, 0.0)))
    raise AssertionError("the loop ends by return or raise")
