# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to places other than a hub that may hold a model: a folder, an SSH peer, an HTTP mirror.

A source is a store (with the snapshot's folder in it) or the folder of the files itself. What it gives is checked against the
hashes of the commit like everything else.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import typing as t
import urllib.error
import urllib.request
from urllib.parse import quote, unquote, urlsplit

from .._core.errors import KproError
from .._linux.ssh_client import ssh_argv
from . import manifest as manifests
from .hub_edge import AGENT, LINK_ERRORS, Closed, HubAccess, Interrupted, NotThere, interrupted_by, web_opener
from .hub_protocol import RemoteFile
from .manifest import MANIFEST_NAME, Manifest

_SSH = re.compile(r"ssh://(?:[\w.-]+@)?[\w.:\[\]-]+/.*", re.ASCII)
# Sends the length of the first file that exists, then the bytes that are asked for and no more: what is on its way when a
# connection is closed was sent for nothing.
_SSH_SCRIPT = 'for f in {paths}; do if [ -f "$f" ]; then stat -Lc %s "$f" && tail -c +{first} "$f" {limit}; exit; fi; done; echo none'
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
    except Interrupted:
        return None
    data = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    try:
        while count := answer.readinto(buffer):
            data += buffer[:count]
    except LINK_ERRORS:
        return None
    finally:
        answer.close()
    found = manifests.from_text(data.decode("utf-8", "replace"))
    return found if found and (found.repository, found.commit) == (repository, commit) else None


def part_of(source: Source, path: str, start: int, end: int) -> bytes:
    """Return the bytes from ``start`` to before ``end`` of a file that a source has; nothing checks them.

    :raises Interrupted: if it does not give them.
    """
    answer = source.open(path, start, end)
    data = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    try:
        if start and answer.status != 206:
            raise Interrupted("it does not serve parts of files")
        while len(data) < end - start and (count := answer.readinto(buffer)):
            data += buffer[:count]
    except LINK_ERRORS as error:
        raise interrupted_by(error) from error
    finally:
        answer.close()
    if len(data) < end - start:
        raise Interrupted("it has less of the file")
    return bytes(data[: end - start])


class FolderSource:
    """A folder of this machine."""

    def __init__(self, address: str, folder: str) -> None:
        self._roots = (os.path.join(address, folder), address)

    def open(self, path: str, start: int, end: int | None) -> Stream:
        for root in self._roots:
            name = os.path.join(root, path)
            if os.path.isfile(name):
                try:
                    handle = open(name, "rb", buffering=0)  # noqa: SIM115  # the stream closes it
                except OSError as error:
                    raise NotThere(f"{name}: {error.strerror}") from error
                handle.seek(start)
                return Stream(handle, start, end, os.fstat(handle.fileno()).st_size)
        raise NotThere(f"{self._roots[1]} does not have it")


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
            wait_for_bytes(process.stdout, self._stall_s)
            line = process.stdout.readline()
        except TimeoutError as error:
            _end(process)
            raise Interrupted("ssh: no bytes for too long", stalled=True) from error
        if line.strip().isdigit():
            process.stderr.close()
            return Stream(process.stdout, start, end, int(line), process, self._stall_s)
        words = process.stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2] if not line else ""
        _end(process)
        if line:
            raise NotThere("the peer does not have it")
        refused = any(one in words.lower() for one in _SSH_REFUSALS)
        raise (Closed if refused else Interrupted)(f"ssh: {words or 'the connection ended'}")


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
