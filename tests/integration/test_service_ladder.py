# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fallback ladder and the roll-back, as the role does them on a real systemd; the engine is the light one, a stand-in."""

from __future__ import annotations

import json
import os
import typing as t
from collections.abc import Iterator

import pytest
import service_node
from service_node import ENV, MODEL, ServiceNode
from test_service_faults import GPUS, SERVES, UNIT, Ended, Running, put, raised

from ansible_collections.kpro.llm.plugins.module_utils._vram.models import config_of

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif(not os.environ.get("KPRO_TEST_EVERYTHING"), reason="a larger matrix: set KPRO_TEST_EVERYTHING=1")

GRAPHS = [
    {"start": {"case": "9b-2x4090", "scale": 0.004, "to": "Capture cuda graph end"}},
    *raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.40 GiB. GPU 0 has a total capacity of 47.40 GiB"),
]
UNKNOWN_MODEL = raised(
    "ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this architecture.",
)
LADDER = {
    "sglang_server__profiles": [
        {"name": "large", "options": {"context_length": 8192}},
        {"name": "small", "options": {"context_length": 4096}},
    ],
}
BIG_FAILS = [{"by_option": {"option": "context-length", "cases": {"8192": GRAPHS}, "else": SERVES}}]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceNode]:
    started = service_node.start("ladder-trixie", tmp_path_factory.mktemp("ladder"))
    yield started
    if not os.environ.get("KPRO_TEST_KEEP_NODE"):
        service_node.stop(started)


def run(node: ServiceNode, steps: list[dict[str, t.Any]], **variables: t.Any) -> Ended:
    put(node, steps)
    return Running(node, {"sglang_server__gpus": list(GPUS), **variables}).end()


def starts(node: ServiceNode) -> int:
    """How often the engine was started since the node was."""
    return int(node.inside(f"journalctl --no-pager --output=cat --unit={UNIT} | grep -c ^Started", check=False).strip() or 0)


def forget(node: ServiceNode) -> None:
    node.inside(f"systemctl stop {UNIT}; rm -rf /var/lib/kpro-llm/rungs.json /var/lib/kpro-llm/last_good.json", check=False)


def test_the_next_rung_runs_is_reported_and_stays(node: ServiceNode) -> None:
    forget(node)
    before = starts(node)
    ended = run(node, BIG_FAILS, **LADDER)
    assert ended.rc == 0, ended.output
    assert (ended.result["rung"], ended.result["rung_name"], ended.result["ready"]) == (1, "small", True)
    assert ended.result["resolved_args"]["context_length"] == 4096
    assert len(ended.result["given_up"]) == 1 and "large: out of memory in graph capture" in ended.result["given_up"][0]
    assert "Given up: large: out of memory in graph capture" in " ".join(ended.output.split())
    assert starts(node) == before + 2
    again = run(node, BIG_FAILS, **LADDER)
    assert again.rc == 0 and again.result["restarted"] is False, again.output
    assert "changed: [container]\n" not in again.output
    assert again.result["identity"] == ended.result["identity"] and again.result["given_up"] == ended.result["given_up"]
    assert starts(node) == before + 2


def test_a_rung_that_cannot_fit_is_passed_over_and_what_the_plan_resolved_is_rendered(node: ServiceNode) -> None:
    forget(node)
    node.inside(f"cat > {MODEL}/config.json", stdin=json.dumps(config_of("Qwen/Qwen3.6-27B")))
    before = starts(node)
    ended = run(
        node,
        SERVES,
        sglang_server__plan="required",
        sglang_server__tp_size=2,
        sglang_server__gpus=[{"uuid": uuid, "name": "NVIDIA RTX A6000", "memory_mib": 49140} for uuid in GPUS],
        sglang_server__profiles=[
            {"name": "too low", "options": {"mem_fraction_static": 0.3}},
            {"name": "fits", "options": {"mem_fraction_static": 0.85, "context_length": 65536, "max_running_requests": 8}},
        ],
    )
    node.inside(f"echo {{}} > {MODEL}/config.json")
    assert ended.rc == 0, ended.output
    assert (ended.result["rung_name"], ended.result["plan"]["verdict"]) == ("fits", "OK") and starts(node) == before + 1
    assert ended.result["given_up"] == ["too low: weights and slack leave -11.67 GiB: the fraction 0.3 is too low for these weights"]
    config = node.inside("cat /etc/kpro-llm/sglang.yaml")
    assert "mem-fraction-static: 0.85" in config and "max-mamba-cache-size: " in config
    # What the light engine logs is another machine's start, so plan and log differ, and that is said.
    assert any(each["warning"] for each in ended.result["plan"]["deviations"])


