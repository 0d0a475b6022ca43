# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the plan's inputs on this machine: GPUs, and a model's files."""

from __future__ import annotations

import dataclasses
import os
import typing as t

from .._core.errors import KproError
from .._gpu.nvidia_smi_edge import ask_nvidia_smi
from .._gpu.nvml_edge import ask_nvml
from .._linux.command_edge import Command
from .cards import Card, card_of, idle_card
from .folder_edge import ModelFolder
from .models import config_of
from .request import Request

Params = t.Mapping[str, t.Any]

_MOST_CARDS = 1024


def request_of(params: Params) -> Request:
    """Return the plan that the module's options ask for.

    :raises KproError: if model or GPUs can't be read.
    """
    config, where, entries, notes = params["model_config"], "option model_config", [], []
    if params["model_path"]:
        folder = ModelFolder(params["model_path"])
        config, where, entries = folder.config(), f"{params['model_path']}/config.json", folder.entries()
        notes = folder.notes
    elif params["model_profile"]:
        config, where = config_of(params["model_profile"]), f"profile {params['model_profile']}"
    cards = cards_of(params["gpus"], params["gpu_type"], params["gpu_count"])
    return Request(
        config,
        where,
        entries,
        cards,
        params["sglang_version"],
        params["args"],
        params["environment"],
        params["weights_gib"],
        params["free_before_load_gib"],
        notes,
    )


def cards_of(gpus: t.Sequence[Params] | None, gpu_type: str | None, gpu_count: int) -> tuple[Card, ...]:
    """Return the cards that are given, idle ones of a type, or those of this machine.

    :raises KproError: if this machine shows none.
    """
    if gpus is not None:
        return tuple(_given_card(gpu) for gpu in gpus)
    if gpu_type:
        if not 1 <= gpu_count <= _MOST_CARDS:
            raise KproError("option gpu_count", f"the value {gpu_count} is not between 1 and {_MOST_CARDS}", field="gpu_count", value=gpu_count)
        return tuple(idle_card(gpu_type) for _number in range(gpu_count))
    check_system(os.uname().release)
    seen = ask_nvml()
    if seen.error:
        other = ask_nvidia_smi(Command())
        seen = seen if other.error else other
    if seen.error or not seen.gpus:
        reason = seen.error or "the driver shows no GPU"
        raise KproError("GPUs of the target", reason, "Pass the GPUs to the container, or give gpus or gpu_type", field="gpus")
    return tuple(_seen_card(number, gpu.memory_mib, gpu.memory_free_mib, gpu.name or "") for number, gpu in enumerate(seen.gpus))


def check_system(kernel: str) -> None:
    """Refuse to read GPUs under a system that holds back memory which CUDA counts as free.

    :param kernel: release of the running kernel.
    :raises KproError: under WSL (about 16 of 96 GiB are missing there: sgl-project/sglang issue 24364).
    """
    if "microsoft" in kernel.lower():
        reason = f"the kernel is {kernel}, and WSL holds back memory that counts as free, which is not modelled"
        raise KproError("GPUs of the target", reason, "The planner makes no guess; give gpus or gpu_type to plan for Linux itself", field="gpus", value=kernel)


def _seen_card(number: int, total_mib: int | None, free_mib: int | None, name: str) -> Card:
    if not total_mib or free_mib is None:
        field = "free_mib" if total_mib else "total_mib"
        raise KproError(f"GPU {number} of the target", f"the driver does not tell its {field}", "Give gpus or gpu_type", field=field)
    return card_of(total_mib, free_mib, name.removeprefix("NVIDIA "))


def _given_card(gpu: Params) -> Card:
    card = card_of(gpu["total_mib"], 0, gpu["name"], gpu.get("compute_capability") or "")
    free = gpu["free_mib"] if gpu["free_mib"] is not None else card.total_mib - card.reserve_mib
    return dataclasses.replace(card, free_mib=free)
