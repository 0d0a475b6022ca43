# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the Proxmox API: what the core needs of it, and the way through ``pvesh`` on the node."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import time
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command, CommandResult
from . import answers as text
from .call_record import Record, work_of
from .calls_edge import Calls

# Values are text, numbers or booleans.
Params = t.Mapping[str, t.Any]
READ_TRIES = 5
SIGNALLED = frozenset({129, 130, 131, 134, 137, 139, 141, 143})  # a shell's exit codes of a program that a signal ended
# A task that lasts longer than this is looked up, so that its name is in the record whatever becomes of its caller.
NAME_AFTER_S, NAME_EVERY_S = 2.0, 5.0


class PveError(KproError):
    """Proxmox refused a call; ``reason`` is its own text.

    Any refused write may have been written all the same (a missing ``dev[n]`` node, a lock timeout): read again before deciding.
    """


class PveTimeout(KproError):
    """Proxmox did not answer in time. A read was given up; a change or a task goes on, and its outcome is not known yet."""


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

    def task(self, verb: str, path: str, params: Params, timeout_s: float, details: Params | None = None) -> str:
        """Start a task by ``create``, ``set`` or ``delete`` and return its UPID, whether or not it has ended.

        :param details: what a later run has to know of it, for its record on the node.
        """


def good(answer: t.Any) -> t.Any:
    """Return one of the answers of :meth:`PveApi.get_all`.

    :raises PveError: if the read was refused.
    """
    if isinstance(answer, PveError):
        raise answer
    return answer


class Pvesh:
    """The API through ``pvesh`` on a node, as root: complete (also what is root@pam only), about a second for each call.

    :param calls: makes the calls that change something, so that nothing ends them; the default keeps its records on the node.
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
        calls: Calls | None = None,
    ) -> None:
        self._command = command
        self.calls = calls or Calls(command)
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
        :raises PveTimeout: if there is no answer in time; the call goes on.
        """
        return self._answer(self._lasting("set", path, params, self._read_timeout_s, {}))

    def task(self, verb: str, path: str, params: Params, timeout_s: float, details: Params | None = None) -> str:
        """Start a task and wait for its end as ``pvesh`` does (exit code 0 even if it failed); its state tells how it ended.

        The same work that runs already is waited for instead.

        :raises PveError: if the task was not started, or was cut off before it had a name.
        :raises PveTimeout: if it has no end after ``timeout_s``; it goes on.
        """
        result = self._lasting(verb, path, params, timeout_s, details or {})
        upid = text.find_upid(result.stdout)
        if not upid:
            self._refuse_failure(result)
            raise PveError(" ".join(result.argv[:3]), f"no task name in the answer: {result.last_error_line}")
        return upid

    def _lasting(self, verb: str, path: str, params: Params, timeout_s: float, details: Params) -> CommandResult:
        """Make a call that is never killed."""
        work = work_of(verb, path, params)
        argv = _argv(verb, path, params)
        work = dataclasses.replace(work, details={**work.details, **details})
        try:
            started = self.calls.start(work, argv)
            # Another change of the same configuration is not this one; the same task of another run is.
            if not started and work.kind == "set":
                started = self.calls.wait(work.name, timeout_s) and self.calls.start(work, argv)
        except KproError as error:
            raise _no_pvesh(error) from error
        if not started and work.kind == "set":
            raise PveTimeout(f"pvesh {verb} {path}", f"another change of it has no end after {timeout_s:g} s", "Run again")
        if not self._ended(work, timeout_s):
            remedy = "It goes on; run again to see how it ended"
            raise PveTimeout(f"pvesh {verb} {path}", f"no end after {timeout_s:g} s", remedy, upid=self._upid(work.name))
        result = self.calls.answer(work.name, argv)
        if result is None or (result.rc in SIGNALLED and not text.find_upid(result.stdout)):
            upid = self._upid(work.name)
            if upid:
                return CommandResult(tuple(argv), 0, upid, "")
            raise PveError(f"pvesh {verb} {path}", "it was ended before it answered (killed, or the node was restarted)", "Run again")
        return result

    def _ended(self, work: Record, timeout_s: float) -> bool:
        """Wait for the end of a call, and write down the name of its task once it is known."""
        end = time.monotonic() + timeout_s
        pause_s = NAME_AFTER_S
        while not self.calls.wait(work.name, min(pause_s, max(end - time.monotonic(), 0.0))):
            if work.kind != "set" and not self._upid(work.name):
                self._name_task(work)
            if time.monotonic() >= end:
                return False
            pause_s = NAME_EVERY_S
        return True

    def _name_task(self, work: Record) -> None:
        record = self.calls.record(work.name)
        if record is None:
            return
        about = {"vmid": work.vmid} if work.vmid else {"typefilter": work.kind}
        with contextlib.suppress(KproError, ValueError):
            rows = self._answer(self._run("get", f"/nodes/{work.node}/tasks", {"source": "active", **about}, self._read_timeout_s)) or []
            found = [str(row.get("upid", "")) for row in rows if not row.get("endtime") and int(row.get("starttime") or 0) >= int(record.began_s) - 1]
            if len(found) == 1:
                self.calls.note(dataclasses.replace(record, upid=found[0]))

    def _upid(self, name: str) -> str:
        record = self.calls.record(name)
        return record.upid if record else ""

    def _run(self, verb: str, path: str, params: Params, timeout_s: float) -> CommandResult:
        try:
            return self._command.run(_argv(verb, path, params), timeout_s=timeout_s)
        except KproError as error:
            if "no end after" not in error.reason:
                raise _no_pvesh(error) from error
            raise PveTimeout(f"pvesh {verb} {path}", error.reason) from error

    def _answer(self, result: CommandResult) -> t.Any:
        self._refuse_failure(result)
        return json.loads(result.stdout) if result.stdout.strip() else None

    @staticmethod
    def _refuse_failure(result: CommandResult) -> None:
        if result.rc != 0:
            reason = text.message_of(result.stderr) or result.last_error_line
            cause, remedy = text.condition_of(reason)
            raise PveError(" ".join(result.argv[:3]), cause or reason, remedy, rc=result.rc)


def _argv(verb: str, path: str, params: Params) -> list[str]:
    argv = ["pvesh", verb, path]
    for key, value in params.items():
        argv += [f"--{key}", ("1" if value else "0") if isinstance(value, bool) else str(value)]
    return [*argv, "--output-format", "json"]


def _no_pvesh(error: KproError) -> KproError:
    return KproError("pvesh", error.reason, "This is no node of Proxmox VE, or PATH lacks its programs")


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
        except PveTimeout:
            left_s = end - time.monotonic()
            limits = f"no answer within {read_timeout_s:g} s while {what} (deadline of the task is {deadline_s:g} s, {left_s:.0f} s left)"
            if attempt == READ_TRIES or left_s <= 0:
                raise PveTimeout("Proxmox API", limits, "Look at the node's load and at pvedaemon and pmxcfs") from None
            note(f"Proxmox API: {limits}; reading again, attempt {attempt + 1} of {READ_TRIES}")
            time.sleep(min(2.0 ** (attempt - 1), max(left_s, 0.0)))
    raise AssertionError("the loop ends by return or raise")
