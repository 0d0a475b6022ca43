# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An answer over HTTP, and the address to ask at."""

from __future__ import annotations

import dataclasses
import json
import typing as t


@dataclasses.dataclass(frozen=True)
class HttpAnswer:
    """One HTTP answer.

    :param status: HTTP status; 0 if there was no answer.
    :param error: why there was none: refused, timeout, or the system's words.
    """

    status: int
    text: str = ""
    error: str = ""
    seconds: float = 0.0

    def json(self) -> t.Any:
        """Return the body as data, or None if it is no JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def connect_address(bind_address: str) -> str:
    """Return the address under which a server bound to ``bind_address`` is reached from its own machine."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(bind_address, bind_address)
