# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a node's driver goes only if nobody else needs it, and only if it is ours."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kpro.llm.plugins.module_utils._driver import files
from ansible_collections.kpro.llm.plugins.module_utils._removal import driver_converge as cleanup
from ansible_collections.kpro.llm.plugins.modules import driver_cleanup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reads the open files of all processes")

SYSTEMCTL = '#!/bin/sh\necho "$@" >> {log}\n[ "$1" = show ] && echo LoadState=loaded\nexit 0\n'
OURS = "hostname: qwen\ndev0: /dev/nvidia0,mode=0666\ntags: kpro-llm\n"


class Node:
    """A node in a folder, with a systemctl that only writes down what it is asked."""

    def __init__(self, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for folder in ("proc", "etc/pve/nodes/kpro6/lxc", "etc/pve/nodes/kpro6/qemu-server"):
            (root / folder).mkdir(parents=True)
        for kind in ("lxc", "qemu-server"):
            (root / "etc/pve" / kind).symlink_to(f"nodes/kpro6/{kind}")
        self.file("bin/systemctl", SYSTEMCTL.format(log=root / "asked")).chmod(0o755)
        monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
        monkeypatch.setattr(driver_cleanup, "HOST_ROOT", str(root))
        texts = files.node_files([0], persistence=True, power_limit_w=0)
        for path in cleanup.PATHS:
            self.file(path.lstrip("/"), texts.get(path, "key\n"))
        self.guest(OURS)

    def file(self, path: str, content: str) -> pathlib.Path:
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(content, encoding="utf-8")
        return found

    def guest(self, text: str, vmid: int = 129, kind: str = "lxc") -> None:
        self.file(f"etc/pve/nodes/kpro6/{kind}/{vmid}.conf", text)

    def has_gpu(self, address: str = "0000:41:00.0") -> None:
        for name, value in (("vendor", "0x10de"), ("class", "0x030000"), ("device", "0x2230")):
            self.file(f"sys/bus/pci/devices/{address}/{name}", f"{value}\n")

    def there(self) -> list[str]:
        return [path for path in cleanup.PATHS if (self.root / path.lstrip("/")).exists()]

    def asked(self) -> list[str]:
        log = self.root / "asked"
        return [line for line in log.read_text(encoding="utf-8").splitlines() if not line.startswith("show")] if log.exists() else []

    def run(self, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        with patch_module_args({"leaving": [129], **options, "_ansible_check_mode": check, "_ansible_diff": True}), pytest.raises(SystemExit):
            driver_cleanup.main()
        self._monkeypatch.setattr(basic, "_ANSIBLE_ARGS", None, raising=False)
        return json.loads(self._capsys.readouterr().out.strip().splitlines()[-1])


@pytest.fixture
def node(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, monkeypatch, capsys)


def test_everything_of_ours_goes_in_order_and_once(node: Node) -> None:
    foretold = node.run(check=True)
    assert node.there() == list(cleanup.PATHS) and node.asked() == []
    done = node.run()
    assert (done["plan"], done["diff"]) == (foretold["plan"], foretold["diff"]) and node.there() == []
    assert [line for line in node.asked() if line.startswith("stop")] == ["stop nvidia-persistenced.service", "stop kpro-nvidia-devnodes.service"]
    assert node.asked()[-1] == "daemon-reload"
    assert node.run()["changed"] is False


USERS = [
    ("lxc", "dev0: /dev/nvidia0,mode=0666"),
    ("lxc", "dev3: path=/dev/nvidiactl"),
    ("lxc", "dev3: mode=0666,path=/dev/nvidia1"),
    ("lxc", "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file"),
    ("lxc", "lxc.cgroup2.devices.allow: c 195:* rwm"),
    ("lxc", "lxc.hook.mount: /usr/share/lxc/hooks/nvidia\nlxc.environment: NVIDIA_VISIBLE_DEVICES=all"),
    ("lxc", "lxc.environment: NVIDIA_VISIBLE_DEVICES=all"),
    ("lxc", "lxc.mount.entry: /usr/bin/nvidia-smi usr/bin/nvidia-smi none bind,ro,create=file 0 0"),
    ("lxc", "cores: 2\n[pve:pending]\ndev0: /dev/nvidia0"),
    ("qemu-server", "hostpci0: 0000:41:00,pcie=1"),
    ("qemu-server", "hostpci0: mapping=a6000,pcie=1"),
]


@pytest.mark.parametrize(("kind", "line"), USERS)
def test_while_another_guest_has_a_gpu_all_of_it_stays_and_the_driver_too(node: Node, kind: str, line: str) -> None:
    node.has_gpu()
    node.file("etc/pve/mapping/pci.cfg", f"a6000\n\tmap id=10de:2230,node={os.uname().nodename},path=0000:41:00.0\n")
    node.guest(f"hostname: whisper\nname: whisper\n{line}\n", 140, kind)
    result = node.run()
    assert result["changed"] is False and node.there() == list(cleanup.PATHS) and node.asked() == []
    assert "140 (whisper) has a GPU" in result["notes"][-1] and "/etc/systemd/system/nvidia-persistenced.service" in result["notes"][-1]
    refused = node.run(driver=True)
    assert refused["failed"] and "140 (whisper)" in refused["msg"] and "Nothing was removed" in refused["msg"]


@pytest.mark.parametrize(
    "text", ["hostname: web\n", "hostname: web\n[old]\ndev0: /dev/nvidia0\n", "hostname: web\nlxc.environment: NVIDIA_VISIBLE_DEVICES=void\n"]
)
def test_a_guest_without_a_gpu_keeps_nothing(node: Node, text: str) -> None:
    node.guest(text, 140)
    assert node.run()["changed"] and node.there() == []


def test_a_container_of_the_same_id_that_is_not_ours_counts(node: Node) -> None:
    node.guest(OURS.replace("tags: kpro-llm", ""))
    assert node.run()["changed"] is False and node.there() == list(cleanup.PATHS)


def test_a_process_with_a_gpu_keeps_all_and_the_persistence_daemon_is_none(node: Node) -> None:
    def process(pid: int, unit: str) -> None:
        node.file(f"proc/{pid}/comm", "python3\n")
        node.file(f"proc/{pid}/status", "Uid:\t0\t0\t0\t0\n")
        node.file(f"proc/{pid}/cgroup", f"0::/system.slice/{unit}\n")
        (node.root / f"proc/{pid}/fd").mkdir()
        (node.root / f"proc/{pid}/fd/3").symlink_to("/dev/nvidia0")

    process(10, "nvidia-persistenced.service")
    assert node.run(check=True)["changed"]
    process(11, "render.service")
    result = node.run()
    assert result["changed"] is False and "render.service" in result["notes"][-1]


def test_another_deployment_keeps_all(node: Node) -> None:
    assert node.run(other_users=["whisper of the inventory is deployed there"])["changed"] is False


def test_a_file_that_somebody_else_wrote_stays_and_its_unit_runs_on(node: Node) -> None:
    own = "[Unit]\nDescription=by hand\n"
    node.file("etc/systemd/system/nvidia-persistenced.service", own)
    result = node.run()
    assert node.there() == ["/etc/systemd/system/nvidia-persistenced.service"]
    assert result["notes"] == ["/etc/systemd/system/nvidia-persistenced.service stays: somebody else wrote it"]
    assert not [line for line in node.asked() if "persistenced" in line]


def test_a_look_that_is_not_possible_is_no_good_news(node: Node) -> None:
    (node.root / "etc/pve/lxc").unlink()
    result = node.run()
    assert result["failed"] and "pve-cluster" in result["msg"] and node.there() == list(cleanup.PATHS)
