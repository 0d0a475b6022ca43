# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import random
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._model import transfer_plan as plan
from ansible_collections.kpro.llm.plugins.module_utils._model.transfer_plan import MIB, Piece


def case(name: str) -> dict[str, t.Any]:
    lines = (Path(__file__).parents[1] / "fixtures" / "model_download_cases.jsonl").read_text().splitlines()
    return next(one for one in map(json.loads, lines) if one["id"] == name)


def check_words(words: str, expect: dict[str, t.Any]) -> None:
    assert all(word in words for word in expect["must_mention"])
    assert not any(word in words for word in expect["must_not_claim"])


def test_pieces_and_written_ranges_are_the_file_exactly_once() -> None:
    dice = random.Random(7)
    for _round in range(200):
        size = dice.randrange(0, 300)
        written = plan.merged((start := dice.randrange(0, size + 1), min(size, start + dice.randrange(0, 50))) for _round in range(dice.randrange(4)))
        pieces = plan.pieces_of(size, written, dice.randrange(1, 100))
        bytes_of = sorted([at for one in pieces for at in range(one.start, one.end)] + [at for start, end in written for at in range(start, end)])
        assert bytes_of == list(range(size))


def test_half_of_a_piece_is_taken_only_if_that_is_worth_a_connection() -> None:
    piece = Piece(0, 100 * MIB, 20 * MIB)
    other = plan.split(piece)
    assert other and (piece.end, other.start, other.end) == (60 * MIB, 60 * MIB, 100 * MIB)
    assert plan.split(Piece(0, 31 * MIB, 0)) is None


def test_a_journal_is_read_as_it_was_written() -> None:
    assert plan.journal_ranges(plan.journal_text(100, [(0, 10), (20, 30)]), 100) == [(0, 10), (20, 30)]


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"size": 99, "written": [[0, 5]]}', '{"size": 100, "written": [[0, 101]]}', '{"size": 100, "written": [[9, 5]]}']
)
def test_a_journal_that_cannot_be_trusted_vouches_for_nothing(text: str) -> None:
    assert plan.journal_ranges(text, 100) == []


def test_pauses_grow_are_bounded_and_obey_the_server() -> None:
    pauses = [plan.wait_s(failures, 0.0, 1.0) for failures in range(1, 40)]
    assert pauses == sorted(pauses) and pauses[0] == 0.5 and pauses[-1] == plan.LONGEST_WAIT_S
    assert plan.wait_s(1, 20.0, 0.5) == 20.0


def test_cuts_of_one_length_are_a_limit_on_the_way() -> None:
    found = case("LLMX-091")
    cuts = found["repro"]["cuts_bytes"]
    limit = plan.cut_limit(cuts)
    assert limit == 1 << 30
    assert plan.stretch_below(limit) == 512 * MIB
    check_words(plan.cut_words(cuts, plan.stretch_below(limit)), found["expect"])
    assert "4 times" in plan.cut_words(cuts, 512 * MIB)


@pytest.mark.parametrize("cuts", [[], [5 * MIB] * 2, [5 * MIB, 9 * MIB, 5 * MIB], [100, 100, 100]])
def test_other_cuts_are_no_limit(cuts: list[int]) -> None:
    assert plan.cut_limit(cuts) is None


def test_a_partial_file_longer_than_the_file_is_named_with_both_sizes() -> None:
    found = case("LLMX-006")
    words = plan.unusable_words("shard 3", found["repro"]["partial_bytes"], 0, found["repro"]["expected_bytes"])
    check_words(words, found["expect"])
    assert "4.98 GB" in words and "4.97 GB" in words


def test_a_resume_that_starts_again_is_said() -> None:
    found = case("LLMX-005")
    before, after = found["repro"]["samples"][1][1], found["repro"]["samples"][3][1]
    check_words(plan.unusable_words("shard 7", before, after, 10 * before), found["expect"])
    assert plan.unusable_words("shard 7", before, before - 60 * MIB, 10 * before) == ""


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 s"), (89, "89 s"), (95, "2 min"), (5399, "90 min"), (9000, "2.5 h")])
def test_times_are_rounded_as_a_person_would(seconds: float, words: str) -> None:
    assert plan.time_words(seconds) == words


def test_a_line_of_progress() -> None:
    line = plan.Progress("Downloading", 21 * 10**9, 55 * 10**9, 3, 15, 108e6).line()
    assert line == "Downloading 38 % of 55 GB, 3 of 15 files, 108 MB/s, 5 min left"
    assert plan.Progress("Checking", 0, 0, 0, 0, 0.0, "why").line() == "Checking 100 % of 0 B, 0 of 0 files (why)"


def test_a_small_model_occupies_all_connections_from_the_start() -> None:
    assert plan.first_stretch(192 * MIB, 8, 64 * MIB) == 24 * MIB
    assert plan.first_stretch(10 * MIB, 8, 64 * MIB) == 8 * MIB
    assert plan.first_stretch(55 * 10**9, 8, 64 * MIB) == 64 * MIB
    assert plan.first_stretch(0, 8, 64 * MIB) == 8 * MIB
