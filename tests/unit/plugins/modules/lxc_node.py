# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a folder: the sandbox's Proxmox stand-in as ``pvesh`` on PATH, with containers that only remember whether they run."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import stat
import sys
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kpro.llm.plugins.module_utils._pve_host import Host
from ansible_collections.kpro.llm.plugins.modules import lxc_container

STAND_IN = pathlib.Path(__file__).parents[3] / "sandbox" / "proxmox"
TEMPLATE = "debian-12-standard_12.12-1_amd64.tar.zst"
GPUS = [
    {"uuid": "GPU-aaaa", "minor": 0, "bus_id": "00000000:41:00.0", "name": "NVIDIA RTX A6000", "memory_mib": 49140},
    {"uuid": "GPU-bbbb", "minor": 1, "bus_id": "00000000:C1:00.0", "name": "NVIDIA RTX A6000", "memory_mib": 49140},
]
NVIDIA_NODES = {"nvidia0": (195, 0), "nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}

PVESH = '''#!{python}
import json, os, pathlib, sys
sys.path.insert(0, {stand_in!r})
from kpro_standin_pve import cli_options, cli_pvesh, devices, lxc_config
from kpro_standin_pve.driver import HotplugError, StartError
from kpro_standin_pve.node import Node

ROOT = pathlib.Path({root!r})
with open(ROOT / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
faults = json.loads((ROOT / "faults").read_text())


class Remembering:
    """A runtime that keeps no more than a file for each running container."""

    def _mark(self, vmid):
        return ROOT / "running" / vmid

    def is_running(self, node, vmid):
        return self._mark(vmid).exists()

    def init_pid(self, node, vmid):
        return None

    def write_runtime_config(self, node, vmid, config):
        devices.all_of(node, config.current.values)

    def start(self, node, vmid, config):
        for volume, _target, _read_only in lxc_config.bind_mounts(config.current.values):
            if volume.startswith("/") and not node.path(volume).exists():
                raise StartError(["run_buffer: 571 Script exited with status 2"])
        self.write_runtime_config(node, vmid, config)
        self._mark(vmid).write_text("")

    def kill(self, node, vmid):
        self._mark(vmid).unlink()

    def shutdown(self, node, vmid, timeout_s):
        if faults.get("hangs"):
            return False
        self._mark(vmid).unlink()
        return True

    def hotplug(self, node, vmid, key, value, config):
        if key in faults.get("no_hotplug", ()):
            raise HotplugError("refused")

    def unpack(self, archive, rootfs, unprivileged, log):
        (rootfs / "etc").mkdir()
        (rootfs / "etc/os-release").write_text("ID=debian\\n")

    def forget(self, node, vmid):
        pass


node = Node(ROOT, os.uname().nodename.split(".")[0], Remembering(), major={major!r}, lock_wait_s=0.2, notice=cli_options.notice)
code = cli_pvesh.run(node, sys.argv[1], sys.argv[2:])
lost = faults.get("lost_answer", "")
if lost and lost == " ".join(sys.argv[1:3]):
    # As recorded: the work was done, the caller reads of a lock that could not be had.
    (ROOT / "faults").write_text("{{}}")
    sys.stdout.flush()
    sys.exit("can't lock file '/run/lock/lxc/pve-config-129.lock' - got timeout")
sys.exit(code)
'''
ATTACH = '#!/bin/sh\n[ -e "{root}/running/$2" ] && echo running && exit 0\necho "lxc-attach: not running" >&2\nexit 1\n'


class LxcNode:
    """The node: its files below ``root``, and the module run against it."""

    def __init__(self, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.name = os.uname().nodename.split(".")[0]
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for folder in ("bin", "running", "dev", "srv", "proc", "run/lock/lxc", "sys/class/net/vmbr0", "rpool/data", "var/lib/vz/template/cache"):
            (root / folder).mkdir(parents=True)
        pve = root / "etc/pve"
        for kind in ("lxc", "qemu-server"):
            (pve / "nodes" / self.name / kind).mkdir(parents=True)
            (pve / kind).symlink_to(f"nodes/{self.name}/{kind}")
        (pve / "storage.cfg").write_text((STAND_IN / "storage.cfg").read_text(encoding="utf-8"), encoding="utf-8")
        self.file(f"var/lib/vz/template/cache/{TEMPLATE}", "archive")
        self.file("proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n")
        self.faults()
        self.release("13")
        self._program("lxc-attach", ATTACH.format(root=root))
        monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(lxc_container, "Host", functools.partial(Host, root))
        for device, numbers in NVIDIA_NODES.items():
            self.device(f"dev/{device}", *numbers)

    def _program(self, name: str, content: str) -> None:
        self.file(f"bin/{name}", content).chmod(0o755)

    def release(self, major: str) -> None:
        """Play Proxmox VE 8 ("12") or 9 ("13")."""
        self._program("pvesh", PVESH.format(python=sys.executable, stand_in=str(STAND_IN), root=str(self.root), major=major))

    def faults(self, **faults: t.Any) -> None:
        """Set what goes wrong from now on."""
        self.file("faults", json.dumps(faults))

    def file(self, path: str, content: str) -> pathlib.Path:
        """Write a file of the node."""
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(content, encoding="utf-8")
        return found

    def device(self, path: str, major: int, minor: int) -> None:
        """Make a character device node."""
        os.mknod(self.root / path, stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def config_path(self, vmid: int = 129) -> pathlib.Path:
        """Return a container's configuration file."""
        return self.root / "etc/pve/lxc" / f"{vmid}.conf"

    def config(self, vmid: int = 129) -> str:
        """Return a container's configuration as stored."""
        return self.config_path(vmid).read_text(encoding="utf-8")

    def has(self, content: str, vmid: int = 129, running: bool = False, kind: str = "lxc", node: str = "") -> None:
        """Put a guest there that somebody else made."""
        self.file(f"etc/pve/nodes/{node or self.name}/{kind}/{vmid}.conf", content)
        if running:
            self.file(f"running/{vmid}", "")

    def is_running(self, vmid: int = 129) -> bool:
        """Tell whether a container runs."""
        return (self.root / "running" / str(vmid)).exists()

    def calls(self, *verbs: str) -> list[list[str]]:
        """Return the arguments of all calls of pvesh so far, of some verbs only."""
        lines = (self.root / "calls").read_text(encoding="utf-8").splitlines() if (self.root / "calls").exists() else []
        found = [json.loads(line) for line in lines]
        return [argv for argv in found if not verbs or argv[0] in verbs]

    def writes(self) -> list[list[str]]:
        """Return the calls that may change something."""
        return self.calls("create", "set", "delete")

    def run(self, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        """Run the module and return what it printed."""
        arguments = {**options, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            lxc_container.main()
        # AnsibleModule reads its arguments once a process.
        self._monkeypatch.setattr(basic, "_ANSIBLE_ARGS", None, raising=False)
        return json.loads(self._capsys.readouterr().out.strip().splitlines()[-1])

    def deploy(self, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        """Run the module with the declaration of a usual container."""
        usual: dict[str, t.Any] = {
            "vmid": 129,
            "hostname": "qwen",
            "template": TEMPLATE,
            "storage": "local-zfs",
            "rootfs_gib": 2,
            "cores": 2,
            "memory_mib": 2048,
            "swap_mib": 0,
            "onboot": True,
            "features": {"nesting": True},
            "network": {"bridge": "vmbr0", "ip": "10.77.0.129/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
            "mounts": [{"source": "/srv/models", "target": "/srv/models"}],
            "gpus": 1,
            "node_gpus": GPUS,
        }
        return self.run(check, **{**usual, **options})
