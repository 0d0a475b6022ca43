# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to a model hub over HTTP, with the standard library.

A token goes only to the hub's own host, never to the host that a download is redirected to.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import ssl
import typing as t
import urllib.error
import urllib.request
from urllib.parse import urljoin, urlsplit

from .._core.errors import KproError
from . import hub_protocol as protocol
from .hub_protocol import RemoteFile

AGENT = "kpro.llm hf_model"
# What a broken link raises, in all its forms.
LINK_ERRORS = (urllib.error.URLError, http.client.HTTPException, OSError, EOFError)


class Interrupted(Exception):
    """The transfer broke off or was refused for the moment; asking again may help."""

    def __init__(self, reason: str, wait_s: float = 0.0, status: int = 0, *, stalled: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.status = status
        self.stalled = stalled


class NotThere(Interrupted):
    """This way does not lead to the file; another one may."""


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
    """Keeps the token within one origin (a renamed repository), drops it on the way to another."""

    def redirect_request(self, req: t.Any, fp: t.Any, code: int, msg: str, headers: t.Any, newurl: str) -> t.Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is None:
            return None
        if req.get_header("Range"):
            new.add_unredirected_header("Range", req.get_header("Range"))
        old_parts, new_parts = urlsplit(req.full_url), urlsplit(newurl)
        if (old_parts.scheme, old_parts.netloc) == (new_parts.scheme, new_parts.netloc) and req.get_header("Authorization"):
            new.add_unredirected_header("Authorization", req.get_header("Authorization"))
        return new


def web_opener(access: HubAccess) -> urllib.request.OpenerDirector:
    """Return an opener with the proxies and certificates of ``access``."""
    context = ssl.create_default_context(cafile=access.ca_bundle or None)
    return urllib.request.build_opener(urllib.request.ProxyHandler(dict(access.proxies)), urllib.request.HTTPSHandler(context=context), _Redirects())


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
        while url:
            answer, headers = self._json(url, commit)
            found += protocol.files_of(answer, self._what)
            link = protocol.next_page(headers.get("Link", ""))
            url = urljoin(url, link) if link else ""
        return found

    def open(self, commit: str, path: str, start: int, end: int | None) -> http.client.HTTPResponse:
        """Begin to read bytes ``start`` to ``end`` (exclusive; None: no range asked) of a file; raises as :meth:`commit`."""
        url = protocol.file_url(self._access.endpoint, self.repository, commit, path)
        headers = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        return self._open(url, commit, headers)

    def read(self, commit: str, path: str, start: int, end: int) -> bytes:
        """Return a small part of a file; raises as :meth:`commit`."""
        with self.open(commit, path, start, end) as response:
            try:
                data = response.read(end - start)
            except LINK_ERRORS as error:
                raise interrupted_by(error) from error
        if response.status == 200 and start:
            raise KproError(self._what, "the hub does not serve parts of files", "Check whether a proxy removes the Range header")
        return data

    @property
    def _what(self) -> str:
        return f"hub {self._access.endpoint}"

    def _json(self, url: str, revision: str) -> tuple[t.Any, t.Mapping[str, str]]:
        with self._open(url, revision, {"Accept": "application/json"}) as response:
            try:
                return json.loads(response.read()), _looked_up_in_any_case(response.headers)
            except ValueError as error:
                raise KproError(self._what, "the answer is not JSON", "Check hf_model__endpoint, and whether a proxy answers in its place") from error
            except LINK_ERRORS as error:
                raise interrupted_by(error) from error

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
    """A message is a mapping but in name; as a plain dict it would lose that ``ETag`` and ``etag`` are the same."""
    return t.cast(t.Mapping[str, str], headers)


def interrupted_by(error: BaseException) -> Interrupted:
    """Return what an error of the link means for a transfer."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, TimeoutError):
        return Interrupted("no bytes for too long", stalled=True)
    return Interrupted(getattr(reason, "strerror", None) or str(reason) or type(reason).__name__)
