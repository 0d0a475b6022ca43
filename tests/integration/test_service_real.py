# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real engine on the CPU: ready in one go, and its failures explained from its own log. Slow: only with KPRO_TEST_EVERYTHING."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest
import service_node
from service_node import ServiceNode
from test_service_faults import UNIT, Running, foreign, logged, until

from conftest import ROOT, SANDBOX

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(not os.environ.get("KPRO_TEST_EVERYTHING"), reason="a larger matrix: set KPRO_TEST_EVERYTHING=1"),
]

VMID = 129


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceNode, subprocess.CompletedProcess[str]]]:
    """A node on which the whole deployment ran once, and what it printed."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    subprocess.run([ROOT / "tests/sandbox/prepare", f"{base}/content"], check=True, capture_output=True)
    node = service_node.up("service-real", tmp_path_factory.mktemp("real"), vmid=VMID)
    try:
        subprocess.run([SANDBOX, "publish", node.name, "--hub", f"{base}/content/hub", "--files", f"{base}/content/files"], check=True, capture_output=True)
        argv = [*node.ansible("ansible-playbook", "deploy_qwen.yml")[:1], "deploy_qwen.yml", "-i", "inventories/sandbox"]
        env = {**node.environment, "KPRO_SANDBOX_PORT": str(node.port)}
        done = subprocess.run([*argv, "-e", json.dumps({"hf_model__lock_file": ""})], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        yield node, done
    finally:
        if not os.environ.get("KPRO_TEST_KEEP_NODE"):
            service_node.stop(node)


@pytest.fixture(scope="module")
def model(deployed: tuple[ServiceNode, subprocess.CompletedProcess[str]]) -> str:
    """The path of the deployed model, asked before any test configures another one."""
    node, done = deployed
    assert done.returncode == 0, done.stdout
    text = node.inside("cat /etc/kpro-llm/sglang.yaml")
    return str(json.loads(next(line for line in text.splitlines() if line.startswith("model-path: ")).partition(": ")[2]))


@pytest.fixture
def node(deployed: tuple[ServiceNode, subprocess.CompletedProcess[str]], model: str) -> Iterator[ServiceNode]:
    node = deployed[0]
    # Without a last good configuration to restore, which would be one start more for each test.
    node.inside(f"systemctl stop {UNIT} foreign 2>/dev/null; systemctl reset-failed; rm -rf /srv/broken /var/lib/kpro-llm/last_good.json", check=False)
    yield node
    Running.end_all()


def begin(node: ServiceNode, model: str) -> Running:
    """Begin the service phase alone, with what the deployment would pass on."""
    unit = node.inside(f"cat /etc/systemd/system/{UNIT}")
    venv = re.search(r" (\S+)/bin/python ", unit)
    assert venv is not None, unit
    return Running(
        node,
        {
            "sglang_server__venv": venv[1],
            "sglang_server__model_path": model,
            "sglang_server__served_name": "kpro/tiny-qwen3_5",
            "sglang_server__lane": "cpu",
            "sglang_server__devices": [],
            "sglang_server__environment": {},
            "sglang_server__options": {"context_length": 8192, "max_running_requests": 4},
            "sglang_server__ready_timeout_s": 900,
        },
    )


def broken_copy(node: ServiceNode, model: str, change: str) -> str:
    """Copy the model and damage the copy; return its path."""
    node.inside(f"cp -rL {model} /srv/broken && cd /srv/broken && {change}")
    return "/srv/broken"


def test_ready_in_one_go(deployed: tuple[ServiceNode, subprocess.CompletedProcess[str]]) -> None:
    node, done = deployed
    assert done.returncode == 0, done.stdout
    assert "Hello from the tiny test model" in done.stdout and "unreachable=0" in done.stdout and "rescued=0" in done.stdout
    assert node.inside(f"systemctl show -P NRestarts {UNIT}").strip() == "0"
    # The person at the terminal saw it load.
    assert "next: " in done.stdout


def test_killed_scheduler(node: ServiceNode, model: str) -> None:
    ended = begin(node, model).end()
    assert ended.rc == 0 and ended.result["ready"], ended.output
    # Its processes by their names, as the real engine gives them.
    processes = f"$(cat /sys/fs/cgroup$(systemctl show -P ControlGroup {UNIT})/cgroup.procs)"
    node.inside(f"for pid in {processes}; do grep -q sglang::sched /proc/$pid/comm && kill -9 $pid; done; true")
    seen = node.module("sglang_ready", identity=ended.result["identity"], port=service_node.PORT, level="health")
    found = seen["details"]["diagnosis"]
    assert found["class"] == "child_killed" and "signal 9" in found["cause"] and "kernel" in found["remedy"], found
    assert "crashed with exit code -9" in found["evidence"][0]


def test_port_conflict(node: ServiceNode, model: str) -> None:
    service_node.put_engine(node)
    node.inside("mkdir -p /srv/light && chmod 0777 /srv/light")
    foreign(node, [{"listen": service_node.PORT}, {"healthy": True}], after_gate=True, model="kpro/tiny-qwen3_5")
    ended = begin(node, model).end()
    ended.lost("other_server_answers", "is held by pid", "End the other server", loss="other_server_answers")
    assert node.inside("systemctl is-active foreign").strip() == "active"


@pytest.mark.parametrize(
    ("change", "class_", "cause", "remedy"),
    [
        ("rm -f tokenizer.json tokenizer_config.json vocab.json merges.txt", "tokenizer_missing", "tokenizer files are missing", "kpro.llm.hf_model"),
        ("for file in *.safetensors; do truncate -s -1000 $file; done", "weights_truncated", "not whole", "kpro.llm.hf_model"),
    ],
    ids=["tokenizer", "weights"],
)
def test_damaged_model(node: ServiceNode, model: str, change: str, class_: str, cause: str, remedy: str) -> None:
    begin(node, broken_copy(node, model, change)).end().lost(class_, cause, remedy)


def test_stopped_while_loading(node: ServiceNode, model: str) -> None:
    running = begin(node, model)
    until(lambda: logged(node, "server_args="), "it loads", 480)
    node.inside(f"systemctl stop {UNIT}")
    running.end().lost("stopped", "was stopped from outside", "Run the deployment again")
