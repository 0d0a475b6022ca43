# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The protocol of a model hub: addresses, answers, refusals."""

from __future__ import annotations

import dataclasses
import re
import typing as t
from urllib.parse import quote

from .._core.errors import KproError

PUBLIC_ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
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
    if not REPOSITORY.fullmatch(name) or ".." in name:
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

    :raises KproError: if the answer is not one of a hub, or names a path outside the snapshot.
    """
    if not isinstance(answer, list):
        raise _not_a_hub(what)
    found = []
    for row in answer:
        if row.get("type") != "file":
            continue
        path, lfs = row["path"], row.get("lfs") or {}
        if path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise KproError(what, f"the hub lists the path {path!r}, which lies outside the snapshot", "Check the endpoint")
        found.append(RemoteFile(path, int(lfs.get("size", row["size"])), lfs.get("oid", "").removeprefix("sha256:"), row.get("oid", "")))
    return found


def next_page(link: str) -> str:
    """Return the address of the next page from a ``Link`` header, or an empty text."""
    found = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', link)
    return found[1] if found else ""


def retry_after_s(header: str) -> float:
    """Return the seconds of a ``Retry-After`` header (0.0: none, or a date)."""
    return float(header) if re.fullmatch(r"\d{1,6}", header.strip()) else 0.0


def refusal(repository: str, revision: str, status: int, headers: t.Mapping[str, str], *, token_given: bool) -> HubRefusal:
    """Return what a 4xx answer of the hub means for a person; headers by their usual names."""
    code, message = headers.get("X-Error-Code", ""), headers.get("X-Error-Message", "")
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


def _not_a_hub(what: str) -> KproError:
    return KproError(what, "the answer is not one of a model hub", "Check hf_model__endpoint, and whether a proxy answers in its place")
