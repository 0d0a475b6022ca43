# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The literal command with the shipped inventory; the vars file names what a sandbox has elsewhere, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

import lanes
from conftest import ROOT, SANDBOX, port_of

pytestmark = pytest.mark.sandbox

VARS = "tests/sandbox/kpro5.vars.yml"
NAME = f"shipped{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def test_the_vars_file_overrides_only_what_a_sandbox_has_elsewhere() -> None:
    allowed = {
        *("ansible_host", "ansible_port", "ansible_ssh_private_key_file", "ansible_ssh_common_args", "sandbox_dir"),
        *("sglang_runtime__find_links", "sglang_runtime__ca_certificates", "hf_model__endpoint", "gpu_node__driver_url"),
        *("sglang_runtime__lane", "hf_model__repository", "hf_model__lock_file", "sglang_server__question", "sglang_server__answer_pattern"),
        *("sglang_server__tp_size", "gpu_container__gpus"),
        "sglang_server__profiles",  # belongs to the model: the tiny one has no head to speculate with
    }
    assert set(yaml.safe_load((ROOT / VARS).read_text(encoding="utf-8"))) <= allowed


@pytest.fixture
def port() -> Iterator[int]:
    """A fresh node that serves model, wheels and driver; its SSH port."""
    base = os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox"
    subprocess.run([ROOT / "tests/sandbox/prepare", f"{base}/content"], check=True, capture_output=True)
    try:
        subprocess.run([SANDBOX, "up", NAME], check=True)
        subprocess.run([SANDBOX, "publish", NAME, "--hub", f"{base}/content/hub", "--files", f"{base}/content/files"], check=True, capture_output=True)
        yield port_of(json.loads(subprocess.run([SANDBOX, "status", NAME, "--json"], capture_output=True, text=True, check=True).stdout))
    finally:
        subprocess.run([SANDBOX, "down", NAME], check=True)


def deploy(port: int) -> str:
    tools = lanes.environment(lanes.available()[-1], "dev") / "bin"
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "KPRO_SANDBOX_PORT": str(port)}
    argv = [tools / "ansible-playbook", "deploy_qwen.yml", "-i", "kpro5", "-e", f"@{VARS}", "-e", "hf_model__lock_file="]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(
    "KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all deploys with the shipped inventory, too; the default run asks in check mode"
)
def test_the_literal_command_deploys_and_then_changes_nothing(port: int) -> None:
    assert "Hello from the tiny test model" in deploy(port)
    again = deploy(port)
    assert re.findall(r"changed=(\d+)", again) == ["0", "0", "0"], again