@everything
def test_a_rung_is_tried_again_only_when_asked(node: ServiceNode) -> None:
    forget(node)
    assert run(node, BIG_FAILS, **LADDER).result["rung"] == 1
    before = starts(node)
    assert run(node, SERVES, **LADDER).result["rung"] == 1 and starts(node) == before
    ended = run(node, SERVES, **LADDER, sglang_server__retry=True)
    assert ended.rc == 0 and (ended.result["rung"], ended.result["given_up"]) == (0, [])


@everything
def test_a_ladder_ends(node: ServiceNode) -> None:
    forget(node)
    before = starts(node)
    ended = run(node, GRAPHS, **LADDER)
    assert ended.rc != 0 and starts(node) == before + 2
    assert "no other configuration to run: out of memory in graph capture" in ended.failures[-1]["msg"]
    assert node.inside(f"systemctl is-active {UNIT}", check=False).strip() in ("inactive", "failed")


@everything
def test_what_a_smaller_rung_cannot_cure_is_not_tried(node: ServiceNode) -> None:
    forget(node)
    before = starts(node)
    ended = run(node, UNKNOWN_MODEL, **LADDER)
    assert ended.rc != 0 and starts(node) == before + 1
    assert "'qwen9' is unknown to transformers" in ended.failures[-1]["msg"]


@everything
def test_the_last_good_configuration_is_restored_with_environment_options_and_model(node: ServiceNode) -> None:
    forget(node)
    venv, model = "/opt/kpro-llm/sglang/current", "/srv/models/current"
    newer, other = f"{ENV}-2", f"{MODEL}-2"
    service_node.put_engine(node, newer)
    node.inside(f"ln -sfn {ENV} {venv}; ln -sfn {MODEL} {model}; rm -rf {other}; cp -a {MODEL} {other}")
    links = {"sglang_server__venv": venv, "sglang_server__model_path": model}
    good = run(node, SERVES, **links, sglang_server__options={"context_length": 4096})
    assert good.rc == 0, good.output
    node.inside(f"ln -sfn {newer} {venv}; ln -sfn {other} {model}")
    steps = [{"by_option": {"option": "context-length", "cases": {"4096": SERVES}, "else": UNKNOWN_MODEL}}]
    ended = run(node, steps, **links, sglang_server__options={"context_length": 8192})
    assert ended.rc != 0
    last = ended.failures[-1]["msg"]
    assert "The new configuration was lost: the model type 'qwen9' is unknown" in last, last
    assert "The last good configuration was restored and answers" in last
    assert ended.result["rung_name"] == "last good" if ended.result else True
    command = node.inside("tr \\\\0 \\\\n < /proc/$(systemctl show -P MainPID " + UNIT + ")/cmdline")
    assert command.startswith(f"{ENV}/bin/python"), command
    config = node.inside("cat /etc/kpro-llm/sglang.yaml")
    assert f'model-path: "{MODEL}"' in config and "context-length: 4096" in config
    assert json.loads(node.inside("cat /var/lib/kpro-llm/last_good.json"))["rung"] == 0
    # Once the cause is repaired, the same command brings the new configuration.
    again = run(node, SERVES, **links, sglang_server__options={"context_length": 8192})
    assert again.rc == 0 and again.result["rung_name"] == "default", again.output
