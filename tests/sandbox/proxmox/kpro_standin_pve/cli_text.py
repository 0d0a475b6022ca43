# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text forms of an answer: tables, indented JSON, YAML. Nothing of the collection reads them."""

from __future__ import annotations

import json
from typing import Any


def render(data: Any, form: str, noborder: bool = False) -> str:
    """Return ``data`` as text in the form asked for."""
    if form == "json-pretty":
        return json.dumps(data, sort_keys=True, indent=3, separators=(",", " : "), ensure_ascii=False) + "\n"
    if form == "yaml":
        return "---\n" + _yaml(data)
    if data is None:
        return ""
    if isinstance(data, dict):
        rows = [[key, _cell(value)] for key, value in sorted(data.items())]
        return table(["key", "value"], rows, noborder)
    if isinstance(data, list) and data and isinstance(data[0], dict):
        names = sorted({key for row in data for key in row})
        return table(names, [[_cell(row.get(name, "")) for name in names] for row in data], noborder)
    return f"{data}\n" if not isinstance(data, list) else "".join(f"{_cell(item)}\n" for item in data)


def _cell(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict | list) else str(value)


def table(heads: list[str], rows: list[list[str]], noborder: bool = False) -> str:
    """Return a table with Proxmox's box lines, or bare columns."""
    widths = [max(len(line[n]) for line in [heads, *rows]) for n in range(len(heads))]
    if noborder:
        return "".join(" ".join(cell.ljust(widths[n]) for n, cell in enumerate(line)).rstrip() + "\n" for line in [heads, *rows])

    def rule(left: str, middle: str, right: str, dash: str) -> str:
        return left + middle.join(dash * (width + 2) for width in widths) + right + "\n"

    def line(cells: list[str]) -> str:
        return "│" + "│".join(f" {cell.ljust(widths[n])} " for n, cell in enumerate(cells)) + "│\n"

    body = rule("├", "┼", "┤", "─").join(line(row) for row in rows)
    return rule("┌", "┬", "┐", "─") + line(heads) + rule("╞", "╪", "╡", "═") + body + rule("└", "┴", "┘", "─")


def _yaml(data: Any) -> str:
    if isinstance(data, dict):
        return "".join(f"{key}: {_scalar(value)}\n" for key, value in sorted(data.items()))
    if isinstance(data, list):
        return "".join(f"- {_scalar(value)}\n" for value in data)
    return f"{_scalar(data)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        return json.dumps(value)
    text = str(value)
    looks_like_number = text.replace(".", "", 1).isdigit()
    return f"'{text}'" if isinstance(value, str) and looks_like_number else text
