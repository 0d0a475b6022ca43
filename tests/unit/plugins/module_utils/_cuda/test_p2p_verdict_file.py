# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._cuda.p2p_verdict_file import board, note, settled
from ansible_collections.kpro.llm.plugins.module_utils._cuda.verdict import P2p, P2pVerdict

CORRUPT = P2pVerdict("corrupt", "a copy from GPU-1 to GPU-2 arrived with other bytes")
FULL = P2pVerdict("unknown", "GPU-1 to GPU-2: less than 1088 MiB are free")
HERE: dict[str, t.Any] = {"gpus": ["GPU-2", "GPU-1"], "driver": "580.173.02", "kernel": "7.0.2-6-pve", "cmdline": "quiet iommu=pt"}


def test_a_full_gpu_keeps_the_verdict_that_was_found() -> None:
    found = settled(FULL, board(**{**HERE, "gpus": ["GPU-1", "GPU-2"]}), note(CORRUPT, board(**HERE)))
    assert (found.p2p, found.disable) == ("corrupt", True)
    assert CORRUPT.reason in found.reason and FULL.reason in found.reason


@pytest.mark.parametrize("change", [{"gpus": ["GPU-1", "GPU-3"]}, {"driver": "580.178.04"}, {"kernel": "7.0.3-1-pve"}, {"cmdline": "quiet iommu=off"}])
def test_a_verdict_holds_for_its_board_only(change: dict[str, t.Any]) -> None:
    assert settled(FULL, board(**{**HERE, **change}), note(CORRUPT, board(**HERE))) == FULL


def test_what_is_seen_now_wins() -> None:
    works = P2pVerdict("ok", "all 4 copies arrived unchanged")
    assert settled(works, board(**HERE), note(CORRUPT, board(**HERE))) == works


@pytest.mark.parametrize("verdict", [FULL, P2pVerdict("single", "one GPU has no peer")])
def test_what_was_not_found_out_is_not_kept(verdict: P2pVerdict) -> None:
    assert note(verdict, board(**HERE)) == ""


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"of": 1}', '"text"', "null"])
def test_a_file_that_is_not_ours_says_nothing(kept: str) -> None:
    assert settled(FULL, board(**HERE), kept) == FULL


def test_a_kernels_command_line_is_kept_as_a_hash() -> None:
    assert "iommu" not in note(CORRUPT, board(**HERE))


def test_every_kept_word_is_one_of_the_verdicts() -> None:
    for word in t.get_args(P2p):
        kept = note(P2pVerdict(word, "reason"), board(**HERE))
        assert bool(kept) == (word not in ("unknown", "single"))
