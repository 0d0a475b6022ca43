# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to places other than a hub that may hold a model: a folder, an SSH peer, an HTTP mirror.

A source is a store (with the snapshot's folder in it) or the folder of the files itself. What it gives is checked against the
hashes of the commit like everything else.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import stat
import subprocess
import time
import typing as t
import urllib.error
import urllib.request
from urllib.parse import quote, unquote, urlsplit

from .._core.errors import KproError
from .._core.shown_text import one_line
from .._linux.held_folder_edge import open_regular
from .._linux.ssh_client import ssh_argv
from . import manifest as manifests
from .hub_edge import AGENT, LINK_ERRORS, Closed, HubAccess, Interrupted, NotThere, first_bytes, interrupted_by, read_bounded, web_opener
from .hub_protocol import MANIFEST_NAME, RemoteFile
from .manifest import Manifest

_SSH = re.compile(r"ssh://(?:[\w.-]+@)?[\w.:\[\]-]+/.*", re.ASCII)
# Sends the length of the first file that exists, then the bytes that are asked for and no more: what is on its way when a
# connection is closed was sent for nothing.
_SSH_SCRIPT = 'for f in {paths}; do if [ -f "$f" ]; then stat -Lc %s "$f" && tail -c +{first} "$f" {limit}; exit; fi; done; echo none'
_LONGEST_SIZE_LINE = 32
_LONGEST_WORDS = 1 << 16
# Its last words where no further try will help.
_SSH_REFUSALS = ("permission denied", "host key verification failed", "could not resolve hostname", "no matching")


class Stream:
    """Bytes of a file in the form of an HTTP answer."""

    def __init__(
        self, handle: t.IO[bytes], start: int, end: int | None, size_bytes: int, process: subprocess.Popen[bytes] | None = None, stall_s: float = 30.0
    ) -> None:
        self.status = 200 if end is None else 206
        stop = size_bytes if end is None else end
        self.headers = {"Content-Length": str(stop - start), "Content-Range": f"bytes {start}-{stop - 1}/{size_bytes}"}
        self._handle = handle
        self._process = process
        self._stall_s = stall_s

    def readinto(self, buffer: memoryview) -> int:
        if self._process:
            wait_for_bytes(self._handle, self._stall_s)
        return self._handle.readinto(buffer) or 0  # type: ignore[attr-defined]  # binary files have it

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
        self._handle.close()


def wait_for_bytes(handle: t.IO[bytes], stall_s: float) -> None:
    """Return when something can be read from a pipe without a buffer of its own.

    :raises TimeoutError: if nothing comes.
    """
    if not select.select([handle], [], [], stall_s)[0]:
        raise TimeoutError


class Source(t.Protocol):
    """A place that may hold files of a snapshot."""

    def open(self, path: str, start: int, end: int | None) -> t.Any:
        """Begin to read; raises :class:`NotThere` or :class:`Interrupted`."""


def source_of(address: str, folder: str, access: HubAccess) -> Source:
    """Return the source that an address means, for the snapshot's folder name.

    :raises KproError: if it is none of the three forms.
    """
    if address.startswith("/"):
        return FolderSource(address, folder)
    if address.startswith(("http://", "https://")):
        return MirrorSource(address, folder, access)
    if _SSH.fullmatch(address):
        return PeerSource(address, folder, access)
    raise KproError(f"source {address!r}", "it is no absolute path, ssh:// or http(s):// address", "Correct hf_model__sources")


def manifest_of(source: Source, repository: str, commit: str) -> Manifest | None:
    """Return the manifest that a source has of this very commit, or None."""
    try:
        answer = source.open(MANIFEST_NAME, 0, None)
        with contextlib.closing(answer):
            found = manifests.from_text(read_bounded(answer, manifests.LONGEST_MANIFEST_BYTES))
    except Interrupted:
        return None
    return found if found and (found.repository, found.commit) == (repository, commit) else None


def part_of(source: Source, path: str, start: int, end: int) -> bytes:
    """Return the bytes from ``start`` to before ``end`` of a file that a source has; nothing checks them.

    :raises Interrupted: if it does not give them.
    """
    answer = source.open(path, start, end)
    with contextlib.closing(answer):
        if start and answer.status != 206:
            raise Interrupted("it does not serve parts of files")
        return first_bytes(answer, end - start)


class FolderSource:
    """A folder of this machine."""

    def __init__(self, address: str, folder: str) -> None:
        self._roots = (os.path.join(address, folder), address)

    def open(self, path: str, start: int, end: int | None) -> Stream:
        for root in self._roots:
            name = os.path.join(root, path)
            try:
                # Without O_NONBLOCK a FIFO in the place of the file would be waited for.
                handle = open(name, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115  # the stream closes it
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                raise NotThere(f"{name}: {error.strerror}") from error
            status = os.fstat(handle.fileno())
            if not stat.S_ISREG(status.st_mode):
                handle.close()
                raise NotThere(f"{name} is no regular file")
            handle.seek(start)
            return Stream(handle, start, end, status.st_size)
        raise NotThere(f"{self._roots[1]} does not have it")


def _without_waiting(name: str, _flags: int) -> int:
    return open_regular(os.path.abspath(name), own_links=True)


class MirrorSource:
    """Plain files behind an HTTP server."""

    def __init__(self, address: str, folder: str, access: HubAccess) -> None:
        base = address.rstrip("/")
        self._roots = (f"{base}/{quote(folder)}", base)
        self._opener = web_opener(access)
        self._stall_s = access.stall_s

    def open(self, path: str, start: int, end: int | None) -> t.Any:
        headers = {"User-Agent": AGENT, **({} if end is None else {"Range": f"bytes={start}-{end - 1}"})}
        for root in self._roots:
            try:
                return self._opener.open(urllib.request.Request(f"{root}/{quote(path)}", headers=headers), timeout=self._stall_s)
            except Closed as error:
                raise Closed(f"the mirror is not used: {error}") from error
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in (403, 404):
                    raise Interrupted(f"the mirror answered HTTP {error.code}", 0.0, 416 if error.code == 416 else 0) from error
            except LINK_ERRORS as error:
                problem = interrupted_by(error)
                raise Interrupted(f"the mirror does not answer ({problem})", stalled=problem.stalled) from error
        raise NotThere(f"{self._roots[1]} does not have it")


class PeerSource:
    """Another machine over SSH, with the given key and known hosts, or those of this one's root user."""

    def __init__(self, address: str, folder: str, access: HubAccess) -> None:
        base = unquote(urlsplit(address).path).rstrip("/")
        self._roots = (f"{base}/{folder}", base)
        self._stall_s = max(5.0, access.stall_s)
        self._argv = ssh_argv(address, access.ssh_key_file, access.ssh_known_hosts_file, self._stall_s)

    def open(self, path: str, start: int, end: int | None) -> Stream:
        paths = " ".join(shlex.quote(f"{root}/{path}") for root in self._roots)
        limit = "" if end is None else f"| head -c {end - start}"
        script = _SSH_SCRIPT.format(paths=paths, first=start + 1, limit=limit)
        try:
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # a stream of any length, not an answer
                [*self._argv, script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, pipesize=1 << 20
            )
        except OSError as error:
            raise Closed(f"ssh cannot be run ({error.strerror})") from error
        if process.stdout is None or process.stderr is None:
            raise Interrupted("ssh has no output")
        try:
            line = _until_line_end(process.stdout, _LONGEST_SIZE_LINE, self._stall_s)
            words = "" if line else _last_words(process.stderr, self._stall_s)
        except TimeoutError as error:
            _end(process)
            raise Interrupted("ssh: no bytes for too long", stalled=True) from error
        if re.fullmatch(rb"[0-9]{1,19}\n", line):
            process.stderr.close()
            return Stream(process.stdout, start, end, int(line), process, self._stall_s)
        _end(process)
        if line:
            raise NotThere("the peer does not have it")
        refused = any(one in words.lower() for one in _SSH_REFUSALS)
        raise (Closed if refused else Interrupted)(f"ssh: {words or 'the connection ended'}")


def _until_line_end(pipe: t.IO[bytes], most_bytes: int, stall_s: float) -> bytes:
    """Return the first line of a pipe, or what there is of it after ``most_bytes`` or at the pipe's end.

    :raises TimeoutError: if it does not come in time; a byte now and then does not help.
    """
    until, line = time.monotonic() + stall_s, b""
    while not line.endswith(b"\n") and len(line) < most_bytes:
        wait_for_bytes(pipe, max(0.0, until - time.monotonic()))
        if not (byte := pipe.read(1)):
            break
        line += byte
    return line


def _last_words(pipe: t.IO[bytes], stall_s: float) -> str:
    """Return the last line of what a program that ended says; of one that never stops, of the beginning."""
    until, text = time.monotonic() + stall_s, b""
    with contextlib.suppress(TimeoutError):
        while len(text) < _LONGEST_WORDS:
            wait_for_bytes(pipe, max(0.0, until - time.monotonic()))
            if not (block := os.read(pipe.fileno(), _LONGEST_WORDS - len(text))):
                break
            text += block
    return one_line(text.decode("utf-8", "replace").strip().rpartition("\n")[2], 300)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def opener_of(source: Source) -> t.Callable[[RemoteFile, int, int | None], t.Any]:
    """Return a source as one way of a transfer."""
    return lambda file, start, end: source.open(file.path, start, end)


def nowhere(_file: RemoteFile, _start: int, _end: int | None) -> t.Any:
    """The last way of a transfer that is not to ask the hub."""
    raise NotThere("the hub is not asked")
