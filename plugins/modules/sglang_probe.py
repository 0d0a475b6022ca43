#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_probe
short_description: Ask a served model a question from outside its container
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Shows that the endpoint works for a client. It looks up the model, asks a question whose answer is known, reads the sizes of the engine's pools
    (C(/metrics)) and its device (C(/server_info)), and reports what it took.
  - Runs wherever the endpoint can be reached, on the node or on the controller; needs only Python's standard library.
  - Fails if the endpoint does not answer, serves another model, or answers something else than expected.
extends_documentation_fragment:
  - kpro.llm.attributes.info
  - kpro.llm.question
options:
  host:
    description: Address of the endpoint.
    type: str
    required: true
  port:
    description: Port of the endpoint.
    type: int
    default: 30000
  api_key:
    description: The API key; empty for a service without one.
    type: str
    default: ""
  served_name:
    description: Name of the model to ask.
    type: str
    required: true
  timeout_s:
    description: Seconds that one request may take.
    type: int
    default: 120
  full:
    description:
      - Look longer, which costs a few requests more. Streamed, with thinking, with a tool, and by O(clients) at once, with the speed of each.
      - What is found wrong there is a warning, not a failure.
    type: bool
    default: false
  clients:
    description: Clients that ask at once for O(full=true).
    type: int
    default: 4
  expected:
    description:
      - Values of the memory plan to compare with; what is smaller becomes a warning.
      - Known keys are C(context_length), C(kv_tokens), C(max_running_requests), C(tokens_per_s), C(decode_tokens_per_s), and C(device) (V(cuda)), which
        finds an engine that fell back to the CPU.
    type: dict
    default: {}
  last_good:
    description: The same for values of the last good run.
    type: dict
    default: {}
seealso:
  - module: kpro.llm.sglang_ready
"""

EXAMPLES = r"""
- name: Ask the model from the node
  kpro.llm.sglang_probe:
    host: 10.77.0.101
    served_name: qwen
    api_key: "{{ __key.content | b64decode | trim }}"
  delegate_to: "{{ pct_node }}"
"""

RETURN = r"""
url:
  description: The endpoint.
  returned: success
  type: str
  sample: http://10.77.0.101:30000/v1
model:
  description: Name of the model that answered.
  returned: success
  type: str
  sample: qwen
context_length:
  description: Longest prompt and answer together that the server takes, in tokens; 0 if it does not say.
  returned: success
  type: int
  sample: 65536
answer:
  description: What the model said.
  returned: success
  type: str
  sample: Paris
completion_tokens:
  description: Tokens of the answer.
  returned: success
  type: int
  sample: 2
seconds:
  description: Time of the question, first byte to last, as the client saw it.
  returned: success
  type: float
  sample: 0.31
tokens_per_s:
  description: Tokens of that one answer by its time, prompt processing included.
  returned: success
  type: float
  sample: 6.4
pools:
  description: Sizes of the engine's pools; empty if it serves no metrics.
  returned: success
  type: dict
  sample: {kv_tokens: 178594, max_running_requests: 8}
measured:
  description: For O(full=true), what was measured besides.
  returned: success
  type: dict
  sample: {first_token_s: 0.09, decode_tokens_per_s: 31.5, clients: 4, clients_tokens_per_s: 96.2}
warnings_found:
  description: Signs that the service is worse than expected.
  returned: success
  type: list
  elements: str
