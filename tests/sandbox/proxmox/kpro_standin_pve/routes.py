# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of calls that the stand-in answers: handlers register themselves under method and path template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ApiError
from .node import Node
from .tasks import Outcome, Task, run_task

Parameters = Mapping[str, str]


@dataclass(frozen=True)
class Request:
    """One checked call: parameters as text, who asks (in ``node``), and where task output is echoed, if anywhere."""

    node: Node
    parameters: Parameters
    echo: Callable[[str], None] | None = None
    # A command line waits for its task; the API answers with the UPID while it runs.
    wait: bool = True

    def __getitem__(self, name: str) -> str:
        return self.parameters[name]

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return an optional parameter."""
        return self.parameters.get(name, default)

    def flag(self, name: str) -> bool:
        """Return an optional boolean parameter."""
        return self.parameters.get(name) == "1"

    def task(self, kind: str, work: Callable[[Task, Node], None]) -> Outcome:
        """Run ``work`` as a task on this container."""
        return run_task(self.node, kind, self.parameters.get("vmid", ""), work, self.echo, self.wait)


@dataclass(frozen=True)
class Listed:
    """A list answer that also tells a total beside the data."""

    data: Any
    total: int


Handler = Callable[[Request], Any]
HANDLERS: dict[tuple[str, str], Handler] = {}


def route(method: str, template: str) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        HANDLERS[method, template] = handler
        return handler

    return register


def not_provided(method: str, path: str) -> ApiError:
    """Return the refusal of a call that Proxmox has and the stand-in doesn't."""
    return ApiError(501, f"{method} {path} is not provided by the kpro stand-in for Proxmox")
