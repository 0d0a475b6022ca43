# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a served model and what its answers mean."""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from .._core.errors import KproError


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """One entry of ``/v1/models``; ``context_length`` is 0 if the server does not say."""

    name: str
    context_length: int = 0


@dataclasses.dataclass(frozen=True)
class ChatAnswer:
    """One answer of ``/v1/chat/completions``."""

    text: str
    reasoning: str = ""
    finish_reason: str = ""
    tool_names: tuple[str, ...] = ()
    completion_tokens: int = 0


TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Returns the current time of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def chat_request(model: str, question: str, *, max_tokens: int, thinking: bool = False, tools: bool = False, stream: bool = False) -> dict[str, t.Any]:
    """Return the body of a deterministic request."""
    body: dict[str, t.Any] = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "chat_template_kwargs": {"enable_thinking": thinking},
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body["tools"], body["tool_choice"] = [TOOL], "auto"
    return body


def served_models(data: t.Any) -> list[ServedModel]:
    """Read the answer of ``/v1/models``; an answer of another kind gives none."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        return []
    return [ServedModel(str(entry.get("id", "")), int(entry.get("max_model_len") or 0)) for entry in entries if isinstance(entry, dict)]


def chat_answer(data: t.Any) -> ChatAnswer | None:
    """Read the answer of ``/v1/chat/completions``; None if it is no such answer."""
    try:
        choice = data["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        return ChatAnswer(
            text=(message.get("content") or "").strip(),
            reasoning=(message.get("reasoning_content") or "").strip(),
            finish_reason=str(choice.get("finish_reason") or ""),
            tool_names=tuple(str(call["function"]["name"]) for call in calls),
            completion_tokens=int((data.get("usage") or {}).get("completion_tokens") or 0),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def streamed_text(lines: t.Iterable[str]) -> tuple[str, int]:
    """Return text and token count of a streamed answer from its ``data:`` lines; lines of another kind are skipped."""
    text, tokens = "", 0
    for line in lines:
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        try:
            chunk = json.loads(line[5:])
        except ValueError:
            continue
        for choice in chunk.get("choices") or []:
            text += (choice.get("delta") or {}).get("content") or ""
        tokens = int((chunk.get("usage") or {}).get("completion_tokens") or tokens)
    return text.strip(), tokens


def answer_pattern(pattern: str) -> re.Pattern[str]:
    """Compile the accepted pattern (searched anywhere in the answer, letter case ignored).

    :raises KproError: if it is no regular expression.
    """
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise KproError(f"answer pattern {pattern!r}", f"it is no regular expression ({error})") from error


def answer_fault(answer: ChatAnswer, pattern: re.Pattern[str]) -> str:
    """Return in words what is wrong with an answer; empty if it is accepted."""
    if not answer.text and answer.reasoning:
        return f"the answer is empty, all went into the reasoning ({_short(answer.reasoning)}): check reasoning_parser"
    if not answer.text:
        return "the answer is empty"
    if not pattern.search(answer.text):
        return f"the answer was {_short(answer.text)}, accepted is {pattern.pattern!r}"
    return ""


QUESTION_SPEC: dict[str, t.Any] = {
    "question": {"type": "str", "default": "What is the capital of France? Answer with one word."},
    "answer_pattern": {"type": "str", "default": "paris"},
    "max_tokens": {"type": "int", "default": 64, "no_log": False},
}


def reasoning_fault(answer: ChatAnswer) -> str:
    """Return in words why thinking was not understood by the server's parser; empty if it was, or if the model did not think."""
    if "<think>" in answer.text or "</think>" in answer.text:
        return "thinking arrives inside the answer: set --reasoning-parser for this model"
    return ""


def tools_fault(answer: ChatAnswer) -> str:
    """Return in words why a tool call was not understood by the server's parsers; empty if it was."""
    if TOOL["function"]["name"] in answer.tool_names:  # type: ignore[index]  # a constant of this file
        return ""
    for where, text in (("reasoning_content", answer.reasoning), ("content", answer.text)):
        if "<tool_call>" in text or '"name"' in text:
            return f"the test tool call came back inside {where}: set --tool-call-parser (and --reasoning-parser) for this model"
    return "the model did not call the test tool, so --tool-call-parser could not be checked"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 120 else f"{line[:117]}...")
