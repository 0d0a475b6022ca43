# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Splits problems of a node's GPUs into those that block a deployment and those that are only reported."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._pve.gpus import BUS_ID

Values = t.Mapping[str, t.Any]
_NODE = re.compile(r"/dev/nvidia(\d+)\Z")


@dataclasses.dataclass(frozen=True)
class SplitFindings:
    """Sentences about problems, and the GPUs that can be handed on.

    :param in_the_way: problems of the driver as a whole, and of GPUs that are needed.
    :param others: problems of GPUs that are not needed.
    :param usable: rows of ``gpu_info`` without a problem of their own.
    """

    in_the_way: tuple[str, ...]
    others: tuple[str, ...]
    usable: tuple[Values, ...]


def judge(seen: Values, wanted: t.Any) -> SplitFindings:
    """Split the errors of ``gpu_info`` into those that block the wanted GPUs and those that are harmless for them.

    :param seen: answer of ``gpu_info``.
    :param wanted: ``all``, a number, or a list of UUIDs and bus addresses.
    """
    gpus = [gpu for gpu in seen.get("gpus") or [] if gpu.get("uuid")]
    errors = [finding for finding in seen.get("findings") or [] if finding["level"] == "error"]
    slots = [_slot_of(finding["what"], gpus) for finding in errors]
    healthy = [gpu for gpu in gpus if _slot(gpu.get("bus_id")) not in slots]
    if isinstance(wanted, (list, tuple)):
        enough = all(any(_names(choice, gpu) for gpu in healthy) for choice in wanted)
    else:
        enough = str(wanted).isdecimal() and len(healthy) >= int(wanted)
    # A GPU that is lost has no row of its own, so its finding is about the GPUs as such.
    bearable = [enough and (slot is not None or finding["kind"] == "gpu_lost") for slot, finding in zip(slots, errors, strict=True)]
    return SplitFindings(
        in_the_way=(*(_sentence(error) for error, fine in zip(errors, bearable, strict=True) if not fine), *_missing(wanted, gpus)),
        others=tuple(_sentence(error) for error, fine in zip(errors, bearable, strict=True) if fine),
        usable=tuple(healthy if enough else gpus),
    )


def _missing(wanted: t.Any, gpus: t.Sequence[Values]) -> list[str]:
    """Return a sentence for each GPU that is wanted by a name that none has, or for a number that is more than there are."""
    if str(wanted).isdecimal() and gpus and int(wanted) > len(gpus):
        words = f"{wanted} are wanted, and the driver shows {len(gpus)} ({', '.join(str(gpu.get('bus_id')) for gpu in gpus)})"
        return [KproError("GPUs", words, "Look at lspci -d 10de: and the kernel log of the node for the one that is gone, or want fewer").sentence]
    names = [choice for choice in wanted if not any(_names(choice, gpu) for gpu in gpus)] if isinstance(wanted, (list, tuple)) and gpus else []
    there = ", ".join(f"{gpu['uuid']} ({gpu.get('bus_id')})" for gpu in gpus)
    return [KproError(f"GPU '{name}'", "the node has no such GPU", f"It has {there} (gpu_container__gpus)").sentence for name in names]


def _slot(bus_id: t.Any) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a PCI address; the function counts for nothing, a card is one slot."""
    match = BUS_ID.match(str(bus_id or "").strip())
    return (int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)) if match else None


def _slot_of(what: str, gpus: t.Sequence[Values]) -> tuple[int, int, int] | None:
    """Return the slot of the one GPU that a finding is about, None if it is about more than one."""
    if node := _NODE.match(what):
        return next((_slot(gpu.get("bus_id")) for gpu in gpus if gpu.get("minor") == int(node[1])), None)
    return _slot(what.removeprefix("GPU ")) if what.startswith("GPU ") else None


def _names(choice: t.Any, gpu: Values) -> bool:
    if str(choice).isdecimal() and gpu.get("index") is not None:
        return int(choice) == gpu["index"]
    return str(choice).lower() == str(gpu.get("uuid")).lower() or (_slot(choice) is not None and _slot(choice) == _slot(gpu.get("bus_id")))


def _sentence(finding: Values) -> str:
    return KproError(finding["what"], finding["reason"], finding.get("remedy", "")).sentence
