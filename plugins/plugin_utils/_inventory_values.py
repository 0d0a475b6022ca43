# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds wrong values in an inventory before the first role runs.

A role checks its own when it begins, which for the last one is after everything has been changed.
"""

from __future__ import annotations

import copy
import functools
import re
import typing as t
from pathlib import Path

import yaml
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

OF_CONTAINER = ("gpu_container", "hf_model", "sglang_runtime", "sglang_server")
OF_NODE = ("gpu_node",)
# Without a default, and by a person: the other required ones are what earlier phases found.
NEEDED = ("gpu_container__vmid", "hf_model__repository", "sglang_server__served_name")

_ROLES = Path(__file__).resolve().parents[2] / "roles"
# Of a spec only what a check needs: ansible-core's validator knows no more.
_CHECKED = ("type", "choices", "elements", "options", "no_log")
_RESULT = re.compile(r"[a-z]__result'")

Spec = dict[str, t.Any]


@functools.cache
def specs(roles: tuple[str, ...]) -> dict[str, Spec]:
    """Return the options of the roles by name."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Spec] = {}
    for role in roles:
        text = (_ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
        found |= yaml.load(text, Loader=loader)["argument_specs"]["main"]["options"]
    return found


def defaults_files(roles: tuple[str, ...]) -> list[Path]:
    """Return the files with the roles' defaults."""
    return [_ROLES / role / "defaults" / "main.yml" for role in roles]


def problems(known: t.Mapping[str, Spec], names: t.Iterable[str], value_of: t.Callable[[str], t.Any]) -> list[str]:
    """Return a sentence for each value that a role would refuse, or that can't be had at all.

    :param known: the options of the roles.
    :param names: variables of the host.
    :param value_of: returns the value of a variable as the role will see it.
    """
    found = []
    for name in sorted(set(names) & set(known)):
        try:
            value = copy.deepcopy(value_of(name))
        except AnsibleError as error:
            # The result of a phase is not there yet, and an inventory may use it.
            if _RESULT.search(error.message):
                continue
            found.append(f"{name}: {error.message}")
            continue
        found += _refused(name, known[name], value)
    return found


def missing(names: t.Container[str]) -> list[str]:
    """Return a sentence for each value that only a person can give, and nobody gave."""
    return [f"{name} is not set: give it in the inventory" for name in NEEDED if name not in names]


def _refused(name: str, spec: Spec, value: t.Any) -> list[str]:
    result = ArgumentSpecValidator({name: _checked(spec)}).validate({name: value})
    if result.error_messages and spec.get("no_log"):
        return [f"{name}: its value is not of the type {spec.get('type', 'str')}"]
    return [f"{name}: {' '.join(message.split())}" for message in result.error_messages]


def _checked(spec: Spec) -> Spec:
    kept = {key: spec[key] for key in _CHECKED if key in spec}
    if "options" in kept:
        kept["options"] = {name: {**_checked(inner), "required": inner.get("required", False)} for name, inner in kept["options"].items()}
    return kept
