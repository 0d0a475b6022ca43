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
  - Each call of the module returns after O(poll_s) at the latest; the action plugin of the same name prints the progress and calls again.
extends_documentation_fragment:
  - kpro.llm.attributes
  - kpro.llm.question
options:
  identity:
    description: Run identity as returned by M(kpro.llm.sglang_service).
    type: dict
    required: true
  address:
    description: Address that the service is bound to.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the service.
    type: int
    default: 30000
  api_key_path:
    description: File with the API key on the target; empty for a service without one.
    type: str
    default: ""
  level:
    description:
      - How far the service must come. V(port), somebody listens; V(health), it generated a token; V(model), it serves the wanted model;
        V(answer), it answered O(question) as expected; V(tools), a tool call and thinking were understood by the parsers.
    type: str
    choices: [port, health, model, answer, tools]
    default: answer
  answer_timeout_s:
    description: Seconds that one answer may take.
    type: int
    default: 300
  timeout_s:
    description: Seconds for the whole wait, over all calls of one task.
    type: int
    default: 1800
  poll_s:
    description: Seconds after which a call returns with the progress so far.
    type: int
    default: 10
  hang_budgets_s:
    description: Seconds of silence allowed in a phase, by phase (V(weights), V(graphs), V(warmup) and so on), where the built-in limits do not fit.
    type: dict
    default: {}
  on_failure:
    description: Whether a lost start is stopped, so that nothing half-running holds memory, or left as it is.
    type: str
    choices: [stop, leave]
    default: stop
  keep:
    description:
      - RV(kpro.llm.sglang_service#module:keep). Once the service has answered (level V(answer) or V(tools)), its files are kept as the last good
        configuration.
    type: dict
    default: {}
  links:
    description: Links to environment and model, whose present targets belong to the last good configuration.
    type: list
    elements: path
    default: []
  memory_events:
    description: File of the container's control group whose count C(oom_kill) tells a process killed for want of memory from others; may be absent.
    type: path
    default: /sys/fs/cgroup/memory.events
  context:
    description: Facts for the diagnosis (versions, arguments, GPUs); see O(kpro.llm.sglang_diagnose#module:context).
    type: dict
    default: {}
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
last_good_pools:
  description: The same of the last good run with this configuration; empty without one. What is smaller now is a warning.
  returned: when ready
  type: dict
warnings_found:
  description: Signs in log and pools that the service is worse than it seems, such as parameters that were not loaded.
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

import time
import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._diagnosis.diagnose_with_plan_edge import explain
from ..module_utils._linux.http_answer import connect_address
from ..module_utils._linux.http_client_edge import HttpClient
from ..module_utils._linux.run_identity import RunIdentity, identity_from_dict
from ..module_utils._linux.systemd_edge import Systemd
from ..module_utils._linux.text_file_edge import read_text_file
from ..module_utils._ready.after_answer_edge import good_run
from ..module_utils._ready.chat import QUESTION_SPEC, answer_pattern
from ..module_utils._ready.clock_edge import WaitClock
from ..module_utils._ready.oom_kills_edge import read_memory_events, since
from ..module_utils._ready.wait_edge import Outcome, ReadyWait
from ..module_utils._ready.walk_edge import LEVELS, Wanted, attempt
from ..module_utils._service.text import without_secrets

ARGUMENT_SPEC: dict[str, t.Any] = {
    "identity": {"type": "dict", "required": True},
    "address": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 30000},
    "api_key_path": {"type": "str", "default": "", "no_log": False},
    "level": {"type": "str", "choices": list(LEVELS), "default": "answer"},
    **QUESTION_SPEC,
    "answer_timeout_s": {"type": "int", "default": 300},
    "timeout_s": {"type": "int", "default": 1800},
    "poll_s": {"type": "int", "default": 10},
    "hang_budgets_s": {"type": "dict", "default": {}},
    "on_failure": {"type": "str", "choices": ["stop", "leave"], "default": "stop"},
    "keep": {"type": "dict", "default": {}},
    "links": {"type": "list", "elements": "path", "default": []},
    "memory_events": {"type": "path", "default": "/sys/fs/cgroup/memory.events"},
    "context": {"type": "dict", "default": {}},
}
CLOCK_PATH = "/run/kpro-llm/ready.json"


def main_result(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Wait for an event or ``poll_s``, and say what is known."""
    identity = identity_from_dict(params["identity"])
    answer_pattern(params["answer_pattern"])
    systemd = Systemd(identity.unit)
    if check_mode and not systemd.state().running:
        return {"changed": False, "finished": True, "ready": False, "level": "", "elapsed_s": 0.0, "phases_s": {}}
    clock = WaitClock(CLOCK_PATH)
    waited_s = clock.elapsed_s(identity.invocation_id)
    events = clock.memory_events(identity.invocation_id) or read_memory_events(params["memory_events"])
    began = time.monotonic()
    poll_s = 0.0 if check_mode else max(0.0, min(params["poll_s"], params["timeout_s"] - waited_s))
    outcome = _wait(params, identity, systemd).run(poll_s, {name: float(value) for name, value in params["hang_budgets_s"].items()})
    waited_s += time.monotonic() - began
    result = _result(outcome, systemd)
    if check_mode:
        return {**result, "finished": True, "ready": outcome.kind == "ready"}
    if outcome.kind == "waiting" and waited_s < params["timeout_s"]:
        clock.keep(identity.invocation_id, waited_s, events)
        return {**result, "finished": False, "ready": False, "progress": _progress(outcome, result["elapsed_s"])}
    clock.forget()
    if outcome.kind == "ready":
        return {**result, "finished": True, "ready": True, **good_run(params, _client(params), outcome.log.lines)}
    loss = outcome.loss if outcome.kind == "lost" else ("timeout", f"not ready after {waited_s:.0f} s, it came as far as: {outcome.log.words}")
    facts = {"memory_events": since(events, read_memory_events(params["memory_events"])), **params["context"]}
    raise _failure(loss, outcome, {**params, "context": facts}, identity, systemd, result)


def _client(params: dict[str, t.Any]) -> HttpClient:
    key_file = read_text_file(params["api_key_path"]) if params["api_key_path"] else None
    if params["api_key_path"] and key_file is None:
        raise KproError(params["api_key_path"], "the API key is not there", "Run kpro.llm.sglang_service again, it makes one")
    return HttpClient(connect_address(params["address"]), params["port"], key_file.text.strip() if key_file else "")


def _wait(params: dict[str, t.Any], identity: RunIdentity, systemd: Systemd) -> ReadyWait:
    client = _client(params)
    wanted = Wanted(
        level=params["level"],
        served_name=identity.served_name,
        model_path=identity.model_path,
        question=params["question"],
        pattern=params["answer_pattern"],
        max_tokens=params["max_tokens"],
        answer_timeout_s=float(params["answer_timeout_s"]),
    )
    return ReadyWait(systemd, identity, lambda: attempt(client, wanted), params["port"])


def _result(outcome: Outcome, systemd: Systemd) -> dict[str, t.Any]:
    started_s = outcome.unit.exec_main_start_us / 1e6
    return {
        "changed": False,
        "level": outcome.attempt.reached,
        "answer": outcome.attempt.answer,
        "context_length": outcome.attempt.context_length,
        "elapsed_s": round(systemd.uptime_s() - started_s, 1) if started_s else 0.0,
        "phases_s": outcome.log.durations_s(time.time()),
        "request_s": outcome.attempt.seconds,
    }


def _progress(outcome: Outcome, elapsed_s: float) -> str:
    in_phase = time.time() - outcome.log.phase_since_s if outcome.log.begun_s else 0.0
    note = f" [{outcome.attempt.note}]" if outcome.log.phase in ("warmup", "serving") and outcome.attempt.note else ""
    return f"{outcome.log.words} ({in_phase:.0f} s; {elapsed_s:.0f} s since start){note}, next: {outcome.log.next_words}"


def _failure(loss: tuple[str, str], outcome: Outcome, params: dict[str, t.Any], identity: RunIdentity, systemd: Systemd, result: dict[str, t.Any]) -> KproError:
    context = {
        **params["context"],
        "loss": list(loss),
        "unit": {**outcome.unit.as_dict(), "exit_words": outcome.unit.exit_words},
        "identity": identity.as_dict(),
        "level": outcome.attempt.reached,
        "port": params["port"],
    }
    finding = explain(outcome.log.lines, context)
    # Another start belongs to whoever made it.
    stop = params["on_failure"] == "stop" and loss[0] != "identity_changed"
    if stop:
        systemd.stop_soon()
    reason = finding.cause if finding.class_ != "unknown" else f"{loss[1]}. {finding.cause}"
    if loss[0] == "crash_loop" and finding.class_ not in ("unknown", "crash_loop"):
        reason = f"{reason}; {loss[1]}"
    return KproError(
        identity.unit,
        reason,
        finding.remedy or f"Read the log: journalctl _SYSTEMD_INVOCATION_ID={identity.invocation_id}",
        diagnosis=finding.as_dict(),
        loss={"class": loss[0], "words": loss[1]},
        stopped=stop,
        identity=identity.as_dict(),
        log_tail=[without_secrets(line) for line in outcome.log.lines[-20:]],
        **{name: result[name] for name in ("level", "elapsed_s", "phases_s")},
    )


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
