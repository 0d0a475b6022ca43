# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way over https: real proxmoxer against the sandbox's REST front."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve.stores import check_storage
from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import LxcNode, https_front

pytest.importorskip("proxmoxer")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")

LOGINS = {
    "passwords": {"root@pam": "the-password"},
    "tokens": {
        "root@pam!full": {"secret": "full-secret", "privsep": 0},
        "ci@pve!gpu": {"secret": "gpu-secret", "privsep": 1},
        "root@pam!bare": {"secret": "bare-secret", "privsep": 1},
    },
}
PASSWORD = {"api_password": "the-password"}
FULL = {"api_token_id": "full", "api_token_secret": "full-secret"}
HARMLESS: dict[str, t.Any] = {"mounts": None, "gpus": 0}


@pytest.fixture
def node(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> LxcNode:
    made = LxcNode("unused", tmp_path, monkeypatch, capsys)
    made.file("etc/kpro-standin/api.json", json.dumps(LOGINS))
    return made


@pytest.fixture
def way(node: LxcNode) -> t.Iterator[dict[str, t.Any]]:
    with https_front(node) as options:
        yield options


def test_the_password_of_root_may_all_that_the_node_may(node: LxcNode, way: dict[str, t.Any]) -> None:
    (node.root / "srv/models").mkdir()
    foretold = node.deploy(check=True, **way, **PASSWORD)
    made = node.deploy(**way, **PASSWORD)
    assert not made.get("failed") and made["plan"] == foretold["plan"], made
    assert node.is_running() and "dev0: /dev/nvidia0,mode=0666" in node.config() and "mp0: /srv/models" in node.config()
    assert made["address"] == "10.77.0.129"
    assert node.deploy(**way, **PASSWORD)["changed"] is False
    changed = node.deploy(**way, **PASSWORD, features={"nesting": True, "fuse": True}, restart=True)
    assert not changed.get("failed") and "features: fuse=1,nesting=1" in node.config(), changed
    assert node.deploy(**way, **PASSWORD, state="absent", features=None)["changed"] and not node.config_path().exists()


def test_a_gpu_of_another_guest_is_known_from_afar(node: LxcNode, way: dict[str, t.Any]) -> None:
    node.file("etc/pve/mapping/pci.cfg", f"a6000\n\tmap node={node.name},path=0000:41:00.0\n")
    node.has("name: win\nhostpci0: mapping=a6000,pcie=1\n", vmid=150, kind="qemu-server")
    common: dict[str, t.Any] = {**way, **PASSWORD, "check": True, "mounts": None}
    refused = node.deploy(**common, gpus=["GPU-aaaa"])
    assert refused["failed"] and "given to VM 150 (win) by hostpci0" in refused["msg"]
    assert node.deploy(**common, gpus=1)["gpus"][0]["uuid"] == "GPU-bbbb"
    node.has("arch: amd64\nhostname: notes\nostype: debian\nlxc.hook.mount: /usr/share/lxc/hooks/nvidia\nlxc.environment: NVIDIA_VISIBLE_DEVICES=1\n", vmid=151)
    refused = node.deploy(**common, gpus=1)
    assert refused["failed"] and "container 151 (notes) by lxc.hook.mount with NVIDIA_VISIBLE_DEVICES=1" in refused["msg"], refused


def test_a_token_may_what_is_not_reserved(node: LxcNode, way: dict[str, t.Any]) -> None:
    made = node.deploy(**way, **FULL, **HARMLESS)
    assert not made.get("failed"), made
    assert node.is_running() and "tags: kpro-llm" in node.config()
    assert node.deploy(**way, **FULL, **HARMLESS)["changed"] is False


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"gpus": 1, "mounts": None}, "dev0"),  # LLMX-093
        ({"gpus": 0, "mounts": [{"source": "/tank/models", "target": "/models", "read_only": True}]}, "mp0 (a bind mount of /tank/models)"),  # LLMX-113
        ({**HARMLESS, "unprivileged": False}, "features (feature flags of a privileged container)"),  # LLMX-087
        ({**HARMLESS, "features": {"nesting": True, "keyctl": True}}, "features (feature flags other than nesting)"),
        ({**HARMLESS, "options": {"hookscript": "local:snippets/x.sh"}}, "hookscript"),
    ],
)
def test_what_only_root_may_is_refused_to_a_token_before_anything_is_sent(node: LxcNode, way: dict[str, t.Any], options: dict[str, t.Any], key: str) -> None:
    result = node.deploy(**way, **FULL, **options)
    assert result["failed"] and key in result["msg"] and "root@pam" in result["msg"] and "SSH" in result["msg"], result
    assert not node.config_path().exists() and "secret" not in result["msg"]


