# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a folder: the sandbox's Proxmox stand-in as ``pvesh`` on PATH, with containers that only remember whether they run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import time
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kpro.llm.plugins.module_utils._pve.host_edge import Host
from ansible_collections.kpro.llm.plugins.modules import lxc_container

STAND_IN = pathlib.Path(__file__).parents[3] / "sandbox" / "proxmox"
TEMPLATE = "debian-12-standard_12.12-1_amd64.tar.zst"
GPUS = [
    {"uuid": "GPU-aaaa", "minor": 0, "bus_id": "00000000:41:00.0", "name": "NVIDIA RTX A6000", "memory_mib": 49140},
    {"uuid": "GPU-bbbb", "minor": 1, "bus_id": "00000000:C1:00.0", "name": "NVIDIA RTX A6000", "memory_mib": 49140},
]
NVIDIA_NODES = {"nvidia0": (195, 0), "nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}

# The program on PATH hands its arguments to the process of lxc_standin.py.
PROGRAM = """#!{python} -SEI
import json, socket, sys
with socket.socket(socket.AF_UNIX) as wire:
    wire.connect({address!r})
    with wire.makefile("rw", encoding="utf-8") as talk:
        talk.write(json.dumps([{root!r}, {name!r}, sys.argv[1:]]) + "\\n")
        talk.flush()
        code, stdout, stderr = json.loads(talk.readline())
sys.stdout.write(stdout)
sys.stderr.write(stderr)
sys.exit(code)
"""
ATTACH = '#!/bin/sh\n[ -e "{root}/running/$2" ] && echo running && exit 0\necho "lxc-attach: not running" >&2\nexit 1\n'


def _await_end(process: int, limit_s: float = 20.0) -> None:
    """Wait until a process that isn't our child has ended."""
    end = time.monotonic() + limit_s
    with contextlib.suppress(OSError):
        while pathlib.Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < end, f"process {process} did not end within {limit_s:g} s"
            time.sleep(0.02)


@contextlib.contextmanager
def stand_in(folder: pathlib.Path) -> t.Iterator[str]:
    """Run the stand-in's process; return the address at which it listens."""
    address = str(folder / "pvesh.socket")
    program = [sys.executable, str(pathlib.Path(__file__).with_name("lxc_standin.py")), address, str(STAND_IN)]
    with subprocess.Popen(program, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}) as server:
        while not os.path.exists(address) and server.poll() is None:
            time.sleep(0.02)
        try:
            yield address
        finally:
            server.terminate()


@contextlib.contextmanager
def https_front(node: LxcNode) -> t.Iterator[dict[str, t.Any]]:
    """Run the API over https for a node; return the options that lead to it, without a login."""
    pem, key = node.root / "api.pem", node.root / "api.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(pem), *subject], check=True, capture_output=True)
    program = [sys.executable, str(pathlib.Path(__file__).with_name("lxc_standin.py")), str(node.root), str(STAND_IN)]
    with subprocess.Popen(program, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}) as server:
        while not (node.root / "port").exists() and server.poll() is None:
            time.sleep(0.02)
        port = int((node.root / "port").read_text(encoding="ascii"))
        try:
            yield {"api_host": "127.0.0.1", "api_port": port, "api_ca_file": str(pem), "node": node.name}
        finally:
            server.terminate()


