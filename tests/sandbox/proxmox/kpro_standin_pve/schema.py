# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proxmox's own API schema: which parameters a call takes and what is wrong with those given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import bad_parameters
from .formats import check_format, parse_property_string

SCHEMA_FILE = Path(__file__).resolve().parent.parent / "data" / "schema.json"
# Proxmox folds the numbered keys; these are the numbers it allows (exclusive upper bound).
NUMBERED = {"mp": 256, "dev": 256, "unused": 256, "net": 32}
# The dump holds no resource mappings; this one is asked only to find a GPU that a machine claims by one.
MORE = {"/cluster/mapping/pci": {"GET": {"properties": {"check-node": {"type": "string", "format": "pve-node", "optional": 1}}}}}
UNKNOWN = "property is not defined in schema and the schema does not allow additional properties"
MISSING = "property is missing and it is not optional"


@dataclass(frozen=True)
class Call:
    """A method of the API: its path template, the parameters bound by the path and the declared properties."""

    method: str
    template: str
    bound: dict[str, str]
    properties: dict[str, dict[str, Any]]


@lru_cache(maxsize=1)
def load() -> dict[str, Any]:
    """Return the paths of the schema file."""
    with open(SCHEMA_FILE, encoding="utf-8") as file:
        paths: dict[str, Any] = json.load(file)["paths"]
    return {**MORE, **paths}


def bind(template: str, path: str) -> dict[str, str] | None:
    """Return the path parameters of ``path`` under ``template``, or None; ``{volume}`` takes the rest with slashes."""
    names = re.findall(r"\{([^}]+)\}", template)
    pattern = re.sub(r"\{volume\}", "(.+)", template)
    pattern = re.sub(r"\{[^}]+\}", "([^/]+)", pattern)
    match = re.fullmatch(pattern, path)
    return dict(zip(names, match.groups(), strict=True)) if match else None


def find(method: str, path: str) -> Call | None:
    """Return the call that ``method`` on ``path`` names, literal parts before parameters; None when there is none."""
    paths = load()
    for template in sorted(paths, key=lambda name: (name.count("{"), name)):
        bound = bind(template, path)
        if bound is not None and method in paths[template]:
            return Call(method, template, bound, paths[template][method]["properties"])
    return None


def spec_of(properties: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the specification of a key, numbered keys included (``dev3`` is ``dev[n]``)."""
    if name in properties and "[" not in name:
        return properties[name]
    match = re.fullmatch(r"([a-z]+)(\d+)", name)
    if match and int(match[2]) < NUMBERED.get(match[1], 0) and str(int(match[2])) == match[2]:
        return properties.get(f"{match[1]}[n]")
    return None


def check_value(path: str, value: Any, spec: Mapping[str, Any]) -> str | None:
    """Return what is wrong with one value in Proxmox's words, None when nothing is."""
    if isinstance(value, list | tuple):
        return f"type check ('{spec.get('type', 'string')}') failed - got ARRAY"
    text = str(value)
    kind = spec.get("type", "string")
    pattern = {"integer": r"[+-]?\d+", "number": r"[+-]?\d+(?:\.\d*)?|\.\d+", "boolean": "[01]"}.get(kind)
    if pattern and not re.fullmatch(pattern, text):
        return f"type check ('{kind}') failed - got '{text}'"
    form = spec.get("format")
    if form:
        try:
            if isinstance(form, dict):
                parse_property_string(form, text, path)
            else:
                check_format(form, text)
        except ValueError as error:
            return f"invalid format - {error}"
    return _check_bounds(text, spec)


def _check_bounds(text: str, spec: Mapping[str, Any]) -> str | None:
    # Perl prints its default flags into a pattern; Python knows no such group.
    if "pattern" in spec and not re.fullmatch(spec["pattern"].replace("(?^:", "(?:"), text):
        return "value does not match the regex pattern"
    if "maxLength" in spec and len(text) > spec["maxLength"]:
        return f"value may only be {spec['maxLength']} characters long"
    if "minLength" in spec and len(text) < spec["minLength"]:
        return f"value must be at least {spec['minLength']} characters long"
    if re.fullmatch(r"[+-]?\d+(?:\.\d+)?", text):
        if "maximum" in spec and float(text) > spec["maximum"]:
            return f"value must have a maximum value of {spec['maximum']}"
        if "minimum" in spec and float(text) < spec["minimum"]:
            return f"value must have a minimum value of {spec['minimum']}"
    if "enum" in spec and text not in spec["enum"]:
        return f"value '{text}' does not have a value in the enumeration '{', '.join(spec['enum'])}'"
    return None


def check_properties(properties: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return all errors of an object, by full name (``dev0.mode``)."""
    errors: dict[str, str] = {}
    prefix = f"{path}." if path else ""
    for name, value in values.items():
        spec = spec_of(properties, name)
        reason = UNKNOWN if spec is None else check_value(prefix + name, value, spec)
        if reason is not None:
            errors[prefix + name] = reason
        elif spec and "requires" in spec and spec["requires"] not in values:
            errors[prefix + spec["requires"]] = f"missing property required by '{name}'"
    for name, declared in properties.items():
        if not declared.get("optional") and name not in values and "[" not in name:
            errors[prefix + name] = MISSING
    return errors


def validate(call: Call, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return path and call parameters as text; JSON booleans become 1 and 0, all bad ones are one 400."""
    given = {name: int(value) if isinstance(value, bool) else value for name, value in parameters.items()}
    values = {**given, **call.bound}
    errors = check_properties(call.properties, values)
    if errors:
        raise bad_parameters(errors)
    return {name: str(value) for name, value in values.items()}