def test_a_token_without_permissions_is_told_from_a_wrong_one(node: LxcNode, way: dict[str, t.Any]) -> None:
    """LLMX-051."""
    token = {"api_user": "ci@pve", "api_token_id": "gpu", "api_token_secret": "gpu-secret"}
    result = node.deploy(**way, **token)
    assert "ci@pve!gpu" in result["msg"] and "privilege separation" in result["msg"] and "pveum acl modify" in result["msg"]
    wrong = node.deploy(**way, **{**token, "api_token_secret": "else"})
    assert wrong["failed"] and "privilege separation" not in wrong["msg"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"api_password": "wrong"}, ("root@pam was refused",)),
        ({"api_ca_file": None}, ("certificate is not trusted", "api_ca_file")),
        ({"api_port": 1}, ("no connection",)),
        ({"api_password": None}, ("neither a password nor a token",)),
        ({"node": None}, ("option 'node'",)),
    ],
)
def test_a_login_that_fails_says_why(node: LxcNode, way: dict[str, t.Any], change: dict[str, t.Any], words: tuple[str, ...]) -> None:
    result = node.deploy(**{**way, **PASSWORD, **change})
    assert result["failed"] and all(word in result["msg"] for word in words), result
    assert "the-password" not in json.dumps({key: value for key, value in result.items() if key != "invocation"})


def test_what_only_the_node_can_do_is_refused_with_the_reason(node: LxcNode, way: dict[str, t.Any]) -> None:
    node.has("hostname: llm\nmemory: 512\nostype: debian\nrootfs: local-zfs:subvol-129-disk-0,size=2G\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind\n")
    result = node.deploy(**way, **PASSWORD, adopt=True, unprivileged=False)
    assert result["failed"] and "the API can't do that" in result["msg"] and "pvesh" in result["msg"], result


def test_a_creation_that_takes_longer_than_one_run_waits_is_taken_up_by_the_next(node: LxcNode, way: dict[str, t.Any]) -> None:
    (node.root / "srv/models").mkdir()
    node.faults(slow_unpack_s=4)
    first = node.deploy(**way, **PASSWORD, task_timeout_s=1)
    assert first["failed"] and "UPID:" in first["msg"] and "still runs" in first["msg"] and "same command again" in first["msg"], first
    second = node.deploy(**way, **PASSWORD)
    assert not second.get("failed") and second["plan"] == ["Start container 129"], second
    assert node.is_running()


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"api_user": "ci@pve", "api_token_id": "gpu", "api_token_secret": "gpu-secret"}, ("--users ci@pve", "--tokens 'ci@pve!gpu'")),
        ({"api_user": "root@pam", "api_token_id": "bare", "api_token_secret": "bare-secret"}, ("--tokens 'root@pam!bare'",)),
    ],
)
def test_what_a_login_lacks_is_granted_to_the_token_and_to_its_user(
    node: LxcNode, way: dict[str, t.Any], login: dict[str, t.Any], words: tuple[str, ...]
) -> None:
    result = node.deploy(**way, **login)
    assert result["failed"] and all(word in result["msg"] for word in words), result
    assert "is on)" not in result["msg"], "whether the token is separated can't be seen from here"


def test_half_a_container_that_no_task_works_on_is_named_with_the_commands(node: LxcNode, way: dict[str, t.Any]) -> None:
    (node.root / "srv/models").mkdir()
    node.has("lock: create\n")
    result = node.deploy(**way, **PASSWORD)
    assert result["failed"] and "pct unlock 129" in result["msg"] and "--destroy-unreferenced-disks 1" in result["msg"], result
    assert "adopt" not in result["msg"] and node.config() == "lock: create\n"


def test_a_creation_over_https_that_a_run_on_the_node_meets_is_waited_for(node: LxcNode, way: dict[str, t.Any]) -> None:
    """Its worker belongs to the node's daemon: nobody's end ends it."""
    (node.root / "srv/models").mkdir()
    node.faults(slow_unpack_s=3)
    first = node.deploy(**way, **PASSWORD, task_timeout_s=1)
    assert first["failed"] and "still runs and was not touched" in first["msg"], first
    foretold = node.deploy(check=True, **way, **PASSWORD)
    assert len(foretold["plan"]) == 1 and "is being created" in foretold["plan"][0], foretold


def test_what_a_login_may_not_see_is_no_fact() -> None:
    rows = [{"storage": "local", "content": "vztmpl", "enabled": 1, "active": 1}]
    with pytest.raises(KproError) as refused:
        check_storage("local-zfs", "rootdir", rows, "ci@pve!gpu")
    assert "or ci@pve!gpu may not see it" in refused.value.reason and "/storage/local-zfs" in refused.value.remedy
