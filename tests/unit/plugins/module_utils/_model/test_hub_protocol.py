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


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a\nb", "can't be seen"),
        ("a\r", "can't be seen"),
        ("x\x1b[2J.json", "can't be seen"),
        ("x\x9b2J", "can't be seen"),
        ("a\u202ejson.exe", "can't be seen"),
        ("a\u200bb", "can't be seen"),
        ("a\ud800", "can't be seen"),
        ("a\\b", "no plain path"),
        ("a//b", "no plain path"),
        ("a/", "no plain path"),
        ("./a", "no plain path"),
        ("a/./b", "no plain path"),
        (".", "no plain path"),
        ("", "is no text"),
        (None, "is no text"),
        (7, "is no text"),
        (["a"], "is no text"),
        ("x" * 201, "too long"),
        ("a/" * 600 + "b", "too long"),
        (".kpro-manifest.json", "the store's own"),
        (".kpro-manifest.json.new", "the store's own"),
        (".kpro-manifest.json/x", "the store's own"),
    ],
)
def test_a_path_that_can_not_be_one_is_refused_and_printed_without_harm(path: t.Any, words: str) -> None:
    with pytest.raises(KproError, match=words) as error:
        hub.files_of([{**ROW, "path": path}], "hub")
    assert error.value.sentence.isprintable()


@pytest.mark.parametrize("path", ["a b.json", "Grüße/東京.safetensors", ".gitattributes", "a..b", "...", "-rf", "a'b\"c$(d)", "x" * 200])
def test_an_unusual_path_is_taken(path: str) -> None:
    assert hub.files_of([{**ROW, "path": path}], "hub")[0].path == path


@pytest.mark.parametrize("size", [-1, 2**63, 10**30, 1.5, "12", True, None, [], 5 * 2**40])
def test_a_size_that_can_not_be_one_is_refused(size: t.Any) -> None:
    for row in ({**ROW, "size": size}, {**ROW, "lfs": {"oid": "a" * 64, "size": size}}):
        with pytest.raises(KproError, match="size of a/b"):
            hub.files_of([row], "hub")


@pytest.mark.parametrize("oid", ["../../../../etc/cron.d/x", "/etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "", None, 7, {"x": 1}, "sha256:"])
def test_a_hash_that_can_not_be_one_is_refused(oid: t.Any) -> None:
    for row in ({**ROW, "oid": oid}, {**ROW, "lfs": {"oid": oid, "size": 1}}, {**ROW, "oid": oid, "lfs": {"oid": "a" * 64, "size": 1}}):
        if row.get("lfs", {}).get("oid") == "a" * 64 and oid == "":
            continue
        with pytest.raises(KproError, match="hash of"):
            hub.files_of([row], "hub")


@pytest.mark.parametrize(
    "answer", ["x", None, 7, {}, [1], [None], [[]], ["a"], [{"type": "file", "lfs": "x", **{key: ROW[key] for key in ("path", "size", "oid")}}]]
)
def test_an_answer_of_another_form_is_not_one_of_a_hub(answer: t.Any) -> None:
    with pytest.raises(KproError, match="not one of a model hub"):
        hub.files_of(answer, "hub")


def file(path: str, size_bytes: int = 1, key: str = "1") -> hub.RemoteFile:
    return hub.RemoteFile(path, size_bytes, "", key * 40)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([file("a"), file("a/b")], "both as a file and as a folder"),
        ([file("a/b/c"), file("a")], "both as a file and as a folder"),
        ([file("a", key="1"), file("a", key="2")], "twice, with different contents"),
        ([file("\u00e9"), file("e\u0301")], "whose names look the same"),
        ([file(str(number)) for number in range(hub.MOST_FILES + 1)], "more than 10000 files"),
        ([file(str(number), 2**42) for number in range(17)], "larger than 64 TiB"),
    ],
    ids=["folder", "deep folder", "twice", "normal forms", "too many", "too large"],
)
def test_files_that_can_not_lie_beside_each_other_are_refused(files: list[hub.RemoteFile], words: str) -> None:
    with pytest.raises(KproError, match=words):
        hub.checked_listing(files, "hub")


def test_files_that_can_are_taken_once() -> None:
    assert hub.checked_listing([file("a/b"), file("a.b"), file("a/b"), file("A/b")], "hub") == [file("a/b"), file("a.b"), file("A/b")]
    assert hub.same_but_for_case([file("a/b"), file("c"), file("A/b")]) == ("a/b", "A/b")
    assert hub.same_but_for_case([file("a"), file("b")]) is None


@pytest.mark.parametrize(
    "link",
    ["http://evil/api?cursor=1", "https://hub/api", "http://hub:81/api", "//evil/api", "http://hub@evil/x", "http://user@hub/x", "file:///etc/passwd",
     "http://[::1", "http://hub:x/", "http://hub:99999/"],
)  # fmt: skip
def test_a_list_never_goes_on_at_another_host(link: str) -> None:
    with pytest.raises(KproError, match="goes on at another place"):
        hub.next_url("http://hub/api/models/o/m/tree/c", f'<{link}>; rel="next"', "hub")


def test_a_list_goes_on_at_the_same_host() -> None:
    url = "http://hub/api/models/o/m/tree/c?recursive=true"
    assert hub.next_url(url, '<http://hub:80/x?cursor=b>; rel="next"', "hub") == "http://hub:80/x?cursor=b"
    assert hub.next_url(url, '</x?cursor=b>; rel="next"', "hub") == "http://hub/x?cursor=b"
    assert hub.next_url(url, "", "hub") == hub.next_url(url, "<>; rel=next", "hub") == hub.next_url(url, "<" + "x" * 5000 + ">; rel=next", "hub") == ""


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("999999", 300.0), ("-1", 0.0), ("1e9", 0.0), ("\u0661", 0.0), ("Mon, 1 Jan", 0.0), ("9" * 99, 0.0)]
)
def test_no_server_makes_us_wait_for_ever(header: str, seconds: float) -> None:
    assert hub.retry_after_s(header) == seconds


def test_words_of_the_server_are_printed_without_harm() -> None:
    refusal = hub.refusal("o/m", "main", 400, {"X-Error-Message": "\x1b[2Jall is well\r" + "x" * 5000}, token_given=False)
    assert refusal.sentence.isprintable() and len(refusal.sentence) < 500


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
    [
        ('<http://h/x?cursor=b>; rel="next"', "http://h/x?cursor=b"),
        ('<http://h/a>; rel="prev", <http://h/b>; rel=next', "http://h/b"),
        ('<https://h/b>; title="x"; rel="prev next"', "https://h/b"),
        ("<https://h/a>; rel=prev, <https://h/b>; Rel=NEXT", "https://h/b"),
        ('<https://h/a>; rel="nextish"', ""),
        ('<https://h/a>; rel="", <https://h/b>; rel', ""),
        ("", ""),
    ],
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
