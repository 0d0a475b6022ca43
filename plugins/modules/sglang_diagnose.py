#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_diagnose
short_description: Find the cause of a failed start of SGLang in its log and the facts around it
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Reads a start-up log as phases and finds the cause. The first traceback of the first failing rank counts, later lines are echoes.
  - Knows which memory error asks for more and which for less, and does the sum where the log has the numbers.
  - Answers V(unknown) with the lines there are, rather than guess.
extends_documentation_fragment:
  - kpro.llm.attributes.info
options:
  log:
    description: The log as text, or the path of a file with it (one line that begins with a slash). Empty reads the journal of O(unit)'s last start.
    type: str
    default: ""
  unit:
    description: Unit whose last start is read when O(log) is empty.
    type: str
    default: kpro-sglang.service
  context:
    description:
      - Facts around the log, for example C(args) (engine options), C(engine_version), C(driver), C(torch_version_cuda), C(unit) (properties of
        systemd), C(samples) (the unit over time), C(gpu_total_gib), C(model_facts), C(env), C(memory_events),
        C(xids) (as M(kpro.llm.gpu_info) returns them on the node) or C(kernel_log).
      - With C(model_path) (or C(model_config)), C(gpus) (records of those in use), C(engine_version) and C(args), the sum of a memory error is that of
        M(kpro.llm.sglang_plan), and the remedy says how far which option has to go.
      - Keys that are not known are accepted.
    type: dict
    default: {}
seealso:
  - module: kpro.llm.sglang_ready
"""

EXAMPLES = r"""
- name: Explain the last start
  kpro.llm.sglang_diagnose:

- name: Explain a log from elsewhere
  kpro.llm.sglang_diagnose:
    log: /root/server.log
    context:
      args: {mem_fraction_static: 0.85}
"""

RETURN = r"""
class:
  description: Short name of the kind of failure; V(unknown) is an honest answer.
  returned: success
  type: str
  sample: graph_capture_oom
phase:
  description: Phase of the start in which it happened.
  returned: success
  type: str
  sample: graphs
cause:
  description: One sentence, with the numbers that decided.
  returned: success
  type: str
  sample: "out of memory in graph capture (needed 1.40 GiB, had 0.6 GiB): the pools left too little"
evidence:
  description: The lines that decided.
  returned: success
  type: list
  elements: str
remedy:
  description: Which setting to change; empty if none is known to help.
  returned: success
  type: str
  sample: Lower mem_fraction_static from 0.90 to 0.86, or set a smaller cuda_graph_max_bs
direction:
  description: For a setting, V(raise) or V(lower).
  returned: success
  type: str
  sample: lower
confidence:
  description: V(certain), V(likely) or V(none).
  returned: success
  type: str
  sample: certain
action:
  description: What a deployment should do, one of V(stop_and_report), V(warn_and_continue), V(fix_and_continue), V(continue_or_wait).
  returned: success
  type: str
  sample: stop_and_report
"""

import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._diagnosis.diagnose_with_plan_edge import explain
from ..module_utils._linux.systemd_edge import Systemd
from ..module_utils._linux.text_file_edge import read_text_file
from ..module_utils._service.text import without_secrets

ARGUMENT_SPEC: dict[str, t.Any] = {
    "log": {"type": "str", "default": ""},
    "unit": {"type": "str", "default": "kpro-sglang.service"},
    "context": {"type": "dict", "default": {}},
}


def main_result(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Read the log, find the cause."""
    lines, context = _material(params)
    values = explain(lines, context).as_dict()
    values["evidence"] = [without_secrets(line) for line in values["evidence"]]
    return {"changed": False, **values}


def _material(params: dict[str, t.Any]) -> tuple[list[str], dict[str, t.Any]]:
    log = params["log"].strip("\n")
    if log.startswith("/") and "\n" not in log:
        file = read_text_file(log)
        if file is None:
            raise KproError(log, "there is no such file", "Give the log as text, or the path of a file on the target")
        return file.text.splitlines(), params["context"]
    if log:
        return log.splitlines(), params["context"]
    systemd = Systemd(params["unit"])
    state = systemd.state()
    if not state.invocation_id:
        raise KproError(params["unit"], "it was never started here", "Give a log")
    lines = [line.text for line in systemd.journal(state.invocation_id)]
    return lines, {"unit": {**state.as_dict(), "exit_words": state.exit_words}, **params["context"]}


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
