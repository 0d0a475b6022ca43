#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_ready
short_description: Wait until one start of the SGLang service really answers, or is lost
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Waits for the start that M(kpro.llm.sglang_service) returned, and for no other. The log of another start, another server on the port, or
    a restart in the middle are never taken for success.
  - Asks over HTTP, level by level. Lines in a log are only evidence, "fired up and ready to roll" among them.
  - Woken by events (the unit's journal followed by invocation, the end of the main process, the end of a request), so it returns the moment
    the service is ready or lost. A lost start fails with its diagnosis.
  - Only looks. Nothing is stopped, whatever it finds; M(kpro.llm.sglang_service) makes starts, waits for them and goes on to other configurations.
  - Each call of the module returns after O(poll_s) at the latest; the action plugin of the same name prints the progress and calls again.
extends_documentation_fragment:
  - kpro.llm.attributes
  - kpro.llm.question
  - kpro.llm.service_wait
options:
  identity:
    description: Run identity as returned by M(kpro.llm.sglang_service).
    type: dict
    required: true
  level:
    description:
      - How far the service must come. V(port), somebody listens; V(health), it generated a token; V(model), it serves the wanted model;
        V(answer), it answered O(question) as expected; V(tools), a tool call and thinking were understood by the parsers.
    type: str
    choices: [port, health, model, answer, tools]
    default: answer
  api_key_path:
    description: File with the API key on the target; empty for a service without one.
    type: str
    default: ""
seealso:
  - module: kpro.llm.sglang_service
  - module: kpro.llm.sglang_diagnose
"""

EXAMPLES = r"""
- name: Wait for the answer
  kpro.llm.sglang_ready:
    identity: "{{ __service.identity }}"
    api_key_path: "{{ __service.api_key_path }}"
    level: answer
    timeout_s: 1800
"""

RETURN = r"""
ready:
  description: Whether the wanted level was reached.
  returned: success
  type: bool
level:
  description: Last level reached.
  returned: always
  type: str
  sample: answer
answer:
  description: What the model said.
  returned: when the level answer was reached
  type: str
  sample: Paris
context_length:
  description: Longest prompt and answer together that the server takes, in tokens.
  returned: when the level model was reached
  type: int
elapsed_s:
  description: Seconds from the start of the process to now.
  returned: always
  type: float
phases_s:
  description: Seconds by phase of the start, as far as its log was read.
  returned: always
  type: dict
  sample: {launch: 7.1, options: 1.9, weights: 0.4, warmup: 1.2}
pools:
  description: Sizes of the engine's pools, from its metrics; empty if it serves none.
  returned: when ready
  type: dict
  sample: {kv_tokens: 178594, max_running_requests: 8}
warnings_found:
  description: Signs in the log that the service is worse than it seems, such as parameters that were not loaded.
  returned: when ready
  type: list
  elements: str
diagnosis:
  description: On failure, what M(kpro.llm.sglang_diagnose) returns (inside C(details)).
  returned: failure
  type: dict
finished:
  description: V(false) while the wait goes on; used by the action plugin.
  returned: always
  type: bool
"""

import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._diagnosis.diagnose import silent_faults
from ..module_utils._linux.run_identity import identity_from_dict
from ..module_utils._linux.systemd_edge import Systemd
from ..module_utils._linux.text_file_edge import read_text_file
from ..module_utils._ready.chat import QUESTION_SPEC
from ..module_utils._ready.walk import LEVELS
from ..module_utils._start.after_answer_edge import engine_pools
from ..module_utils._start.check import check_of
from ..module_utils._start.story import WAIT_ON
from ..module_utils._start.watch_edge import WAIT_SPEC, Seen, StartWatch, progress_words, seen_values, still_loading

ARGUMENT_SPEC: dict[str, t.Any] = {
    "identity": {"type": "dict", "required": True},
    "api_key_path": {"type": "str", "default": "", "no_log": False},
    "level": {"type": "str", "choices": list(LEVELS), "default": "answer"},
    **QUESTION_SPEC,
    **WAIT_SPEC,
}


def main_result(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Wait for an event or ``poll_s``, and say what is known."""
    identity, check = identity_from_dict(params["identity"]), check_of(params)
    systemd = Systemd(identity.unit)
    if check_mode and not systemd.state().running:
        return {"changed": False, "finished": True, "ready": False, "level": "", "elapsed_s": 0.0, "phases_s": {}}
    watch = StartWatch(params, systemd, identity, check, _key(params["api_key_path"]))
    seen = watch.look(once=check_mode)
    kind = seen.outcome.kind
    result = {"changed": False, **seen_values(seen.outcome, seen.elapsed_s)}
    if kind == "lost":
        told = watch.explained(seen)
        raise KproError(identity.unit, told.pop("reason"), told.pop("remedy"), stopped=False, **told)
    if kind == "ready":
        found = silent_faults(seen.outcome.log.lines, params["context"])
        return {**result, "finished": True, "ready": True, "pools": engine_pools(watch.client), "warnings_found": found, "warnings": list(found)}
    if not check_mode and seen.waited_s >= params["timeout_s"]:
        watch.forget()
        raise _waited_enough(identity.unit, seen, result)
    return {**result, "finished": check_mode, "ready": False, "progress": progress_words(seen.outcome, seen.elapsed_s)}


def _waited_enough(unit: str, seen: Seen, result: dict[str, t.Any]) -> KproError:
    words = still_loading(seen.outcome, seen.waited_s)
    return KproError(unit, f"{words}. The start goes on", WAIT_ON, stopped=False, loss={"class": "timeout", "words": words}, **result)


def _key(path: str) -> str:
    file = read_text_file(path) if path else None
    if path and file is None:
        raise KproError(path, "the API key is not there", "Run kpro.llm.sglang_service again, it makes one")
    return file.text.strip() if file else ""


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
