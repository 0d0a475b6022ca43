# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks themselves against machines that can't be reached: whatever ends a preflight is a row, and no node begins.

The way through is in tests/integration/test_two_hosts.py; here no port answers, so that it takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = {"ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_ssh_common_args": "-o ConnectTimeout=2"}


def run(folder: Path, playbook: str, *arguments: str, other: dict[str, t.Any] | None = None, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a playbook with two deployments on a node each, and two previous nodes; return exit code and output."""
    of_all = {
        "ansible_connection": "kpro.llm.pct",
        "gpu_container__vmid": "{{ pct_vmid }}",
        "hf_model__repository": "kpro/tiny",
        "sglang_server__served_name": "tiny",
        **NOBODY,
    }
    hosts = {
        "llm_node": {"hosts": {"kpro5": NOBODY, "kpro7": NOBODY}},
        "llm_node_previous": {"hosts": {"kpro6": NOBODY}},
        "llm_container": {
            "hosts": {"qwen": {"pct_vmid": 129, "pct_node": "kpro5"}, "other": {"pct_vmid": 130, "pct_node": "kpro7", **(other or {})}},
            "vars": of_all,
        },
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": hosts}}))
    given = {"ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", **(env or {})}
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "hosts.json", f"kpro.llm.{playbook}", *arguments]
    done = subprocess.run(argv, cwd=folder, env={**os.environ, **given}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def rows(output: str, host: str) -> list[str]:
    return re.findall(rf"^  {host} +(\w+ +(?:OK|note|will fix|needs you)  .*)$", output, re.MULTILINE)


def begun(output: str) -> bool:
    """Tell whether anything was done on a node."""
    return bool(re.search(r"^kpro[57] +: ok=[1-9]", output, re.MULTILINE))


@pytest.mark.parametrize(
    ("playbook", "arguments"), [("deploy_qwen", ()), ("deploy_qwen", ("--check",)), ("migrate_qwen", ("-e", "migrate_from=kpro6")), ("migrate_qwen", ())]
)
def test_all_hosts_are_in_one_table_and_nothing_begins(tmp_path: Path, playbook: str, arguments: tuple[str, ...]) -> None:
    rc, output = run(tmp_path, playbook, *arguments)
    assert rc == 2, output
    assert any("needs you" in row for row in rows(output, "qwen")), output
    assert any("needs you" in row for row in rows(output, "other")), output
    assert output.count("Print all findings") == 1 + output.count("Print all findings, and stop if one needs you\n")
    assert "Nothing was changed" in output
    assert "is undefined" not in output
    assert not re.search(r"^PLAY \[(Move|Node|New|Container)", output, re.MULTILINE), output


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"pct_node": "{{ nothing }}"}, "'nothing' is undefined"),
        ({"ansible_port": "{{ nothing }}"}, "'nothing' is undefined"),
        ({"gpu_container__vmid": "{{ nothing }}"}, "'nothing' is undefined"),
        ({"pct_node": "kpro99"}, "kpro99"),
        ({"ansible_connection": "kpro.llm.none"}, "kpro.llm.none"),
        ({"sglang_server__port": "many", "sglang_server__options": "{{ nothing }}"}, "sglang_server__options: 'nothing' is undefined"),
    ],
    ids=str,
)
def test_what_ends_a_host_is_its_row(tmp_path: Path, other: dict[str, t.Any], words: str) -> None:
    rc, output = run(tmp_path, "deploy_qwen", other=other)
    assert rc == 2, output
    assert any(words in row for row in rows(output, "other")), output
    assert any("kpro5 can't be reached" in row for row in rows(output, "qwen")), output
    assert "PLAY [Node]" not in output


@pytest.mark.parametrize("env", [{"ANSIBLE_ANY_ERRORS_FATAL": "1"}, {"ANSIBLE_STRATEGY": "free"}, {"ANSIBLE_STRATEGY": "ansible.builtin.host_pinned"}], ids=str)
def test_settings_of_the_surroundings_do_not_leak_in(tmp_path: Path, env: dict[str, str]) -> None:
    rc, output = run(tmp_path, "deploy_qwen", env=env)
    assert rc == 2, output
    assert rows(output, "qwen") and rows(output, "other"), output
    assert output.count("TASK [Print all findings") == 1
    assert "PLAY [Node]" not in output


@pytest.mark.parametrize(
    "arguments", [("--skip-tags", "preflight"), ("--start-at-task", "Keep the driver and its device nodes"), ("--limit", "kpro5")], ids=str
)
def test_no_phase_begins_without_a_preflight(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    rc, output = run(tmp_path, "deploy_qwen", *arguments)
    assert rc != 0, output
    assert not begun(output), output
    assert "no preflight was made in this run" in output or "this phase was entered without its beginning" in output


def test_a_cached_fact_is_no_preflight(tmp_path: Path) -> None:
    """Facts of an earlier run, kept in a cache, must not open the gate."""
    cache = tmp_path / "cache"
    cache.mkdir()
    done = {"hosts": ["qwen", "other"], "finished": True}
    for host in ("qwen", "other", "kpro5", "kpro7"):
        (cache / host).write_text(json.dumps({"kpro_llm__preflight": done, "ansible_local": {"kpro_llm__preflight": done}}))
    env = {"ANSIBLE_CACHE_PLUGIN": "ansible.builtin.jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(cache), "ANSIBLE_INJECT_FACT_VARS": "1"}
    rc, output = run(tmp_path, "deploy_qwen", "--skip-tags", "preflight", env=env)
    assert rc != 0 and "no preflight was made in this run" in output, output
    assert not begun(output)


@pytest.mark.parametrize(
    ("named", "other", "words"),
    [
        ("129", {}, "kpro5"),
        ("", {}, "To do it, name the container: -e remove_container=129"),
        ("131", {}, "To do it, name the container: -e remove_container=130"),
        ("129", {"pct_vmid": 129}, "2 deployments have this id: name one of them with --limit, too"),
    ],
)
def test_one_container_is_removed_of_several(tmp_path: Path, named: str, other: dict[str, t.Any], words: str) -> None:
    """Nothing answers, so that the one that is meant ends in its way to the node, and the others are left out."""
    rc, output = run(tmp_path, "remove", "-e", f"remove_container={named}", other=other)
    assert rc != 0 and words in output, output
    assert ("UNREACHABLE" in output) is (named == "129" and not other)
    assert "other -> kpro7" not in output
