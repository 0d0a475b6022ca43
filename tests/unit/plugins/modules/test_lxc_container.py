# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import LxcNode


@pytest.fixture
def node(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> LxcNode:
    return LxcNode(tmp_path, monkeypatch, capsys)


def test_a_new_container_is_made_started_and_then_left_alone(node: LxcNode) -> None:
    foretold = node.deploy(check=True)
    assert foretold["changed"] and node.writes() == [] and not node.config_path().exists()
    made = node.deploy()
    assert made["changed"] and made["plan"] == foretold["plan"] and made["diff"] == foretold["diff"], made
    assert node.is_running() and made["running"] and made["address"] == "10.77.0.129"
    assert made["devices"] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert [gpu["uuid"] for gpu in made["gpus"]] == ["GPU-aaaa"] and made["gpus"][0]["memory_mib"] == 49140
    config = node.config()
    for line in ("dev0: /dev/nvidia0,mode=0666", "features: nesting=1", "hostname: qwen", "tags: kpro-llm", "unprivileged: 1", "swap: 0"):
        assert line in config.splitlines(), config
    owner = (node.root / "srv/models").stat()
    assert (owner.st_uid, owner.st_gid, owner.st_mode & 0o777) == (100000, 100000, 0o755)
    calls = len(node.calls())
    again = node.deploy()
    assert again["changed"] is False and again["plan"] == [] and again["notes"] == []
    assert len(node.calls()) - calls <= 4
