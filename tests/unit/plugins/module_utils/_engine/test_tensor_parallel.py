# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._engine.tensor_parallel import tp_size, wanted_count
from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of

QWEN = config_of("Qwen/Qwen3.6-27B")
ODD = {"num_attention_heads": 12, "num_key_value_heads": 6}


@pytest.mark.parametrize(
    ("gpus", "config", "expected"),
    [
        (1, QWEN, 1),
        (2, QWEN, 2),
        (3, QWEN, 2),
        (4, QWEN, 4),
        # 24 heads, 4 of them for keys and values, which are repeated once.
        (8, QWEN, 8),
        (16, QWEN, 8),
        (4, ODD, 2),
        (0, QWEN, 1),
        (3, {}, 2),
    ],
)
def test_as_many_gpus_as_divide_the_model(gpus: int, config: dict[str, t.Any], expected: int) -> None:
    assert tp_size("auto", gpus, config) == expected


def test_a_number_is_taken_as_it_is_and_a_cpu_has_no_gpus() -> None:
    assert (tp_size("3", 2, QWEN), tp_size(1, 2, QWEN), tp_size("auto", 2, QWEN, on_cpu=True)) == (3, 1, 1)


@pytest.mark.parametrize("wanted", ["all", "0", "-1", "2.5", ""])
def test_what_is_no_number_is_refused_by_name(wanted: str) -> None:
    with pytest.raises(KproError, match=r"sglang_server__tp_size '.*no number of GPUs"):
        tp_size(wanted, 2, QWEN)


def test_the_inventorys_choice_is_counted() -> None:
    assert [wanted_count(gpus, 3) for gpus in ("all", 2, "2", ["GPU-a"], {"a": 1})] == [3, 2, 2, 1, 0]
