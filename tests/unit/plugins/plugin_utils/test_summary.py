# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.plugin_utils._summary import phase_seconds, summary_lines

PHASES = [{"name": "runtime", "started_s": 130.0}, {"name": "preflight", "started_s": 100.0}, {"name": "node", "started_s": 104.5}]
RESULTS = {
    "node": {"pve_version": "9.2.11", "driver_version": "580.173.02", "gpus": [{"name": "NVIDIA RTX A6000"}] * 2, "reboot_needed": False},
    "container": {"running": True, "vmid": 129, "address": "10.77.0.129", "gpus": [{"uuid": "GPU-a"}]},
    "runtime": {"engine_version": "0.5.23", "lane": "cu13", "python": "3.12", "venv": "/opt/venv"},
    "model": {"repository": "Qwen/Qwen3.6-27B", "commit": "c" * 40, "path": "/srv/models/x"},
    "service": {"ready": True, "url": "http://10.77.0.129:30000/v1", "api_key_path": "/etc/kpro-llm/api_key"},
    "answer": {"answer": "\n\nParis", "seconds": 0.31, "context_length": 65536},
}


def test_a_phase_lasts_until_the_next_one_begins() -> None:
    assert phase_seconds(PHASES, 150.0) == [("preflight", 4.5), ("node", 25.5), ("runtime", 20.0)]
    assert phase_seconds([], 150.0) == []


def test_every_phase_has_a_line() -> None:
    lines = summary_lines("kpro5", RESULTS, PHASES, 150.0)
    assert [line.split()[0] for line in lines] == ["preflight", "node", "container", "runtime", "model", "service", "verify", "total"]
    assert "2x NVIDIA RTX A6000" in lines[1]
    assert "'Paris' in 0.31 s" in lines[6]
    assert lines[-1].split()[1] == "50.0"


def test_before_the_container_exists_the_later_phases_say_so() -> None:
    lines = summary_lines("kpro5", {"container": {"running": False}}, [], 150.0)
    assert sum("after creation" in line for line in lines) == 5


def test_the_rung_that_runs_and_what_was_given_up_are_named() -> None:
    service = {**RESULTS["service"], "rung_name": "no speculation", "given_up": ["speculation: out of memory in graph capture"]}
    line = summary_lines("kpro5", {**RESULTS, "service": service}, PHASES, 150.0)[5]
    assert "rung 'no speculation' (given up: speculation: out of memory in graph capture)" in line


def test_speed_is_shown_if_it_was_measured() -> None:
    measured = {"decode_tokens_per_s": 31.5, "clients": 4, "clients_tokens_per_s": 96.2}
    line = summary_lines("kpro5", {**RESULTS, "answer": {**RESULTS["answer"], "measured": measured}}, PHASES, 150.0)[6]
    assert line.endswith("context 65536 tokens; 31.5 tokens/s alone, 96.2 by 4 clients together")
