# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge for the longer look at a served model: streamed, with thinking, with a tool, by several clients."""

from __future__ import annotations

import concurrent.futures
import http.client
import time
import typing as t

from .._linux.http_client_edge import HttpClient
from .chat import ChatAnswer, chat_answer, chat_request, reasoning_fault, streamed_text, tools_fault

_PATH = "/v1/chat/completions"


class FullProbe:
    """Asks one served model more than one question.

    :param timeout_s: bound of each request.
    """

    def __init__(self, client: HttpClient, served_name: str, question: str, max_tokens: int, timeout_s: float) -> None:
        self._client = client
        self._name = served_name
        self._question = question
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s

    def streamed(self, plain: str) -> tuple[dict[str, t.Any], list[str]]:
        """Ask with the answer streamed; it has to be the same as the plain one. Returns measures and warnings."""
        body = chat_request(self._name, self._question, max_tokens=self._max_tokens, stream=True)
        lines: list[tuple[float, str]] = []
        try:
            lines.extend(self._client.stream(_PATH, body, self._timeout_s))
        except (OSError, http.client.HTTPException) as error:
            return {}, [f"the streamed answer broke off ({error or type(error).__name__})"]
        text, tokens = streamed_text(line for _seconds, line in lines)
        first = next((seconds for seconds, line in lines if '"content"' in line and '"content":""' not in line.replace(" ", "")), 0.0)
        last = lines[-1][0] if lines else 0.0
        measures: dict[str, t.Any] = {"first_token_s": round(first, 3)}
        if tokens > 1 and last > first:
            measures["decode_tokens_per_s"] = round((tokens - 1) / (last - first), 1)
        return measures, [] if text == plain else [f"the streamed answer is another one: {text[:80]!r}"]

    def reasoning(self) -> list[str]:
        """Ask with thinking on; the thinking has to arrive apart from the answer."""
        answer = self._ask(thinking=True)
        if answer is None:
            return ["the question with thinking on was not answered"]
        fault = reasoning_fault(answer)
        if fault:
            return [fault]
        return [] if answer.reasoning else ["no reasoning came back with thinking on (the model may not think)"]

    def tools(self) -> list[str]:
        """Ask for a tool call."""
        answer = self._ask(question="What time is it in Paris? Use the tool.", tools=True)
        fault = tools_fault(answer) if answer else "the request with a tool was not answered"
        return [fault] if fault else []

    def clients(self, number: int) -> tuple[dict[str, t.Any], list[str]]:
        """Ask with several clients at once; returns their tokens per second together."""
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(max_workers=number) as pool:
            answers = list(pool.map(lambda _number: self._ask(), range(number)))
        seconds = time.monotonic() - began
        tokens = sum(answer.completion_tokens for answer in answers if answer)
        lost = sum(answer is None for answer in answers)
        measures = {"clients": number, "clients_tokens_per_s": round(tokens / seconds, 1)}
        return measures, [f"{lost} of {number} questions asked at once were not answered"] if lost else []

    def _ask(self, *, question: str = "", thinking: bool = False, tools: bool = False) -> ChatAnswer | None:
        tokens = max(256, self._max_tokens) if thinking or tools else self._max_tokens
        body = chat_request(self._name, question or self._question, max_tokens=tokens, thinking=thinking, tools=tools)
        reply = self._client.post(_PATH, body, self._timeout_s)
        return chat_answer(reply.json()) if reply.status == 200 else None
