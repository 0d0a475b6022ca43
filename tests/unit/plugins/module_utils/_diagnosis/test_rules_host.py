# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis.diagnose import diagnose
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import failure_case


@pytest.mark.parametrize("name", ["LLMX-015", "LLMX-044"])
def test_recorded_case(name: str) -> None:
    case = failure_case(name)
    repro, expect = case["repro"], case["expect"]
    found = diagnose([repro["text"]] if "text" in repro else [], repro)
    message = f"{found.cause}. {found.remedy}"
    assert (found.class_, found.action) == (expect["class"], expect["action"])
    assert all(words.lower() in message.lower() for words in expect["must_mention"]), message
    assert "crashed" not in message and found.evidence


def test_the_sandbox_that_was_refused_is_told_also_by_the_journal() -> None:
    found = diagnose(["kpro-sglang.service: Failed to set up mount namespacing: Permission denied"])
    assert found.class_ == "unit_namespace_denied" and "nesting" in found.remedy


def test_other_exit_codes_are_none_of_it() -> None:
    assert diagnose(["gate: ok"], {"unit": {"ExecMainStatus": "1"}}).class_ == "unknown"
