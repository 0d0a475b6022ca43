# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._model import hub_protocol as hub

ROW = {"type": "file", "path": "a/b.json", "size": 12, "oid": "0" * 40}


def test_addresses_keep_slashes_of_paths_and_quote_those_of_branches() -> None:
    assert hub.revision_url("http://hub/", "o/m", "refs/pr/1") == "http://hub/api/models/o/m/revision/refs%2Fpr%2F1"
    assert hub.file_url("http://hub", "o/m", "c0ffee", "a b/c#d.json") == "http://hub/o/m/resolve/c0ffee/a%20b/c%23d.json"


def test_a_file_in_lfs_has_the_hash_and_size_of_its_content_not_of_its_pointer() -> None:
    row = {**ROW, "size": 134, "lfs": {"oid": "sha256:" + "a" * 64, "size": 5_000_000_000, "pointerSize": 134}}
    folder = {"type": "directory", "path": "a", "size": 0, "oid": "1" * 40}
    assert hub.files_of([folder, row, ROW], "hub") == [
        hub.RemoteFile("a/b.json", 5_000_000_000, "a" * 64, "0" * 40),
        hub.RemoteFile("a/b.json", 12, "", "0" * 40),
    ]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a/..", "x\0y"])
def test_a_path_outside_the_snapshot_is_refused(path: str) -> None:
    with pytest.raises(KproError, match="lies outside the snapshot"):
        hub.files_of([{**ROW, "path": path}], "hub")


@pytest.mark.parametrize("name", ["model", "a/b/c", "../b", "a/..", "a b/c", "-a/b", ""])
def test_a_name_that_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(KproError, match="does not have the form ORG/NAME"):
        hub.check_repository(name)


@pytest.mark.parametrize("answer", [[], {}, {"sha": "main"}, {"sha": None}, "x"])
def test_an_answer_without_a_commit_is_not_one_of_a_hub(answer: t.Any) -> None:
    with pytest.raises(KproError, match="not one of a model hub"):
        hub.commit_of(answer, "hub")


@pytest.mark.parametrize(
    ("header", "url"),
    [('<http://h/x?cursor=b>; rel="next"', "http://h/x?cursor=b"), ('<http://h/a>; rel="prev", <http://h/b>; rel=next', "http://h/b"), ("", "")],
)
def test_the_next_page_is_read_from_the_link_header(header: str, url: str) -> None:
    assert hub.next_page(header) == url


@pytest.mark.parametrize(
    ("status", "headers", "token", "kind", "words"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, False, "gated", "no token was given"),
        (403, {"X-Error-Code": "GatedRepo"}, True, "gated", "has not been granted access"),
        (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."}, False, "missing_repository", "needs hf_model__token"),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, True, "bad_token", "does not accept the token"),
        (404, {"X-Error-Code": "RepoNotFound"}, True, "missing_repository", "no such repository"),
        (404, {"X-Error-Code": "RevisionNotFound"}, False, "missing_revision", "no revision v9"),
        (404, {"X-Error-Code": "EntryNotFound"}, False, "missing_file", "lacks a file"),
        (407, {}, False, "refused", "HTTP 407"),
    ],
)
def test_each_refusal_says_what_to_do(status: int, headers: dict[str, str], token: bool, kind: str, words: str) -> None:
    refusal = hub.refusal("o/m", "v9", status, headers, token_given=token)
    assert refusal.kind == kind
    assert words in refusal.sentence and "o/m" in refusal.sentence and refusal.remedy
