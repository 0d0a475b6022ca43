# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._pve import raw as _pve_raw
from ansible_collections.kpro.llm.plugins.module_utils._pve.config import read_config_file
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import failure_case, step

MAJORS = {195: "nvidia", 236: "nvidia-caps", 510: "nvidia-uvm", 10: "misc", 507: "hidraw"}


def _lines(text: str) -> tuple[tuple[str, str], ...]:
    return read_config_file(text).raw


def test_majors_are_read_from_the_kernels_list() -> None:
    text = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n259 blkext\n"
    assert _pve_raw.read_majors(text) == {1: "mem", 195: "nvidia", 510: "nvidia-uvm"}


def test_a_stale_major_is_named_with_the_one_of_now() -> None:
    """LLMX-034."""
    repro = failure_case("LLMX-034")["repro"]
    conf = f"{repro['conf']}\nlxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file\n"
    split = _pve_raw.split_raw(_lines(conf), _pve_raw.read_majors(repro["proc_devices"]), privileged=True)
    reason = dict(split.replaced)[("lxc.cgroup2.devices.allow", "c 507:* rwm")]
    assert "507" in reason and "510" in reason and not split.kept


def test_a_rule_for_another_drivers_major_stays() -> None:
    split = _pve_raw.split_raw(_lines("lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 507:* rwm\n"), MAJORS, True)
    assert split.kept == (("lxc.cgroup2.devices.allow", "c 507:* rwm"),)


def test_an_unknown_major_stays_in_a_container_without_nvidia_lines() -> None:
    assert not _pve_raw.split_raw(_lines("lxc.cgroup2.devices.allow: c 509:* rwm\n"), MAJORS, True).replaced


def test_the_mount_hook_goes_and_the_reason_names_the_privilege() -> None:
    """LLMX-043."""
    conf = failure_case("LLMX-043")["repro"]["lxc_conf"]
    split = _pve_raw.split_raw(_lines(conf), MAJORS, privileged=True)
    assert len(split.replaced) == 1 and "hook" in split.replaced[0][1] and "privileged" in split.replaced[0][1]


def test_recorded_hand_made_lines() -> None:
    raw = _lines(step("config-hand-edited-lxc-lines", 1)["request"]["content"])
    split = _pve_raw.split_raw(raw, {195: "nvidia", 511: "nvidia-uvm"}, privileged=False)
    assert split.kept == (("lxc.cap.drop", "mac_admin"),)
    assert len(split.replaced) == 4


def test_only_the_named_lines_of_the_current_section_go() -> None:
    entry = "/dev/nvidia0 dev/nvidia0 none bind,optional,create=file"
    text = f"#note\narch: amd64\nlxc.mount.entry =   {entry}\nlxc.cap.drop: mac_admin\n\n[snap1]\nlxc.mount.entry: {entry}\n"
    assert _pve_raw.remove_lines(text, [("lxc.mount.entry", entry)]) == (f"#note\narch: amd64\nlxc.cap.drop: mac_admin\n\n[snap1]\nlxc.mount.entry: {entry}\n")


@pytest.mark.parametrize("rule", ["a", "b 195:* rwm", "c *:* rwm"])
def test_rules_that_fix_no_nvidia_major_stay(rule: str) -> None:
    assert not _pve_raw.split_raw((("lxc.cgroup2.devices.allow", rule),), MAJORS, True).replaced
