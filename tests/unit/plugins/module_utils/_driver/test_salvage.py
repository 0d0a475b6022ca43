# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._driver.model import Unit
from ansible_collections.kpro.llm.plugins.module_utils._driver.salvage import facts_before, left_behind, restore_argvs
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.driver_cases import GOOD

ERROR = KproError("driver", "it does not compile", "Take a newer one", make_log="/x")


def test_only_what_was_loaded_and_running_is_taken_up_again() -> None:
    present = dataclasses.replace(GOOD, modules=frozenset({"nvidia", "nvidia_uvm"}), units={"nvidia-persistenced.service": Unit(True, False)})
    facts = facts_before(present)
    assert facts == {"before": "580.173.02", "modules": "nvidia nvidia_uvm", "units": ""}
    assert restore_argvs(facts) == [("modprobe", "nvidia"), ("modprobe", "nvidia_uvm")]


def test_a_driver_that_was_only_on_disk_is_not_loaded() -> None:
    facts = facts_before(dataclasses.replace(GOOD, loaded=None, modules=frozenset()))
    assert facts["before"] == "580.173.02" and restore_argvs({**facts, "units": ""}) == []
    assert "as before" in left_behind(ERROR, {**facts, "version": "580.178.04"}, "", "580.173.02").reason


def test_details_and_remedy_stay() -> None:
    found = left_behind(ERROR, {"before": "580.173.02", "modules": "nvidia", "version": "580.178.04"}, "", "")
    assert found.remedy.startswith("Take a newer one. To have 580.173.02 back") and found.details == {"make_log": "/x"}


def test_the_same_version_needs_no_other_variable() -> None:
    found = left_behind(ERROR, {"before": "580.173.02", "modules": "nvidia", "version": "580.173.02"}, "", "")
    assert "is gone" in found.reason and found.remedy == "Take a newer one"


def test_without_a_former_driver_the_error_is_as_it_was() -> None:
    assert left_behind(ERROR, {"version": "580.178.04"}, "", "") is ERROR