"""

import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._linux.http_answer import HttpAnswer
from ..module_utils._linux.http_client_edge import HttpClient
from ..module_utils._ready.chat import QUESTION_SPEC, answer_fault, answer_pattern, chat_answer, chat_request, served_models
from ..module_utils._ready.probe import device_fault, pools_of, shortfalls
from ..module_utils._ready.probe_full_edge import FullProbe

ARGUMENT_SPEC: dict[str, t.Any] = {
    "host": {"type": "str", "required": True},
    "port": {"type": "int", "default": 30000},
    "api_key": {"type": "str", "default": "", "no_log": True},
    "served_name": {"type": "str", "required": True},
    **QUESTION_SPEC,
    "timeout_s": {"type": "int", "default": 120},
    "full": {"type": "bool", "default": False},
    "clients": {"type": "int", "default": 4},
    "expected": {"type": "dict", "default": {}},
    "last_good": {"type": "dict", "default": {}},
}


def main_result(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Look up the model, ask the question."""
    pattern = answer_pattern(params["answer_pattern"])
    client = HttpClient(params["host"], params["port"], params["api_key"])
    url = f"http://{params['host']}:{params['port']}/v1"
    context_length = _model(client, params, url)
    body = chat_request(params["served_name"], params["question"], max_tokens=params["max_tokens"])
    reply = client.post("/v1/chat/completions", body, params["timeout_s"])
    answer = chat_answer(reply.json()) if reply.status == 200 else None
    if answer is None:
        raise KproError(url, f"the question was not answered ({_words(reply)})", "Run the playbook kpro.llm.deploy_qwen again, it finds the cause")
    fault = answer_fault(answer, pattern)
    if fault:
        raise KproError(url, fault, "If the text is no language at all, weights or GPU peer copies are wrong: do not use this service", answer=answer.text)
    measured = {
        "context_length": context_length,
        "tokens_per_s": round(answer.completion_tokens / reply.seconds, 1) if reply.seconds > 0 else 0.0,
    }
    pools, warnings = _engine_says(client, params)
    more, found = _look_longer(client, params, answer.text) if params["full"] else ({}, [])
    sizes = {**measured, **pools, **more}
    warnings = [*warnings, *found, *shortfalls(sizes, params["expected"]), *shortfalls(sizes, params["last_good"], "the last good run")]
    return {
        "changed": False,
        "url": url,
        "model": params["served_name"],
        "answer": answer.text,
        "completion_tokens": answer.completion_tokens,
        "seconds": round(reply.seconds, 3),
        "warnings_found": warnings,
        "warnings": list(warnings),
        "pools": pools,
        "measured": more,
        **measured,
    }


def _engine_says(client: HttpClient, params: dict[str, t.Any]) -> tuple[dict[str, float], list[str]]:
    """Return the sizes of the engine's pools, and what is wrong with its device."""
    metrics = client.get("/metrics", params["timeout_s"])
    pools = pools_of(metrics.text) if metrics.status == 200 else {}
    wanted = str(params["expected"].get("device") or "")
    info = client.get("/server_info", params["timeout_s"]) if wanted else None
    return pools, device_fault(info.json(), wanted) if info and info.status == 200 else []


def _look_longer(client: HttpClient, params: dict[str, t.Any], plain: str) -> tuple[dict[str, t.Any], list[str]]:
    probe = FullProbe(client, params["served_name"], params["question"], params["max_tokens"], params["timeout_s"])
    streamed, stream_warnings = probe.streamed(plain)
    together, client_warnings = probe.clients(max(1, params["clients"]))
    return {**streamed, **together}, [*stream_warnings, *client_warnings, *probe.reasoning(), *probe.tools()]


def _model(client: HttpClient, params: dict[str, t.Any], url: str) -> int:
    reply = client.get("/v1/models", params["timeout_s"])
    if reply.status in (401, 403):
        raise KproError(url, f"it refuses the API key (status {reply.status})", "Pass the key from /etc/kpro-llm/api_key of the container")
    if reply.status != 200:
        raise KproError(url, f"no list of models ({_words(reply)})", "Check address, port and firewall between here and the container")
    models = {model.name: model for model in served_models(reply.json())}
    if params["served_name"] not in models:
        raise KproError(url, f"it serves {', '.join(models) or 'no model'}, not {params['served_name']}", "Another server may have the port")
    return models[params["served_name"]].context_length


def _words(reply: HttpAnswer) -> str:
    return reply.error or f"status {reply.status}: {' '.join(reply.text.split())[:200]}"


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
