# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two deployments of the light engine, ``qwen`` and ``other``, on one node or on a node each. Standard library only.

Both serve in the layer from which a node starts, so that a test breaks one of them in a phase and looks at both after seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

import layers
import light_deployment as light
import prepared_nodes
import two_nodes
from two_nodes import NEW_KIND, OLD_KIND, Kind, LinkedNode, eventually

import lanes
from plain_node import ROOT, SANDBOX

QWEN, OTHER = "qwen", "other"
VMIDS = {QWEN: 129, OTHER: 130}
KINDS = {"kpro5": ("trixie", NEW_KIND), "kpro6": ("bookworm", OLD_KIND)}


@dataclasses.dataclass(frozen=True)
class Deployments:
    """Two deployments and the inventory that names them.

    :param nodes: the node of each deployment; the same one twice, or two.
    """

    nodes: t.Mapping[str, LinkedNode]
    folder: Path

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.json"

    def machines(self) -> list[LinkedNode]:
        """Return each node once."""
        return list({node.name: node for node in self.nodes.values()}.values())

    def write(self, more: t.Mapping[str, t.Mapping[str, object]] | None = None, everywhere: t.Mapping[str, object] | None = None) -> None:
        """Write the inventory; ``more`` has further variables by host, ``everywhere`` those of the group "all"."""
        hosts = {node.host: node for node in self.machines()}
        made = {name: two_nodes.inventory_of(hosts, node.host, (), self.variables(name)) for name, node in self.nodes.items()}
        whole: dict[str, t.Any] = made[QWEN]
        children = whole["all"]["children"]
        deployments = {name: _children(each)["llm_container"]["hosts"]["qwen"] for name, each in made.items()}
        machines = {host: row for each in made.values() for host, row in _children(each)["llm_node"]["hosts"].items()}
        for name, values in (more or {}).items():
            (deployments if name in deployments else machines)[name].update(values)
        children["llm_container"]["hosts"], children["llm_node"]["hosts"] = deployments, machines
        whole["all"]["vars"].update(everywhere or {})
        self.inventory.write_text(json.dumps(whole, indent=1), encoding="utf-8")

    def gpu(self, name: str) -> str:
        """Return the UUID of a deployment's GPU."""
        return str(KINDS[self.nodes[name].host][1].gpus[list(VMIDS).index(name)]["uuid"])

    def variables(self, name: str) -> dict[str, object]:
        """Return what the inventory says of a deployment, unless a test says more."""
        vmid = VMIDS[name]
        return light.variables(
            self.folder,
            pct_vmid=vmid,
            gpu_container__hostname=name,
            gpu_container__network={"bridge": "vmbr0", "ip": f"10.77.0.{vmid}/24", "gw": "10.77.0.1", "nameserver": "10.0.2.3"},
            gpu_container__gpus=[self.gpu(name)],
            gpu_container__mounts=[{"source": f"/srv/{name}", "target": "/srv/models"}],
        )

    def playbook(self, name: str, *arguments: object, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a playbook of the collection on the newest lane."""
        tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
        argv = [str(tools / "ansible-playbook"), "-i", str(self.inventory), f"kpro.llm.{name}", *map(str, arguments)]
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=900, cwd=self.folder)
        assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done

    def serves(self, name: str) -> bool:
        """Tell whether a deployment answers."""
        return "200" in self.nodes[name].run(f"curl -s -o /dev/null -w '%{{http_code}}' http://10.77.0.{VMIDS[name]}:30000/health || true", check=False)

    def wait_until_up(self) -> None:
        """Wait until both answer."""
        for name in self.nodes:
            assert eventually(lambda name=name: self.serves(name), 180), name


def _children(inventory: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    found: dict[str, t.Any] = inventory["all"]["children"]
    return found


def start(prefix: str, folder: Path, *, hosts: t.Mapping[str, str]) -> Deployments:
    """Start the nodes of both deployments (``hosts``: the name of each one's node) from their layers, and wait until both serve."""
    of: dict[str, LinkedNode] = {}
    for host in dict.fromkeys(hosts.values()):
        suite, kind = KINDS[host]
        there = tuple(name for name in VMIDS if hosts[name] == host)
        layer = layers.made(f"hosts-{host}-{len(there)}", _content(suite, kind), lambda name, given=(host, there): _provision(name, *given))
        of[host] = two_nodes.up(f"{prefix}-{host}", host, kind, "--layer", layer)
    made = Deployments({name: of[host] for name, host in hosts.items()}, folder)
    _lock(made)
    made.write()
    made.wait_until_up()
    return made


def stop(prefix: str, hosts: t.Iterable[str]) -> None:
    """Stop the nodes and remove their disks."""
    for host in dict.fromkeys(hosts):
        subprocess.run([SANDBOX, "down", f"{prefix}-{host}"], check=True)


def _content(suite: str, kind: Kind) -> str:
    recipe = inspect.getsource(sys.modules[__name__]) + inspect.getsource(light)
    return f"{prepared_nodes.content_key(suite, kind)}-{hashlib.sha256(recipe.encode() + light.wheel()).hexdigest()[:12]}"


def _provision(name: str, host: str, there: tuple[str, ...]) -> None:
    suite, kind = KINDS[host]
    with tempfile.TemporaryDirectory() as folder:
        node = two_nodes.up(name, host, kind, "--suite", suite)
        light.publish(node)
        made = Deployments(dict.fromkeys(VMIDS, node), Path(folder))
        made.write()
        made.playbook("deploy_qwen", "--limit", ",".join((*there, host)), check=True)
        node.run(f"truncate -s 0 {two_nodes.HUB_LOG} 2>/dev/null || true")


def _lock(made: Deployments) -> None:
    """Write the model's commit beside the inventory, as the deployment has left it."""
    manifests = next(iter(made.nodes.values())).run("cat /srv/*/*/.kpro-manifest.json | head -c 100000")
    commit = json.JSONDecoder().raw_decode(manifests)[0]["commit"]
    (made.folder / "models.txt").write_text(f"kpro/tiny-qwen3_5 main {commit}\n", encoding="utf-8")
