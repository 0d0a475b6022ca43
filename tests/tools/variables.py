#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/variables.md from the roles' argument specs; a unit test says when it has to run again."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "variables.md"
ORDER = ("gpu_node", "gpu_container", "sglang_runtime", "hf_model", "sglang_server", "peer_access")


def spec(role: str) -> dict[str, t.Any]:
    """Return the argument spec of a role's main entry point; of the first one, which names what all share, where there is no main."""
    specs = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    return specs.get("main") or next(iter(specs.values()))


def defaults(role: str) -> dict[str, t.Any]:
    """Return the role's defaults."""
    return yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")) or {}


def page() -> str:
    """Return the whole page."""
    parts = [
        "# Variables of the roles",
        "Made by `tests/tools/variables.py` from the roles' argument specs. A value in the inventory wins over the default here.",
        "",
    ]
    for role in ORDER:
        parts += [f"## {role}", "", spec(role)["short_description"] + ".", "", "| variable | type | default | meaning |", "|---|---|---|---|"]
        values = defaults(role)
        for name, option in sorted(spec(role)["options"].items()):
            parts.append(f"| `{name}` | {_type(option)} | {_default(name, option, values)} | {_meaning(option)} |")
        parts.append("")
    return "\n".join(parts)


def _type(option: dict[str, t.Any]) -> str:
    kind = str(option.get("type", "str"))
    return f"list of {option['elements']}" if kind == "list" and "elements" in option else kind


def _default(name: str, option: dict[str, t.Any], values: dict[str, t.Any]) -> str:
    if option.get("required"):
        return "(required)"
    value = values.get(name, option.get("default"))
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`".replace("|", "\\|") if text not in ("", "null") else "(empty)"


def _meaning(option: dict[str, t.Any]) -> str:
    given = option.get("description", "")
    text = " ".join(given if isinstance(given, list) else [given])
    text = re.sub(r"\b[VCO]\(([^()]*)\)", r"`\1`", text)
    text = re.sub(r"\bM\(([^()]*)\)", r"`\1`", text)
    choices = f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}." if option.get("choices") else ""
    return (text + choices).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
