# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kpro.llm.plugins.modules import lxc_container_info
from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import LxcNode

OURS = "arch: amd64\nhostname: qwen\nnet0: name=eth0,bridge=vmbr0,ip=10.77.0.9/24\nonboot: 1\nrootfs: local-zfs:x,size=2G\ntags: kpro-llm\n"


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, t.Any]:
    # AnsibleModule reads its arguments once a process.
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", None, raising=False)
    with patch_module_args({"vmid": 129}), pytest.raises(SystemExit):
        lxc_container_info.main()
    answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_container_here_is_described(node: LxcNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    node.has(OURS)
    answer = ask(monkeypatch, capsys)
    assert (answer["exists"], answer["here"], answer["ours"], answer["onboot"], answer["running"]) == (True, True, True, True, False)
    assert (answer["address"], answer["hostname"], answer["node"]) == ("10.77.0.9", "qwen", node.name)
    assert answer["sentence"] == f"Container 129 is stopped on {node.name} and starts with it"
    assert not answer["changed"]


def test_an_absent_container_is_an_answer(node: LxcNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(monkeypatch, capsys)
    assert (answer["exists"], answer["here"], answer["kind"]) == (False, False, "")
    assert answer["sentence"].endswith("has no container 129")


def test_a_container_on_another_node_is_found(node: LxcNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    node.has(OURS, node="kpro6")
    answer = ask(monkeypatch, capsys)
    assert (answer["exists"], answer["here"], answer["node"]) == (True, False, "kpro6")
    assert answer["sentence"] == "Guest 129 is on kpro6"
