# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One walk through the levels of readiness over HTTP."""

from __future__ import annotations

import dataclasses
import typing as t

from .._engine.failures import Failure
from .._linux.http_answer import HttpAnswer
from .chat import answer_fault, answer_pattern, chat_answer, chat_request, reasoning_fault, served_models, tools_fault

LEVELS = ("port", "health", "model", "answer", "tools")
# A healthy server generates one token for /health and gives itself up to 20 s for it.
HEALTH_TIMEOUT_S = 30.0


class Server(t.Protocol):
    """The part of an HTTP client that an attempt needs."""

    def get(self, path: str, timeout_s: float = ...) -> HttpAnswer: ...

    def post(self, path: str, data: t.Any, timeout_s: float = ...) -> HttpAnswer: ...


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The wanted server.

    :param level: the last level to reach, one of :data:`LEVELS`.
    :param model_path: folder that the engine must have loaded; empty: not compared.
    """

    level: str
    served_name: str
    model_path: str = ""
    question: str = ""
    pattern: str = ""
    max_tokens: int = 64
    answer_timeout_s: float = 300.0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """How far one walk came.

    :param reached: last level reached; empty: nobody listens.
    :param fault: why this server will not become ready, as (class, sentence); None: ready, or not yet.
    :param ready: the wanted level was reached.
    :param note: what the server said when it was not ready yet.
    """

    reached: str = ""
    ready: bool = False
    fault: tuple[str, str] | None = None
    note: str = ""
    context_length: int = 0
    answer: str = ""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


def attempt(server: Server, wanted: Wanted) -> Attempt:
    """Walk from the port to the wanted level and stop at the first that is not reached."""
    result = Attempt()
    for level, step in (("health", _health), ("model", _model), ("answer", _answer), ("tools", _tools)):
        result = step(server, wanted, result)
        if result.fault or result.reached != level or result.reached == wanted.level:
            break
    done = bool(result.reached) and LEVELS.index(result.reached) >= LEVELS.index(wanted.level)
    return dataclasses.replace(result, ready=done and result.fault is None)


def _health(server: Server, wanted: Wanted, before: Attempt) -> Attempt:
    answer = server.get("/health", HEALTH_TIMEOUT_S)
    seconds = {"health": round(answer.seconds, 3)}
    if answer.error == "refused":
        return dataclasses.replace(before, note="nobody listens on the port")
    if answer.status == 200:
        return dataclasses.replace(before, reached="health", seconds=seconds)
    if answer.status in (0, 503):
        return dataclasses.replace(before, reached="port", note=f"/health: {answer.error or answer.status}", seconds=seconds)
    fault = (Failure.OTHER_SERVER_ANSWERS, f"/health was answered with status {answer.status}, which SGLang never does")
    return dataclasses.replace(before, reached="port", fault=fault, seconds=seconds)


def _model(server: Server, wanted: Wanted, before: Attempt) -> Attempt:
    answer = server.get("/v1/models", 30.0)
    if answer.status in (401, 403):
        return dataclasses.replace(before, fault=(Failure.API_KEY_REFUSED, f"/v1/models answers {answer.status}: the server does not know the API key"))
    if answer.status == 404:
        return dataclasses.replace(before, fault=(Failure.OTHER_SERVER_ANSWERS, "/v1/models answers 404: this is no SGLang server"))
    if answer.status != 200:
        return dataclasses.replace(before, note=f"/v1/models: {answer.error or answer.status}")
    models = served_models(answer.json())
    names = [model.name for model in models]
    if wanted.served_name and wanted.served_name not in names:
        words = f"the server serves {', '.join(names) or 'no model'}, wanted is {wanted.served_name}"
        return dataclasses.replace(before, fault=(Failure.WRONG_MODEL, words))
    context = next((model.context_length for model in models if model.name == wanted.served_name), models[0].context_length if models else 0)
    found = _loaded_path(server)
    if wanted.model_path and found and found.rstrip("/") != wanted.model_path.rstrip("/"):
        return dataclasses.replace(before, fault=(Failure.WRONG_MODEL, f"the server loaded {found}, wanted is {wanted.model_path}"))
    return dataclasses.replace(before, reached="model", context_length=context)


def _loaded_path(server: Server) -> str:
    answer = server.get("/model_info", 10.0)
    if answer.status == 404:
        answer = server.get("/get_model_info", 10.0)
    data = answer.json() if answer.status == 200 else None
    return str(data.get("model_path", "")) if isinstance(data, dict) else ""


def _answer(server: Server, wanted: Wanted, before: Attempt) -> Attempt:
    body = chat_request(wanted.served_name, wanted.question, max_tokens=wanted.max_tokens)
    reply = server.post("/v1/chat/completions", body, wanted.answer_timeout_s)
    seconds = {**before.seconds, "answer": round(reply.seconds, 3)}
    answer = chat_answer(reply.json()) if reply.status == 200 else None
    if answer is None:
        words = reply.error or f"status {reply.status}: {' '.join(reply.text.split())[:200]}"
        return dataclasses.replace(before, seconds=seconds, fault=(Failure.NO_ANSWER, f"the question was not answered ({words})"))
    fault = answer_fault(answer, answer_pattern(wanted.pattern))
    if fault:
        return dataclasses.replace(before, seconds=seconds, answer=answer.text, fault=(Failure.WRONG_ANSWER, fault))
    return dataclasses.replace(before, seconds=seconds, reached="answer", answer=answer.text)


def _tools(server: Server, wanted: Wanted, before: Attempt) -> Attempt:
    question = "What time is it in Paris? Use the tool."
    tokens = max(256, wanted.max_tokens)
    for fault_of, body in (
        (tools_fault, chat_request(wanted.served_name, question, max_tokens=tokens, tools=True)),
        (reasoning_fault, chat_request(wanted.served_name, wanted.question, max_tokens=tokens, thinking=True)),
    ):
        reply = server.post("/v1/chat/completions", body, wanted.answer_timeout_s)
        answer = chat_answer(reply.json()) if reply.status == 200 else None
        what = "with a tool" if fault_of is tools_fault else "with thinking on"
        fault = fault_of(answer) if answer else f"the request {what} was answered with status {reply.status or reply.error}"
        if fault:
            return dataclasses.replace(before, fault=(Failure.TOOL_PARSER_WRONG if fault_of is tools_fault else Failure.REASONING_PARSER_WRONG, fault))
    return dataclasses.replace(before, reached="tools")
