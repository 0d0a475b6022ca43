# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.cpu_level import cpu_level

V1 = "fpu cx8 cmov fxsr mmx syscall sse sse2 lm"
V2 = f"{V1} pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [(V1, 1), (V2, 2), (V3, 3), (V4, 4), (V2.replace("popcnt", ""), 1), (V4.replace("fma", ""), 2), ("fpu sse sse2", None), ("", None)],
)
def test_level(flags: str, level: int | None) -> None:
    assert cpu_level(f"processor\t: 0\nmodel name\t: some\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n") == level


def test_no_flags_at_all() -> None:
    assert cpu_level("processor\t: 0\nFeatures\t: fp asimd\n") is None
