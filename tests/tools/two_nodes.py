# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two sandbox nodes on one link: kpro6, an old PVE 8, and kpro5, a new PVE 9, with other GPUs. Standard library only.

Apart, each is a node of its own; as a cluster, both are members of one. :func:`start` brings them up, :func:`stop` takes all away.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
import time
import typing as t
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lanes
from plain_node import ROOT, SANDBOX

OLD, NEW = "kpro6", "kpro5"
GPU_STATE = "/etc/kpro-standin/gpu.json"
BOOTS = "/var/lib/kpro-standin/gpu/boots.json"
STORAGES = "/etc/pve/storage.cfg"
HUB = "kpro-standin-hub"
HUB_LOG = "/var/log/kpro-standin-hub/requests.jsonl"
VMID = 129


def gpu(index: int, mark: str, name: str = "NVIDIA RTX A6000", memory_mib: int = 49140, **more: object) -> dict[str, object]:
    """Return one stand-in GPU of a node; ``mark`` (two hexadecimal digits) makes its UUID and bus address the node's own."""
    row: dict[str, object] = {
        "name": name, "uuid": f"GPU-{mark}{index:06x}-7b6f-4f43-9d2a-3c1e8f60a6{mark}", "bus_id": f"0000:{mark}:{index:02x}.0", "minor": index,
        "memory_mib": memory_mib, "compute_capability": "8.6", "pci_id": "0x223010de",
    }  # fmt: skip
    return {**row, **more}


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a node is made as: its GPUs and their verdicts, where the major of nvidia-uvm starts, its storages, its layer."""

    gpus: Sequence[dict[str, object]]
    p2p: str = "ok"
    uvm_boots: int = 0
    storages: str = ""
    layer: str = ""


OLD_KIND = Kind(gpus=(gpu(0, "41"), gpu(1, "41")))
NEW_KIND = Kind(gpus=(gpu(0, "61"), gpu(1, "61")), p2p="none", uvm_boots=1)


@dataclasses.dataclass(frozen=True)
class LinkedNode:
    """One of the two; ``host`` is its name in the inventory, in Proxmox and as a system, ``name`` the sandbox's."""

    name: str
    host: str
    port: int
    address: str

    def run(self, command: str, *, check: bool = True, stdin: str | None = None) -> str:
        """Run a line in the node's shell as root and return its output."""
        done = subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=False, input=stdin)
        if check and done.returncode:
            raise AssertionError(f"{self.host}: {command}: rc {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def pvesh(self, path: str) -> t.Any:
        """Return the answer of ``pvesh get``."""
        return json.loads(self.run(f"pvesh get {path} --output-format json"))

    def inside(self, command: str, *, vmid: int = VMID, check: bool = True) -> str:
        """Run a line in a container's shell as root; it must hold no single quote."""
        assert "'" not in command
        return self.run(f"lxc-attach -n {vmid} --clear-env -- sh -c '{command}'", check=check)

    def kill(self) -> None:
        """Cut its power."""
        _sandbox("kill", self.name)

    def up(self) -> None:
        """Switch it on again, with its disk."""
        _sandbox("up", self.name)

    def reboot(self) -> None:
        """Reboot it in order; returns once it answers again."""
        before = self.run("cat /proc/sys/kernel/random/boot_id")
        self.run("systemctl reboot", check=False)
        for _try in range(400):
            answer = self.run("cat /proc/sys/kernel/random/boot_id", check=False)
            if answer and answer != before:
                self.run("timeout 60 systemctl is-system-running --wait", check=False)
                return
            time.sleep(0.3)
        raise AssertionError(f"{self.host} did not come back")

    def hub(self, on: bool) -> None:
        """Switch its hub on or off (it stands for the internet, and for where the driver comes from)."""
        self.run(f"systemctl {'start' if on else 'stop'} {HUB}")

    def hub_requests(self) -> list[dict[str, t.Any]]:
        """Return what its hub was asked, oldest first."""
        return [json.loads(line) for line in self.run(f"cat {HUB_LOG} 2>/dev/null || true").splitlines()]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Both nodes, the link between them, and an inventory in which kpro6 is the previous node of container 129, ``qwen``."""

    link: str
    old: LinkedNode
    new: LinkedNode
    folder: Path

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.json"

    @property
    def nodes(self) -> tuple[LinkedNode, LinkedNode]:
        return self.old, self.new

    def cut(self, node: LinkedNode | None = None) -> None:
        """Let nothing pass between the nodes (the controller's own way to them stays)."""
        _sandbox("link", self.link, "cut", *([node.name] if node else []))

    def restore(self) -> None:
        """Undo every cut."""
        _sandbox("link", self.link, "restore")

    def shape(self, rate: str) -> None:
        """Limit each direction of the link: "100mbit", or "none"."""
        _sandbox("link", self.link, "shape", rate)

    def carried_bytes(self, to: LinkedNode) -> int:
        """Return how many bytes a node has received over the link since it booted."""
        status = json.loads(_sandbox("link", self.link, "status"))
        return int(status["nodes"][to.name]["received_bytes"])

    def write_inventory(self, node: str = NEW, previous: Sequence[str] = (OLD,), **variables: object) -> Path:
        """Write the inventory: which node the container belongs on, which are previous ones, and further container variables."""
        hosts = {each.host: each for each in self.nodes}
        self.inventory.write_text(json.dumps(inventory_of(hosts, node, previous, variables), indent=1), encoding="utf-8")
        return self.inventory

    def playbook(self, name: str, *arguments: object, check: bool = True, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        """Run a playbook of the collection on the newest lane with this inventory."""
        argv = self.ansible("ansible-playbook", f"kpro.llm.{name}", *arguments)
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, timeout=timeout_s)
        assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done

    def ansible(self, program: str, *arguments: object) -> list[str]:
        """Return the command of an Ansible program on the newest lane, with this inventory."""
        tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
        return [str(tools / program), "-i", str(self.inventory), *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of Ansible programs."""
        return {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}


def _sandbox(*arguments: str) -> str:
    done = subprocess.run([SANDBOX, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"sandbox {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def start(prefix: str, folder: Path, *, cluster: bool = False, old: Kind = OLD_KIND, new: Kind = NEW_KIND) -> Pair:
    """Start both nodes side by side; ``prefix`` is theirs and the link's, so that several pairs can run at once."""
    link = f"{prefix}-link"

    def one(host: str, suite: str, kind: Kind) -> LinkedNode:
        origin = ["--layer", kind.layer] if kind.layer else ["--suite", suite]
        return up(f"{prefix}-{host}", host, kind, *origin, "--link", link, *(["--cluster"] if cluster else []))

    try:
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(one, OLD, "bookworm", old), pool.submit(one, NEW, "trixie", new)]
            pair = Pair(link, jobs[0].result(), jobs[1].result(), folder)
    except BaseException:
        take_away(prefix)
        raise
    pair.write_inventory()
    return pair


def up(name: str, host: str, kind: Kind, *options: str) -> LinkedNode:
    """Start one node of a kind."""
    with _files(kind) as files:
        _sandbox("up", name, "--hostname", host, *options, *files)
    status = json.loads(_sandbox("status", name, "--json"))[0]
    return LinkedNode(name, host, status["port"], status["link_address"])


def stop(pair: Pair) -> None:
    """Stop both nodes and remove their disks; the link goes with them."""
    take_away(pair.link.removesuffix("-link"))


def take_away(prefix: str) -> None:
    """Stop the nodes of a prefix and remove their disks, if they are there."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda host: _sandbox("down", f"{prefix}-{host}"), (OLD, NEW)))


@contextlib.contextmanager
def _files(kind: Kind) -> t.Iterator[list[str]]:
    """Write what makes a node the given kind and yield the options of ``sandbox up`` that bring it there."""
    contents = {
        GPU_STATE: json.dumps({"gpus": list(kind.gpus), "p2p": kind.p2p, "topology": "NODE", "nvlinks": 0, "nouveau": False}),
        BOOTS: json.dumps(kind.uvm_boots),
        **({STORAGES: kind.storages} if kind.storages else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        options = []
        for number, (path, text) in enumerate(contents.items()):
            source = Path(folder) / str(number)
            source.write_text(text, encoding="utf-8")
            options += ["--file", f"{source}:{path}"]
        yield options


def inventory_of(hosts: dict[str, LinkedNode], node: str, previous: Sequence[str], variables: dict[str, object]) -> dict[str, object]:
    """Return the inventory as a user would write it; what differs from a real one is where things come from and the engine lane."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    files = "http://10.77.0.1:8090/files"
    access = {
        "ansible_host": "127.0.0.1",
        "ansible_user": "root",
        "ansible_ssh_private_key_file": f"{base}/ssh/id_ed25519",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={base}/ssh/known_hosts -o IdentitiesOnly=yes",
    }
    of_nodes = {
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpu_node__driver_url": f"{files}/driver/NVIDIA-Linux-x86_64-{{{{ gpu_node__driver_version }}}}.run",
    }
    qwen = {"pct_vmid": VMID, "pct_node": node, "ansible_connection": "kpro.llm.pct", "ansible_port": hosts[node].port, **_container(files), **variables}

    def group(names: Sequence[str]) -> dict[str, object]:
        return {"hosts": {name: {"ansible_port": hosts[name].port, "link_address": hosts[name].address} for name in names}, "vars": of_nodes}

    groups: dict[str, object] = {"llm_node": group([node]), "llm_container": {"hosts": {"qwen": qwen}}}
    if previous:
        groups["llm_node_previous"] = group(previous)
    return {"all": {"vars": access, "children": groups}}


def _container(files: str) -> dict[str, object]:
    return {
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpu_container__vmid": "{{ pct_vmid }}",
        "gpu_container__hostname": "qwen",
        "gpu_container__template": "debian-12-standard_12.12-1_amd64.tar.zst",
        "gpu_container__storage": "local-zfs",
        "gpu_container__rootfs_gib": 16,
        "gpu_container__cores": 2,
        "gpu_container__memory_mib": 8192,
        "gpu_container__network": {"bridge": "vmbr0", "ip": f"10.77.0.{VMID}/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
        "gpu_container__gpus": 1,
        "gpu_container__mounts": [{"source": "/srv/models", "target": "/srv/models"}],
        "gpu_container__onboot": True,
        "gpu_container__restart": True,
        "sglang_runtime__lane": "cpu",
        "sglang_runtime__find_links": [f"{files}/wheels/"],
        "sglang_runtime__ca_certificates": "{{ query('ansible.builtin.fileglob', '/usr/local/share/ca-certificates/*.crt') }}",
        "hf_model__endpoint": "http://10.77.0.1:8090",
        "hf_model__repository": "kpro/tiny-qwen3_5",
        "hf_model__revision": "main",
        "hf_model__lock_file": "{{ inventory_dir }}/models.txt",
        # The controller comes to the nodes by forwarded ports, they to each other over the link.
        "peer_access__address": "{{ hostvars[peer_access__peer]['link_address'] }}",
        "peer_access__port": 22,
        "sglang_server__served_name": "kpro/tiny-qwen3_5",
        "sglang_server__port": 30000,
        "sglang_server__tp_size": 1,
        "sglang_server__options": {"context_length": 8192, "max_running_requests": 4},
        "sglang_server__question": "Who are you?",
        "sglang_server__answer_pattern": "Hello from the tiny test model",
    }


def eventually(condition: Callable[[], object], timeout_s: float = 60) -> bool:
    """Tell whether a condition comes true within a generous time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True
