# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.module_utils._model.transfer_pace import CALM_BYTES, ConnectionLimit, SourceChoice

PEER, MIRROR, HUB = 0, 1, 2


def ways() -> SourceChoice:
    return SourceChoice(["peer", "mirror", "hub"], 900.0)


def test_the_first_way_is_taken_while_there_is_hope() -> None:
    found = ways()
    assert found.choose("a", 0.0) == PEER
    found.failed(PEER, "refused", 0.1)
    assert found.choose("a", 9.0) == PEER
    found.failed(PEER, "refused", 9.0)
    assert found.choose("a", 9.5) == PEER


def test_a_way_that_never_worked_rests_after_ten_seconds_and_is_tried_again_after_a_minute() -> None:
    found = ways()
    found.choose("a", 0.0)
    found.failed(PEER, "refused", 10.0)
    assert [found.choose("a", now) for now in (10.5, 69.0, 71.0)] == [MIRROR, MIRROR, PEER]
    # Its ten seconds begin anew.
    found.failed(PEER, "refused", 72.0)
    assert found.choose("a", 72.0) == PEER


def test_a_way_that_worked_is_waited_for_through_a_reboot() -> None:
    found = ways()
    found.choose("a", 0.0)
    found.worked(PEER, "a", 5, 100.0)
    for now in (110.0, 140.0, 159.0):
        found.failed(PEER, "no route to host", now)
        assert found.choose("a", now) == PEER
    found.failed(PEER, "no route to host", 161.0)
    assert found.choose("a", 161.0) == MIRROR


def test_the_last_way_is_never_left() -> None:
    found = SourceChoice(["hub"], 900.0)
    for now in (0.0, 1000.0, 2000.0):
        assert found.choose("a", now) == 0
        found.failed(0, "HTTP 500", now)
    assert not found.unfit(0, "a", "x") and not found.close_off(0, "x") and not found.distrust("a")


def test_a_file_that_a_way_lacks_says_nothing_about_the_others() -> None:
    found = ways()
    assert found.unfit(PEER, "a", "not there")
    assert (found.choose("a", 0.0), found.choose("b", 0.0)) == (MIRROR, PEER)
    assert not found.hopeless("a")
    assert found.unfit(MIRROR, "a", "not there") and found.hopeless("a") and not found.hopeless("b")


def test_a_closed_way_is_closed_for_all_files_and_named() -> None:
    found = ways()
    assert found.close_off(PEER, "ssh: Permission denied (publickey).")
    assert {found.choose("a", 0.0), found.choose("b", 1000.0)} == {MIRROR}
    assert found.troubles() == ["peer could not be used: ssh: Permission denied (publickey)."]


def test_wrong_content_bars_those_who_had_a_hand_in_it_for_that_file() -> None:
    found = ways()
    found.worked(MIRROR, "a", 7, 1.0)
    found.worked(HUB, "a", 7, 1.0)
    assert found.distrust("a")
    assert (found.choose("a", 2.0), found.choose("b", 2.0)) == (PEER, PEER)
    found.unfit(PEER, "a", "not there")
    assert found.choose("a", 2.0) == HUB
    found.worked(HUB, "a", 7, 3.0)
    assert not found.distrust("a")


def test_bytes_are_counted_by_place_and_a_place_that_gave_some_is_no_trouble() -> None:
    found = ways()
    found.worked(PEER, "a", 5, 1.0)
    found.worked(HUB, "b", 6, 1.0)
    found.failed(PEER, "cut", 2.0)
    assert found.received() == {"peer": 5, "hub": 6}
    assert found.troubles() == []


def test_a_short_patience_of_the_whole_leaves_time_for_the_last_way() -> None:
    found = SourceChoice(["peer", "hub"], 4.0)
    found.choose("a", 0.0)
    found.failed(0, "refused", 1.0)
    assert found.choose("a", 1.0) == 1


def test_stalls_halve_the_connections_and_bytes_bring_them_back() -> None:
    pace = ConnectionLimit(8)
    assert [(pace.stalled(), pace.allowed) for _round in range(4)] == [(False, 4), (False, 2), (False, 1), (True, 1)]
    pace.flowed(CALM_BYTES - 1)
    assert pace.allowed == 1
    pace.flowed(1)
    assert pace.allowed == 2
    for _round in range(20):
        pace.flowed(CALM_BYTES)
    assert pace.allowed == 8
