# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The protocol of a model hub: addresses, answers, refusals.

What a hub, a mirror or a manifest says is data of a stranger. It becomes a :class:`RemoteFile` here and nowhere else, and a
RemoteFile can be used as a path and a key without another look.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t
import unicodedata
from urllib.parse import quote, urljoin, urlsplit

from .._core.errors import KproError
from .._core.shown_text import hides, one_line
from .._core.untrusted_json import BadJson, count_of

PUBLIC_ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}")
# The file in which the store notes what a snapshot holds: no file of a repository may have that name.
MANIFEST_NAME = ".kpro-manifest.json"
# Bounds of a listing. The largest repositories of models have some thousand files and some TB.
MOST_FILES = 10_000
MOST_ROWS = 50_000
MOST_PAGES = 200
LARGEST_FILE_BYTES = 1 << 42
LARGEST_REPOSITORY_BYTES = 1 << 46
LONGEST_ANSWER_BYTES = 8 << 20
LONGEST_PATH_BYTES = 1024
# Files on the way have longer names than these, and a name may have 255 bytes.
LONGEST_NAME_BYTES = 200
LONGEST_WAIT_S = 300.0
# Answers after which the same question may succeed a moment later.
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """One file of a revision as the hub lists it.

    :param sha256: of the content, for files in LFS; empty for others.
    :param git_sha1: id of the git blob; checks the content of files that are not in LFS.
    """

    path: str
    size_bytes: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def key(self) -> str:
        """The name of the content: what the hub gives as ETag."""
        return self.sha256 or self.git_sha1


class HubRefusal(KproError):
    """The hub answered, and asking again the same way will not help; ``kind`` is for programs."""

    def __init__(self, kind: str, what: str, reason: str, remedy: str, **details: t.Any) -> None:
        super().__init__(what, reason, remedy, kind=kind, **details)
        self.kind = kind


def check_repository(name: str) -> str:
    """Return the name.

    :raises KproError: if it is not ORG/NAME.
    """
    if not isinstance(name, str) or not REPOSITORY.fullmatch(name) or ".." in name:
        raise KproError(f"repository {name!r}", "it does not have the form ORG/NAME", "Give it as the hub shows it, for example Qwen/Qwen3.6-27B")
    return name


def revision_url(endpoint: str, repository: str, revision: str) -> str:
    return f"{endpoint.rstrip('/')}/api/models/{repository}/revision/{quote(revision, safe='')}"


def tree_url(endpoint: str, repository: str, commit: str) -> str:
    return f"{endpoint.rstrip('/')}/api/models/{repository}/tree/{commit}?recursive=true&expand=false"


def file_url(endpoint: str, repository: str, commit: str, path: str) -> str:
    return f"{endpoint.rstrip('/')}/{repository}/resolve/{commit}/{quote(path)}"


def commit_of(answer: t.Any, what: str) -> str:
    """Return the commit named in the answer to :func:`revision_url`.

    :raises KproError: if the answer is not one of a hub.
    """
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise _not_a_hub(what)
    return commit


def files_of(answer: t.Any, what: str) -> list[RemoteFile]:
    """Return the files in one page of the answer to :func:`tree_url`.

    :raises KproError: if the answer is not one of a hub, or a row can't be that of a file of a snapshot.
    """
    if not isinstance(answer, list) or len(answer) > MOST_ROWS or not all(isinstance(row, dict) for row in answer):
        raise _not_a_hub(what)
    return [_file_of(row, what) for row in answer if row.get("type") == "file"]


def remote_file(path: t.Any, size_bytes: t.Any, sha256: t.Any, git_sha1: t.Any, what: str) -> RemoteFile:
    """Return a file by what a stranger says of it.

    :raises KproError: if name, size or hash can't be those of a file of a snapshot.
    """
    if problem := path_problem(path):
        raise KproError(what, f"it lists the path {_quoted(path)}, which {problem}", _ELSEWHERE)
    try:
        size_bytes = count_of(size_bytes, LARGEST_FILE_BYTES)
    except BadJson as error:
        raise KproError(what, f"its size of {path} can't be one ({error})", _ELSEWHERE) from error
    right = sha256 == "" or _matches(SHA256, sha256)
    if not right or not (git_sha1 == "" or _matches(COMMIT, git_sha1)) or not (sha256 or git_sha1):
        raise KproError(what, f"its hash of {path} can't be one ({_quoted(sha256 or git_sha1)})", _ELSEWHERE)
    return RemoteFile(path, size_bytes, sha256, git_sha1)


def path_problem(path: t.Any) -> str:
    """Return why a text can't be the path of a file in a snapshot, an empty text if it can."""
    if not isinstance(path, str) or not path:
        return "is no text"
    if path.startswith("/") or "\0" in path or ".." in path.split("/"):
        return "lies outside the snapshot"
    if hides(path):
        return "holds characters that can't be seen"
    if "\\" in path or not all(path.split("/")) or "." in path.split("/"):
        return "is no plain path"
    if len(path.encode()) > LONGEST_PATH_BYTES or any(len(part.encode()) > LONGEST_NAME_BYTES for part in path.split("/")):
        return "is too long"
    if path.split("/")[0].startswith(MANIFEST_NAME):
        return "is a name of the store's own"
    return ""


