# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""By what a configuration of the service is judged: where it listens, what it is asked."""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from .._core.errors import KproError
from .._ready.chat import answer_pattern
from .._ready.walk import LEVELS

_NAMES = ("address", "port", "level", "question", "answer_pattern", "max_tokens", "answer_timeout_s")
_LINE = re.compile(r"^(?P<name>host|port|api-key|model-path|served-model-name): *(?P<value>\S.*?) *$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Check:
    """Where the service listens, and what it must answer.

    :param level: the last level to reach.
    """

    address: str = "127.0.0.1"
    port: int = 30000
    level: str = "answer"
    question: str = ""
    answer_pattern: str = ""
    max_tokens: int = 64
    answer_timeout_s: int = 300

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain values for a state file."""
        return dataclasses.asdict(self)


def check_of(params: t.Mapping[str, t.Any]) -> Check:
    """Return the check that a module's options describe.

    :raises KproError: if the pattern is no regular expression.
    """
    answer_pattern(params["answer_pattern"])
    return Check(**{name: params[name] for name in _NAMES})


def check_from(values: t.Any, texts: t.Mapping[str, str], otherwise: Check) -> Check:
    """Read the check of a kept configuration.

    One that was kept without a check, or with a damaged one, has answered once; what it was asked is not known. It is asked for its model only,
    where its own configuration says that it listens.

    :param texts: files of the configuration by role.
    """
    kept = valid_check(values)
    if kept is not None:
        return kept
    lines = config_lines(texts.get("config", ""))
    port = lines.get("port", "")
    return dataclasses.replace(
        otherwise, address=lines.get("host", otherwise.address), port=int(port) if port.isdigit() and int(port) < 65536 else otherwise.port, level="model"
    )


def config_lines(config: str) -> dict[str, str]:
    """Return address, port, API key, model and its name by the engine's option names, as far as the text of its configuration has them."""
    return {match["name"]: _plain(match["value"]) for match in _LINE.finditer(config)}


def _plain(value: str) -> str:
    if not value.startswith('"'):
        return value.strip("'")
    try:
        return str(json.loads(value))
    except ValueError:
        return value.strip('"')


def valid_check(values: t.Any) -> Check | None:
    """Read a kept check; None if there is none, or a damaged one."""
    if not isinstance(values, dict):
        return None
    default = Check()
    found = {name: values.get(name) for name in _NAMES}
    if any(type(value) is not type(getattr(default, name)) for name, value in found.items()):
        return None
    check = Check(**t.cast("dict[str, t.Any]", found))
    try:
        answer_pattern(check.answer_pattern)
    except KproError:
        return None
    good = check.level in LEVELS and 0 < check.port < 65536 and check.max_tokens > 0 and check.answer_timeout_s > 0
    return check if good else None
