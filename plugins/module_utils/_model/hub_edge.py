# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to a model hub over HTTP, with the standard library.

A token goes only to the hub's own host, never to the host that a download is redirected to. No answer is awaited without an
end: its head has a time limit, its body is read up to a length and a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
import typing as t
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from .._core.errors import KproError
from .._core.shown_text import one_line
from .._core.untrusted_json import BadJson, parsed
from . import hub_protocol as protocol
from .hub_protocol import RemoteFile

AGENT = "kpro.llm hf_model"
# All exceptions of a broken link; a ValueError is a malformed address or number from the server.
LINK_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError, EOFError, ValueError)
# A connection may be silent for a while; but a server that sends a byte now and then would never be silent.
LONGEST_HEAD_S = 60.0
LONGEST_BODY_S = 180.0
LONGEST_LISTING_S = 600.0
BLOCK_BYTES = 1 << 16


class Interrupted(Exception):
    """The transfer broke off or was refused for the moment; asking again may help."""

    def __init__(self, reason: str, wait_s: float = 0.0, status: int = 0, *, stalled: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.status = status
        self.stalled = stalled


class NotThere(Interrupted):
    """This way does not lead to the file; another one may."""


class Crawling(Interrupted):
    """Bytes come, but so few that the file would never be whole."""


class Closed(Interrupted):
    """This way is closed until a person opens it: a login is refused, a host key is not known."""


@dataclasses.dataclass(frozen=True)
class HubAccess:
    """How to reach the hub, and the peers that are asked before it.

    :param proxies: as of :func:`urllib.request.getproxies`.
    :param stall_s: seconds without a byte after which a connection is given up.
    :param ssh_key_file: private key for peers; empty: those of root.
    :param ssh_known_hosts_file: host keys of peers; empty: those that root knows.
    """

    endpoint: str
    token: str = dataclasses.field(default="", repr=False)
    ca_bundle: str = ""
    proxies: t.Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    stall_s: float = 30.0
    ssh_key_file: str = ""
    ssh_known_hosts_file: str = ""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Keeps the token within one origin (a renamed repository), drops it on the way to another.

    No redirect leads to another protocol, from https to http, or from the network to a service of this machine.
    """

    def http_error_302(self, req: t.Any, fp: t.Any, code: int, msg: str, headers: t.Any) -> t.Any:
        # The standard library would read the redirect's own body to its end, which may never come.
        return super().http_error_302(req, t.cast("t.IO[bytes]", _Unread(fp)), code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: t.Any, fp: t.Any, code: int, msg: str, headers: t.Any, newurl: str) -> t.Any:
        if problem := _astray(req.full_url, newurl):
            raise Closed(f"the server at {urlsplit(req.full_url).netloc} leads to {problem}")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is None:
            return None
        if req.get_header("Range"):
            new.add_unredirected_header("Range", req.get_header("Range"))
        old_parts, new_parts = urlsplit(req.full_url), urlsplit(newurl)
        if (old_parts.scheme, old_parts.netloc) == (new_parts.scheme, new_parts.netloc) and req.get_header("Authorization"):
            new.add_unredirected_header("Authorization", req.get_header("Authorization"))
        return new


class _Unread:
    """An answer whose body nobody wants."""

    def __init__(self, answer: t.Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._answer, name)

    def read(self, _count: int = -1) -> bytes:
        return b""


def _astray(old: str, new: str) -> str:
    """Return what is wrong with the address that a server sends us to; empty if nothing is."""
    try:
        (old_scheme, old_host, _port), (scheme, host, _other) = protocol.origin(old), protocol.origin(new)
    except ValueError:
        return f"an address that is none ({one_line(new, 100)})"
    if scheme not in ("http", "https"):
        return f"another protocol ({one_line(new, 100)})"
    if (old_scheme, scheme) == ("https", "http"):
        return f"an address without encryption ({one_line(new, 100)})"
    return f"a service of this machine ({one_line(new, 100)})" if _own(host) and not _own(old_host) else ""


def _own(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_link_local or address.is_unspecified


class _Bounded:
    """A connection whose head (of the answer, and of a proxy's) does not take longer than a limit."""

    sock: t.Any

    def connect(self) -> None:
        # The time to connect is bounded by the timeout of the socket; a proxy's answer is read in here.
        self._within(super().connect)  # type: ignore[misc]  # of the connection that this is mixed into

    def getresponse(self) -> t.Any:
        # The connection forgets its socket, the answer goes on to read from it.
        sock = self.sock
        answer = self._within(super().getresponse)  # type: ignore[misc]
        answer.cut = lambda: _cut(sock)
        return answer

    def _within(self, work: t.Callable[[], t.Any]) -> t.Any:
        with _time_limit(LONGEST_HEAD_S, lambda: _cut(self.sock)):
            return work()


def _cut(sock: t.Any) -> None:
    """End a connection under a thread that waits for it."""
    with contextlib.suppress(OSError, AttributeError):
        sock.shutdown(socket.SHUT_RDWR)


def cut_off(answer: t.Any) -> None:
    """End the connection of an answer that another thread reads; that thread sees the end of the body."""
    getattr(answer, "cut", lambda: None)()


@contextlib.contextmanager
def _time_limit(limit_s: float, end: t.Callable[[], None]) -> t.Iterator[None]:
    """Call ``end`` if the work takes longer.

    :raises TimeoutError: if it did: what a connection gives after it was ended looks like the end of an answer.
    """
    late = threading.Event()

    def act() -> None:
        late.set()
        end()

    guard = threading.Timer(limit_s, act)
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()
        if late.is_set():
            raise TimeoutError


class _HttpConnection(_Bounded, http.client.HTTPConnection):
    pass


class _HttpsConnection(_Bounded, http.client.HTTPSConnection):
    pass


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: t.Any) -> t.Any:
        return self.do_open(_HttpConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._own_context = context

    def https_open(self, req: t.Any) -> t.Any:
        return self.do_open(_HttpsConnection, req, context=self._own_context)


def web_opener(access: HubAccess) -> urllib.request.OpenerDirector:
    """Return an opener with the proxies and certificates of ``access``; it knows http and https only."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(dict(access.proxies)),
        urllib.request.UnknownHandler(),
        _HttpHandler(),
        _HttpsHandler(ssl.create_default_context(cafile=access.ca_bundle or None)),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def read_block(answer: t.Any, buffer: memoryview) -> int:
    """Read what has arrived of an answer's body, without waiting until the buffer is full; 0 at its end."""
    if not hasattr(answer, "read1"):
        return int(answer.readinto(buffer))
    data = answer.read1(len(buffer))
    buffer[: len(data)] = data
    return len(data)


def read_bounded(answer: t.Any, longest_bytes: int) -> bytes:
    """Return the whole body of an answer.

    :raises Interrupted: if it breaks off, or is longer or slower than it may be.
    """
    data = _read(answer, longest_bytes + 1)
    if len(data) > longest_bytes:
        raise Closed(f"the answer is longer than {longest_bytes} bytes")
    declared = declared_bytes(answer.headers)
    if declared is not None and len(data) < declared:
        raise Interrupted("the connection was cut")
    return data


def first_bytes(answer: t.Any, count: int) -> bytes:
    """Return the first bytes of an answer's body, however long that is.

    :raises Interrupted: if it has fewer, or they are too slow.
    """
    data = _read(answer, count)
    if len(data) < count:
        raise Interrupted("it has less of the file")
    return data


def _read(answer: t.Any, most_bytes: int) -> bytes:
    longest_s = LONGEST_BODY_S
    until, data, buffer = time.monotonic() + longest_s, bytearray(), memoryview(bytearray(BLOCK_BYTES))
    try:
        with _time_limit(longest_s, lambda: cut_off(answer)):
            while len(data) < most_bytes and (count := read_block(answer, buffer[: min(BLOCK_BYTES, most_bytes - len(data))])):
                data += buffer[:count]
                if time.monotonic() > until:
                    raise TimeoutError
    except TimeoutError as error:
        raise Interrupted("the answer is too slow", stalled=True) from error
    except LINK_ERRORS as error:
        raise interrupted_by(error) from error
    return bytes(data)


def declared_bytes(headers: t.Any) -> int | None:
    """Return the length that an answer says it has; None if it says none, or no number."""
    text = headers.get("Content-Length") or ""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None


class Hub:
    """Asks one hub about one repository, and reads its files."""

    def __init__(self, access: HubAccess, repository: str) -> None:
        self._access = access
        self.repository = repository
        self._opener = web_opener(access)

    def commit(self, revision: str) -> str:
        """Return the commit id of a branch, tag or commit.

        :raises KproError: if the hub refuses (see :func:`_hub_protocol.refusal`).
        :raises Interrupted: if it cannot be reached or is out of order.
        """
        answer, _headers = self._json(protocol.revision_url(self._access.endpoint, self.repository, revision), revision)
        return protocol.commit_of(answer, self._what)

    def files(self, commit: str) -> list[RemoteFile]:
        """Return all files of a commit, page by page; raises as :meth:`commit`."""
        url = protocol.tree_url(self._access.endpoint, self.repository, commit)
        found: list[RemoteFile] = []
        read: set[str] = set()
        until = time.monotonic() + LONGEST_LISTING_S
        while url:
            if url in read or len(read) >= protocol.MOST_PAGES or time.monotonic() > until:
                reason = "comes back to a page that was read" if url in read else f"has no end after {len(read)} pages"
                raise KproError(self._what, f"its list of files {reason}", "Use another endpoint or another repository")
            read.add(url)
            answer, headers = self._json(url, commit)
            found += protocol.files_of(answer, self._what)
            if len(found) > protocol.MOST_FILES:
                raise KproError(self._what, f"it lists more than {protocol.MOST_FILES} files", "Use another endpoint or another repository")
            url = protocol.next_url(url, headers.get("Link", ""), self._what)
        return protocol.checked_listing(found, self._what)

    def open(self, commit: str, path: str, start: int, end: int | None) -> http.client.HTTPResponse:
        """Begin to read bytes ``start`` to ``end`` (exclusive; None: no range asked) of a file; raises as :meth:`commit`."""
        url = protocol.file_url(self._access.endpoint, self.repository, commit, path)
        headers = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        return self._open(url, commit, headers)

    def read(self, commit: str, path: str, start: int, end: int) -> bytes:
        """Return a small part of a file; raises as :meth:`commit`."""
        with self.open(commit, path, start, end) as response:
            if response.status == 200 and start:
                raise KproError(self._what, "the hub does not serve parts of files", "Check whether a proxy removes the Range header")
            return first_bytes(response, end - start)

    @property
    def _what(self) -> str:
        return f"hub {self._access.endpoint}"

    def _json(self, url: str, revision: str) -> tuple[t.Any, t.Mapping[str, str]]:
        with self._open(url, revision, {"Accept": "application/json"}) as response:
            text = read_bounded(response, protocol.LONGEST_ANSWER_BYTES)
            try:
                return parsed(text, protocol.LONGEST_ANSWER_BYTES), _looked_up_in_any_case(response.headers)
            except BadJson as error:
                words = "the answer is not JSON" if "no JSON" in str(error) else f"the answer can't be used: {error}"
                raise KproError(self._what, words, "Check hf_model__endpoint, and whether a proxy answers in its place") from error

    def _open(self, url: str, revision: str, headers: t.Mapping[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers={"User-Agent": AGENT, "Accept-Encoding": "identity"})
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        if self._access.token:
            request.add_unredirected_header("Authorization", f"Bearer {self._access.token}")
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=self._access.stall_s)
        except urllib.error.HTTPError as error:
            raise self._problem(url, error, revision) from error
        except Closed as error:
            raise KproError(self._what, str(error), "Set hf_model__endpoint to the hub itself") from error
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(error) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise self._untrusted(error.reason) from error
            raise interrupted_by(error) from error
        except LINK_ERRORS as error:
            raise interrupted_by(error) from error
        return response

    def _problem(self, url: str, error: urllib.error.HTTPError, revision: str) -> Exception:
        with error:
            status, headers = error.code, _looked_up_in_any_case(error.headers)
            away = urlsplit(error.url or url).netloc != urlsplit(url).netloc
        wait_s = protocol.retry_after_s(headers.get("Retry-After", ""))
        # The address behind a redirect lives for minutes only: a 403 from there asks for a fresh one.
        if status in protocol.TRANSIENT_STATUS or status == 416 or (away and status in (401, 403, 404, 410)):
            return Interrupted(f"HTTP {status}", wait_s, status)
        return protocol.refusal(self.repository, revision, status, headers, token_given=bool(self._access.token))

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> KproError:
        return KproError(
            self._what, f"its certificate is not trusted ({error.verify_message})", "Give the authority's file as hf_model__ca_bundle, or install it there"
        )


def _looked_up_in_any_case(headers: t.Any) -> t.Mapping[str, str]:
    """Return the headers as a mapping. Not a dict: header names ignore case."""
    return t.cast(t.Mapping[str, str], headers)


def interrupted_by(error: BaseException) -> Interrupted:
    """Return what an error of the link means for a transfer."""
    if isinstance(error, Interrupted):
        return error
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, TimeoutError):
        return Interrupted("no bytes for too long", stalled=True)
    return Interrupted(one_line(getattr(reason, "strerror", None) or str(reason) or type(reason).__name__, 200))
