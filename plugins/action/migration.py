# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses on the controller how a deployment moves to another node."""

from __future__ import annotations

import dataclasses
import typing as t

from ..module_utils._core.errors import KproError
from ..plugin_utils._migration import Seen, choose_way
from ..plugin_utils._on_controller import OnController


class ActionModule(OnController):
    """Fails if there is no way."""

    SPEC: t.ClassVar[dict[str, t.Any]] = {
        "source": {"type": "str", "required": True},
        "target": {"type": "str", "required": True},
        "there": {"type": "dict", "required": True},
        "here": {"type": "dict", "required": True},
        "declared_address": {"type": "str", "default": ""},
        "adopt": {"type": "bool", "default": False},
    }

    def answer(self, given: dict[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        there = {} if given["there"].get("unreachable") else given["there"]
        for side, answer in (("there", there), ("here", given["here"])):
            if answer.get("failed") or answer.get("unreachable"):
                return {"failed": True, "msg": f"Nothing was changed. {given['source' if side == 'there' else 'target']}: {answer.get('msg')}"}
        address = given["declared_address"].partition("/")[0]
        seen = Seen(given["source"], given["target"], there, given["here"], address if "." in address else "", given["adopt"])
        try:
            way = choose_way(seen)
        except KproError as error:
            return {"failed": True, "msg": f"Nothing was changed. {error.sentence}"}
        return {**dataclasses.asdict(way), "way": way.name}
