# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A memory plan at the terminal."""

from __future__ import annotations

import typing as t

from ansible.utils.display import Display

from ._on_controller import block

display = Display()

_COLOURS = {"OK": "bright green", "SHORT": "bright yellow", "RISK": "bright yellow", "FAIL": "bright red"}


def show_table(result: t.Mapping[str, t.Any]) -> None:
    """Print the table of a result, if it has one, in the colour of its verdict."""
    if result.get("table"):
        display.display(block(result["table"]), color=_COLOURS.get(result["verdict"]))
