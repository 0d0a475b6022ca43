# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What two published estimators say of logged starts. Runs in an environment of its own; reads cases and writes answers as JSON.

Both are given more than a user would give them: the exact size of the weights, and the text part of the config. Neither takes
state, speculation or the engine's slack; ridgepoint takes no fraction and knows no A6000, so that an L40S (48 GB) stands for it.
"""

from __future__ import annotations

import json
import sys
import time
import typing as t

import ridgepoint
import ridgepoint.hf
from modelinfo.calculator import calculate_footprint

REPEATS = 50
Case = dict[str, t.Any]


def by_ridgepoint(case: Case) -> int:
    """Return the cache tokens by ridgepoint, as the engine SGLang."""
    ridgepoint.hf._download_json = lambda *_: case["config"]
    ridgepoint.hf._params_from_index = lambda *_: case["weights_bytes"] // 2
    text = ridgepoint.fit(
        "org/model", case["device"], count=case["tp"], engine="sglang", dtype="bf16", kv_cache_dtype="bf16", ctx=case["context"], as_json=True
    )
    answer = json.loads(text)
    if not answer["verdict"]["serves"]:
        return 0
    return int(answer["memory"]["kv_pool_bytes"]["best"] / (answer["capacity"]["bytes_per_seq"] / answer["capacity"]["ctx"]))


def by_modelinfo(case: Case) -> int:
    """Return the cache tokens by modelinfo-cli, as the engine vLLM."""
    tensors = {"__metadata__": {"lazy_fetch": True, "total_size": case["weights_bytes"]}}
    text = case["config"].get("text_config", case["config"])
    answer = calculate_footprint(
        tensors, config=text, gpu_count=case["tp"], is_vllm=True, gpu_vram_bytes=case["tp"] * case["total_mib"] * 2**20, gpu_util=case["fraction"]
    )
    return int(answer["vllm_metrics"]["max_serving_capacity"])


def timed(function: t.Callable[[Case], int], case: Case) -> dict[str, t.Any]:
    """Return tokens and the median CPU time of a call."""
    times = []
    tokens = 0
    for _number in range(REPEATS):
        start = time.process_time()
        tokens = function(case)
        times.append(time.process_time() - start)
    return {"tokens": tokens, "ms": sorted(times)[REPEATS // 2] * 1000}


def main() -> None:
    """Answer all cases."""
    peers = {"ridgepoint 0.1.2": by_ridgepoint, "modelinfo-cli 1.4.4": by_modelinfo}
    answers = [{name: timed(function, case) for name, function in peers.items()} for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