def checked_listing(files: t.Iterable[RemoteFile], what: str) -> list[RemoteFile]:
    """Return the files of a commit, each once.

    :raises KproError: if they can't lie beside each other in one folder, or are too many.
    """
    found: dict[str, RemoteFile] = {}
    folders: set[str] = set()
    normal: dict[str, str] = {}
    for file in files:
        if found.setdefault(file.path, file) != file:
            raise KproError(what, f"it lists {file.path} twice, with different contents", _ELSEWHERE)
        if (other := normal.setdefault(unicodedata.normalize("NFC", file.path), file.path)) != file.path:
            raise KproError(what, f"it lists two files whose names look the same ({_quoted(other)}): only their Unicode form differs", _ELSEWHERE)
        parts = file.path.split("/")
        folders.update("/".join(parts[:length]) for length in range(1, len(parts)))
    if both := sorted(folders & found.keys()):
        raise KproError(what, f"it lists {both[0]} both as a file and as a folder", _ELSEWHERE)
    if len(found) > MOST_FILES:
        raise KproError(what, f"it lists more than {MOST_FILES} files", _ELSEWHERE)
    if sum(file.size_bytes for file in found.values()) > LARGEST_REPOSITORY_BYTES:
        raise KproError(what, f"its files are said to be larger than {LARGEST_REPOSITORY_BYTES >> 40} TiB together", _ELSEWHERE)
    return list(found.values())


def same_but_for_case(files: t.Iterable[RemoteFile]) -> tuple[str, str] | None:
    """Return two paths that are one on a file system that does not tell capital letters apart."""
    seen: dict[str, str] = {}
    for file in files:
        if (other := seen.setdefault(file.path.casefold(), file.path)) != file.path:
            return other, file.path
    return None


def next_page(link: str) -> str:
    """Return the address of the next page from a ``Link`` header, or an empty text."""
    for address, parameters in re.findall(r"<([^<>]{1,4096})>([^<]*)", link[:8192]):
        relation = re.search(r'[;\s]rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))', parameters, re.IGNORECASE)
        if relation and "next" in (relation[1] or relation[2] or "").lower().split():
            return address
    return ""


def next_url(url: str, link: str, what: str) -> str:
    """Return the address of the page after ``url``, an empty text if it was the last one.

    :raises KproError: if the list goes on at another host: a token must not follow it there.
    """
    address = next_page(link)
    if not address:
        return ""
    try:
        following = urljoin(url, address)
        apart = origin(following) != origin(url)
    except ValueError:
        following, apart = address, True
    if apart or hides(following) or " " in following:
        raise KproError(what, f"its list of files goes on at another place ({_quoted(following)})", "Set hf_model__endpoint to the hub itself")
    return following


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address.

    :raises ValueError: if it has none.
    """
    parts = urlsplit(url)
    if parts.username is not None or not parts.hostname:
        raise ValueError("no plain address")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)


def retry_after_s(header: str) -> float:
    """Return the seconds of a ``Retry-After`` header, within bounds (0.0: none, or a date)."""
    return min(float(header), LONGEST_WAIT_S) if re.fullmatch(r"[0-9]{1,6}", header.strip()) else 0.0


def refusal(repository: str, revision: str, status: int, headers: t.Mapping[str, str], *, token_given: bool) -> HubRefusal:
    """Return what a 4xx answer of the hub means for a person; headers by their usual names."""
    code, message = headers.get("X-Error-Code", ""), one_line(headers.get("X-Error-Message", ""), 200)
    what = f"model {repository}"
    if code == "GatedRepo":
        who = "the token's owner has not been granted access" if token_given else "no token was given"
        return HubRefusal("gated", what, f"it is gated and {who} (HTTP {status})", "Accept its conditions on the hub's page and set hf_model__token")
    if "credentials" in message.lower():
        return HubRefusal("bad_token", what, f"the hub does not accept the token (HTTP {status})", "Set a valid hf_model__token, or none for a public model")
    if code == "RevisionNotFound":
        return HubRefusal("missing_revision", what, f"it has no revision {revision} (HTTP {status})", "Set hf_model__revision to a branch or a full commit id")
    if code == "EntryNotFound":
        return HubRefusal("missing_file", what, f"revision {revision} lacks a file that the hub lists (HTTP {status})", "Try another revision")
    if code == "RepoNotFound" or status in (401, 404):
        private = "" if token_given else "; a private one needs hf_model__token"
        return HubRefusal("missing_repository", what, f"the hub knows no such repository (HTTP {status})", f"Check hf_model__repository{private}")
    return HubRefusal("refused", what, f"the hub answered HTTP {status} {message}".rstrip(), "Check endpoint, proxy and token")


_ELSEWHERE = "Nothing was fetched. Check hf_model__endpoint and hf_model__sources, or choose another repository"


def _file_of(row: t.Mapping[str, t.Any], what: str) -> RemoteFile:
    lfs = row.get("lfs")
    if lfs is None:
        return remote_file(row.get("path"), row.get("size"), "", row.get("oid"), what)
    if not isinstance(lfs, dict):
        raise _not_a_hub(what)
    oid = lfs.get("oid")
    sha256 = oid.removeprefix("sha256:") if isinstance(oid, str) else oid
    if not _matches(SHA256, sha256):
        raise KproError(what, f"its hash of {_quoted(row.get('path'))} can't be one ({_quoted(sha256)})", _ELSEWHERE)
    return remote_file(row.get("path"), lfs.get("size", row.get("size")), sha256, row.get("oid", ""), what)


def _matches(form: re.Pattern[str], value: t.Any) -> bool:
    return isinstance(value, str) and bool(form.fullmatch(value))


def _quoted(value: t.Any) -> str:
    return f"'{one_line(value, 100)}'" if isinstance(value, str) else f"a {type(value).__name__}"


def _not_a_hub(what: str) -> KproError:
    return KproError(what, "the answer is not one of a model hub", "Check hf_model__endpoint, and whether a proxy answers in its place")
