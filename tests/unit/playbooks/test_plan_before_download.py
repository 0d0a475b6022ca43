# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan that stands between a model's shapes and its bytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of

ROOT = Path(__file__).resolve().parents[3]
CONFIG = config_of("Qwen/Qwen3.6-27B")
OPTIONS = {"context_length": 65536, "mem_fraction_static": 0.85, "max_running_requests": 8, "mamba_ssm_dtype": "float32"}
A6000 = {"name": "NVIDIA RTX A6000", "memory_mib": 49140}


@pytest.mark.parametrize(
    ("config", "gpu", "options", "words"),
    [
        pytest.param(CONFIG, A6000, OPTIONS, "", id="fits"),
        pytest.param(CONFIG, {**A6000, "memory_mib": 24564}, OPTIONS, r"The engine would not start, so 55.6 GB were not fetched: .*\S", id="too small"),
        pytest.param(
            {**CONFIG, "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
            A6000,
            OPTIONS,
            r"'modelopt_fp8' from compute capability 8\.9 on, and NVIDIA RTX A6000 has 8\.6",
            id="quantised for newer cards",
        ),
        pytest.param({**CONFIG, "architectures": ["NovelForCausalLM"]}, A6000, OPTIONS, "'NovelForCausalLM'", id="architecture"),
    ],
)
def test_what_cannot_start_is_not_fetched(tmp_path: Path, config: dict[str, t.Any], gpu: dict[str, t.Any], options: dict[str, t.Any], words: str) -> None:
    variables = {
        "hf_model__shapes": {"config": config, "missing_bytes": 55_600_000_000},
        "gpu_container__result": {"gpus": [gpu, gpu]},
        "sglang_runtime__result": {"lane": "cu13", "engine_version": "0.5.23", "capabilities": [], "toolkit": True, "peers_off": ""},
        "sglang_server__tp_size": 2,
        "sglang_server__options": options,
    }
    tasks = [
        {"name": "Plan", "ansible.builtin.include_tasks": str(ROOT / "playbooks/tasks/plan_before_download.yml")},
        {"name": "Fetch", "ansible.builtin.debug": {"msg": "bytes"}},
    ]
    play = [{"name": "Model", "hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables, "tasks": tasks}]
    (tmp_path / "play.json").write_text(json.dumps(play))
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_LOCALHOST_WARNING": "0"}
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), tmp_path / "play.json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    output = re.sub(r"\s+", " ", (done.stdout + done.stderr).replace('\\"', '"'))
    assert done.returncode == (2 if words else 0), output
    assert re.search(words, output), output
    assert ("TASK [Fetch]" in output) is not bool(words)
