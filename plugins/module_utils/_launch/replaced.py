# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the first release in their new form. They go with the next release, and this file with them."""

from __future__ import annotations

import itertools
import typing as t

from .._core.errors import KproError
from .._service.ladder import ATTENTION_RUNG
from .decide import ONLY_RUNG

Values = dict[str, t.Any]

_NOW = {
    "gpu_memory_mib": "memory_mib of each record of gpus (role sglang_server: sglang_server__gpus)",
    "attention": "derived from the GPUs; what you want otherwise belongs into options (role sglang_server: sglang_server__options)",
    "hardware": "derived from capabilities, toolkit and peers_off (role sglang_server: variables of these names)",
}
_FACTS = ("capabilities", "toolkit", "peers_off")


def with_new_names(params: t.Mapping[str, t.Any]) -> tuple[Values, list[str]]:
    """Return the module's options with what ``replaced`` holds in its new place, and a sentence for each old name.

    :raises KproError: for a name that was none of the first release.
    """
    old = {name: value for name, value in (params["replaced"] or {}).items() if value}
    for name in old:
        if name not in _NOW:
            raise KproError(f"option replaced, key {name}", "there was no such option", f"Known are {', '.join(_NOW)}", field="replaced")
    hardware, attention = _mapping(old, "hardware"), _mapping(old, "attention")
    new = {**params, **{name: hardware[name] for name in _FACTS if name in hardware}}
    new["gpus"] = _with_memory(params["gpus"], old.get("gpu_memory_mib", []))
    new["options"] = {**_mapping(hardware, "options"), **_mapping(attention, "options"), **params["options"]}
    new["environment"] = {**_mapping(hardware, "environment"), **params["environment"]}
    fallback = _mapping(attention, "fallback")
    if fallback and "attention_backend" not in params["options"]:
        new["profiles"] = _with_last_rung(params["profiles"], fallback)
    return new, [f"{name} (role sglang_server: sglang_server__{name}) works in this release only. It is now {_NOW[name]}" for name in old]


def _mapping(values: t.Mapping[str, t.Any], name: str) -> Values:
    found = values.get(name) or {}
    if not isinstance(found, dict):
        raise KproError(f"option replaced, key {name}", f"the value {found!r} has no keys", "Leave it out", field="replaced")
    return found


def _with_memory(gpus: t.Sequence[t.Any], memory_mib: t.Sequence[t.Any]) -> list[t.Any]:
    """Return the GPUs as records, in order, each with its memory unless its record has one."""
    if not memory_mib:
        return list(gpus)
    records = [{"uuid": gpu} if isinstance(gpu, str) else gpu for gpu in gpus]
    return [{"memory_mib": mib, **_known(gpu)} for gpu, mib in itertools.zip_longest(records, memory_mib[: len(records)])]


def _known(gpu: t.Any) -> Values:
    if not isinstance(gpu, dict):
        raise KproError("option gpus", f"{gpu!r} is no record of a GPU", "Give them as kpro.llm.gpu_info does", field="gpus")
    return {name: value for name, value in gpu.items() if name != "memory_mib" or value is not None}


def _with_last_rung(profiles: t.Sequence[Values], fallback: Values) -> list[Values]:
    rungs = list(profiles) or [{"name": ONLY_RUNG, "options": {}, "goal": None}]
    return [*rungs, {**rungs[-1], "name": ATTENTION_RUNG, "options": {**rungs[-1]["options"], **fallback}}]
