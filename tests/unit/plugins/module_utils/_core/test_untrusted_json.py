# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.untrusted_json import DEEPEST, BadJson, count_of, object_of, parsed

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 200_000, "nests too deeply"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "nests too deeply"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nests too deeply"),
        ("x", "no JSON"),
        ("", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        ("1" * 10_000, "no JSON"),
        ('"' + "a" * MIB + '"', "longer than 1 MiB"),
    ],
    ids=["deep lists", "deep objects", "one too deep", "word", "empty", "bytes", "endless number", "long"],
)
def test_bad_json_is_wrong_in_one_way(text: str | bytes, words: str) -> None:
    with pytest.raises(BadJson, match=words):
        parsed(text, MIB)


def test_good_json_is_read() -> None:
    assert parsed("[" * DEEPEST + "]" * DEEPEST, MIB)
    assert object_of(b'{"a": [1, {"b": null}], "c": Infinity}', MIB)["a"] == [1, {"b": None}]
    with pytest.raises(BadJson, match="no JSON object"):
        object_of("[]", MIB)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, [], {}, 2**63, 10**400, float("nan")])
def test_what_is_no_count_is_refused(value: t.Any) -> None:
    with pytest.raises(BadJson, match="no whole number"):
        count_of(value)
    assert [count_of(0), count_of(2**63 - 1), count_of(7, 7)] == [0, 2**63 - 1, 7]