class LxcNode:
    """The node: its files below ``root``, and the module run against it."""

    def __init__(self, address: str, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.name = os.uname().nodename.split(".")[0]
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for folder in ("bin", "running", "answered", "dev", "srv", "proc", "run/lock/lxc", "sys/class/net/vmbr0", "rpool/data", "var/lib/vz/template/cache"):
            (root / folder).mkdir(parents=True)
        pve = root / "etc/pve"
        for kind in ("lxc", "qemu-server"):
            (pve / "nodes" / self.name / kind).mkdir(parents=True)
            (pve / kind).symlink_to(f"nodes/{self.name}/{kind}")
        (pve / "storage.cfg").write_text((STAND_IN / "storage.cfg").read_text(encoding="utf-8"), encoding="utf-8")
        self.file(f"var/lib/vz/template/cache/{TEMPLATE}", "archive")
        self.file("proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n")
        for name in ("pvesh", "pct", "pvesm", "pveam"):
            self.program(name, PROGRAM.format(python=sys.executable, address=address, root=str(root), name=name))
        self.faults()
        self.release("13")
        self.program("lxc-attach", ATTACH.format(root=root))
        monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(lxc_container, "Host", functools.partial(Host, root))
        for device, numbers in NVIDIA_NODES.items():
            self.device(f"dev/{device}", *numbers)

    def program(self, name: str, content: str) -> None:
        """Put a program on the node's PATH."""
        self.file(f"bin/{name}", content).chmod(0o755)

    def release(self, major: str) -> None:
        """Play Proxmox VE 8 ("12") or 9 ("13")."""
        self.file("major", major)

    def faults(self, **faults: t.Any) -> None:
        """Set what goes wrong from now on."""
        self.file("faults", json.dumps(faults))

    def forget_calls(self) -> None:
        """Count calls from now on."""
        self.file("calls", "")

    def file(self, path: str, content: str) -> pathlib.Path:
        """Write a file of the node."""
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        written = found.with_name(f"{found.name}.written")
        written.write_text(content, encoding="utf-8")
        # In one step: a run that goes on beside the test must not read half of it.
        written.replace(found)
        return found

    def shows_inside(self, pid: int, device: str, major: int, minor: int) -> None:
        """Let the running container, whose init has this process id, have a device node."""
        self.file("pid", str(pid))
        (self.root / f"proc/{pid}/root/dev").mkdir(parents=True, exist_ok=True)
        self.device(f"proc/{pid}/root/dev/{device}", major, minor)

    def holds_gpu(self, pid: int, inside: int, *argv: str, vmid: int = 129) -> None:
        """Have a process of a container hold the first GPU's device node."""
        self.file(f"proc/{pid}/cgroup", f"0::/lxc/{vmid}/ns/init.scope\n")
        self.file(f"proc/{pid}/status", f"Name:\t{argv[0]}\nUid:\t100000\t100000\t100000\t100000\nNSpid:\t{pid}\t{inside}\n")
        self.file(f"proc/{pid}/cmdline", "\0".join(argv) + "\0")
        self.file(f"proc/{pid}/comm", argv[0])
        (self.root / f"proc/{pid}/fd").mkdir()
        (self.root / f"proc/{pid}/fd/3").symlink_to("/dev/nvidia0")

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

    def offers(self, name: str) -> str:
        """Have Proxmox offer a template for download; return the index file's content."""
        archive = self.file("srv/download", "archive of a template")
        entry = {"source": "/srv/download", "sha512sum": hashlib.sha512(archive.read_bytes()).hexdigest(), "section": "system"}
        content = json.dumps({name: entry})
        self.file("var/lib/pve-manager/apl-info/kpro-standin.json", content)
        return content

    def index_comes_with_update(self, name: str) -> None:
        """Offer a template only after ``pveam update``."""
        content = self.offers(name)
        index = self.root / "var/lib/pve-manager/apl-info/kpro-standin.json"
        index.rename(self.root / "index")
        assert content
        self.program("pveam", f'#!/bin/sh\n[ "$1" = update ] && cp "{self.root}/index" "{index}"\n')

    def pct(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of the node as a person would."""
        return subprocess.run(line, shell=True, capture_output=True, text=True, check=False, cwd=self.root)

    def kill_calls(self, *words: str) -> int:
        """Kill, as the kernel would, the processes of pvesh on this node that have these words; return how many.

        Their part in the stand-in's process is gone, too, on return: a worker that writes its next line can't reach it any more.
        """
        killed = 0
        for process in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                argv = pathlib.Path("/proc", process, "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
                if str(self.root / "bin/pvesh") in argv and all(word in argv for word in words):
                    part = int((self.root / "answered" / process).read_text(encoding="ascii"))
                    os.kill(int(process), signal.SIGKILL)
                    killed += 1
                    _await_end(part)
        return killed

    def is_running(self, vmid: int = 129) -> bool:
        """Tell whether a container runs."""
        return (self.root / "running" / str(vmid)).exists()

    def calls(self, *verbs: str) -> list[list[str]]:
        """Return the arguments of all calls of pvesh so far, of some verbs only."""
        lines = (self.root / "calls").read_text(encoding="utf-8").splitlines() if (self.root / "calls").exists() else []
        return [argv for argv in map(json.loads, lines) if not verbs or argv[0] in verbs]

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
