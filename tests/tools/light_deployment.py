# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole deployment on a lane for GPUs, with the light engine in place of SGLang: what it derives from the hardware, and a start within a second.

The engine travels as a wheel named by a lock file of one's own (``sglang_runtime__lock``), as a user's own build would. Driver, userland, CUDA, plan,
environment, model and service run in full on the GPU stand-in. Standard library only.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import inspect
import json
import subprocess
import sys
import tempfile
import typing as t
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import layers
import prepared_nodes
import two_nodes
from two_nodes import NEW, OLD, Kind, LinkedNode, Pair

from plain_node import ROOT, SANDBOX

VERSION = "0.5.23"
ANSWER = "Hello from the tiny test model"
_LIGHT = ROOT / "tests/sandbox/engine/light"
_PACKAGES = "lib/python3.11/site-packages"
_INFO = f"sglang-{VERSION}.dist-info"
_SCENARIO = {"steps": [{"start": {"case": "9b-2x4090", "scale": 0.004}}, {"listen": 0}, {"sleep": 0.3}, {"healthy": True}], "answer": f"{ANSWER}."}


def variables(folder: Path, **more: object) -> dict[str, object]:
    """Return what the inventory says besides that of two_nodes; ``folder`` gets the lock file."""
    lock = folder / "light.txt"
    lock.write_text(f"sglang=={VERSION} \\\n    --hash=sha256:{hashlib.sha256(wheel()).hexdigest()}\n", encoding="ascii")
    return {
        "sglang_runtime__lane": "cu13",
        # Nothing is compiled.
        "sglang_runtime__toolkit": False,
        "sglang_runtime__lock": str(lock),
        "sglang_runtime__find_links": ["http://10.77.0.1:8090/files/light/"],
        "gpu_container__gpus": "all",
        "sglang_server__tp_size": "auto",
        "sglang_server__options": {"context_length": 8192, "max_running_requests": 4, "mem_fraction_static": 0.85, "mamba_ssm_dtype": "float32"},
        "sglang_server__environment": {"KPRO_LIGHT_SCENARIO": f"/opt/kpro-llm/sglang/venv/{_PACKAGES}/sglang/scenario.json"},
        "sglang_server__ready_timeout_s": 300,
        **more,
    }


def wheel() -> bytes:
    """Return the light engine as a wheel of SGLang's name and version; the bytes depend on its sources alone."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-B", _LIGHT / "install", f"{folder}/env", "--version", VERSION], check=True)
        packages = Path(folder) / "env" / _PACKAGES
        (packages / "sglang/scenario.json").write_text(json.dumps(_SCENARIO), encoding="utf-8")
        (packages / _INFO / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: kpro\nRoot-Is-Purelib: true\nTag: py3-none-any\n", encoding="utf-8")
        members = {path.relative_to(packages).as_posix(): path.read_bytes() for path in sorted(packages.rglob("*")) if path.is_file()}
        members[f"{_INFO}/RECORD"] = "".join([*(_record(name, data) for name, data in members.items()), f"{_INFO}/RECORD,,\n"]).encode()
        target = Path(folder) / "wheel"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
        return target.read_bytes()


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def publish(node: LinkedNode) -> None:
    """Let the node's hub serve the tiny model and the light engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "light" / f"sglang-{VERSION}-py3-none-any.whl"
        path.parent.mkdir()
        path.write_bytes(wheel())
        subprocess.run([SANDBOX, "publish", node.name, "--hub", prepared_nodes.content() / "hub", "--files", folder], check=True)


def deployed(host: str = OLD, suite: str = "bookworm", kind: Kind = two_nodes.OLD_KIND) -> str:
    """Return the name of the layer of a node, made first if it is not there: kpro6 serves (once it has booted), kpro5 has its driver."""
    recipe = hashlib.sha256(inspect.getsource(sys.modules[__name__]).encode() + wheel()).hexdigest()[:12]
    content = f"{prepared_nodes.content_key(suite, kind)}-{recipe}"
    return layers.made(f"light-{host}", content, lambda name: _provision(name, host, suite, kind))


def start(prefix: str, folder: Path, *, cluster: bool = False, old: Kind = two_nodes.OLD_KIND, new: Kind = two_nodes.NEW_KIND) -> Pair:
    """Start a pair whose kpro6 serves from container 129 (once it has booted) and whose kpro5 has its driver; two_nodes.stop ends it.

    The inventory names kpro5, with an address of its own, as both containers run for a while.
    """
    with ThreadPoolExecutor(2) as pool:
        old_layer, new_layer = pool.map(lambda job: deployed(*job), ((OLD, "bookworm", old), (NEW, "trixie", new)))
    old, new = dataclasses.replace(old, layer=old_layer), dataclasses.replace(new, layer=new_layer)
    pair = two_nodes.start(prefix, folder, cluster=cluster, old=old, new=new)
    prepared_nodes.write_models_lock(pair)
    pair.write_inventory(**variables(folder, gpu_container__network=prepared_nodes.NEW_NETWORK))
    return pair


def _provision(name: str, host: str, suite: str, kind: Kind) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = two_nodes.up(name, host, kind, "--suite", suite)
        publish(node)
        pair = Pair("", node, node, Path(folder))
        pair.write_inventory(host, (), **variables(Path(folder)))
        pair.playbook("deploy_qwen", *(["--tags", "node"] if host == NEW else []))
        node.run(f"truncate -s 0 {two_nodes.HUB_LOG} 2>/dev/null || true")


def served(kind: Kind) -> Kind:
    """Return the kind of a node that starts from that layer."""
    return dataclasses.replace(kind, layer=deployed(kind=kind))


def facts(node: LinkedNode, vmid: int = two_nodes.VMID) -> dict[str, t.Any]:
    """Return what is in force in the container: options, environment and gate of the service."""
    program = (
        "import json; e = dict(l.rstrip().replace(chr(34), \"\").split(\"=\", 1) for l in open(\"/etc/kpro-llm/sglang.env\") if \"=\" in l and l[0] != \"#\");"
        " o = dict(l.rstrip().split(\": \", 1) for l in open(\"/etc/kpro-llm/sglang.yaml\") if \": \" in l and l[0] != \"#\");"
        " print(json.dumps({\"environment\": e, \"options\": o}))"
    )  # fmt: skip
    return json.loads(node.run(f"lxc-attach -n {vmid} --clear-env -- python3 -c '{program}'"))
