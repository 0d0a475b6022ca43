# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.plugin_utils._own_memory import cards_after_stop

SEEN = {
    "gpus": [
        {"uuid": "GPU-a", "name": "NVIDIA RTX A6000", "memory_mib": 49140, "memory_free_mib": 6000},
        {"uuid": "GPU-b", "name": "NVIDIA RTX A6000", "memory_mib": 49140, "memory_free_mib": 46000},
        {"uuid": "GPU-c", "name": "NVIDIA RTX A6000", "memory_mib": None, "memory_free_mib": None},
    ],
    "processes": [
        {"gpu_uuid": "GPU-a", "used_mib": 41000, "container": 129},
        {"gpu_uuid": "GPU-a", "used_mib": 1600, "container": 129},
        {"gpu_uuid": "GPU-b", "used_mib": 3000, "container": 130},
        {"gpu_uuid": "GPU-b", "used_mib": None, "container": None},
    ],
}


def test_our_own_engine_holds_nothing_that_a_new_start_would_miss() -> None:
    assert [(card["memory_mib"], card["free_mib"]) for card in cards_after_stop(SEEN, 129, [])] == [(49140, 48600), (49140, 46000), (None, None)]


def test_another_containers_memory_stays_taken() -> None:
    assert [card["free_mib"] for card in cards_after_stop(SEEN, 130, ["GPU-a"])] == [6000]


def test_no_more_is_free_than_there_is() -> None:
    seen = {**SEEN, "processes": [{"gpu_uuid": "GPU-a", "used_mib": 49140, "container": 129}]}
    assert cards_after_stop(seen, 129, ["GPU-a"]) == [{**SEEN["gpus"][0], "free_mib": 49140}]
