# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPU generation the engine demands for a quantised model.

The engine refuses too old a card when it begins to load (model_loader/loader.py, get_min_capability of each method in
layers/quantization): after the download, with a message about a number. The numbers are read in 0.5.8 to 0.5.23.
"""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._engine.versions import release_of
from .cards import Card, generation_of

# Method -> (from this release on, least compute capability times ten), the newest first.
_LEAST: t.Mapping[str, tuple[tuple[str, int], ...]] = {
    "fp8": (("0.5.8", 80),),
    "mxfp8": (("0.5.9", 100),),
    "modelopt_fp8": (("0.5.8", 89),),
    "modelopt_mixed": (("0.5.13", 80), ("0.5.8", 100)),
    "modelopt_fp4": (("0.5.13", 80), ("0.5.8", 100)),
    "w8a8_fp8": (("0.5.8", 89),),
    "w8a8_int8": (("0.5.8", 75),),
    "w4afp8": (("0.5.8", 90),),
    "blockwise_int8": (("0.5.8", 80),),
    "awq": (("0.5.8", 75),),
    "awq_marlin": (("0.5.8", 80),),
    "gptq": (("0.5.8", 60),),
    "gptq_marlin": (("0.5.8", 80),),
    "compressed-tensors": (("0.5.8", 70),),
    "bitsandbytes": (("0.5.8", 70),),
    "mxfp4": (("0.5.8", 80),),
    "petit_nvfp4": (("0.5.8", 90),),
}


def method_of(config: t.Mapping[str, t.Any]) -> str:
    """Return the engine's name of the quantisation that a ``config.json`` declares; empty if there is none."""
    text = config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, t.Mapping) else None
    section = config.get("quantization_config") or inner or config.get("compression_config")
    if not isinstance(section, t.Mapping):
        return ""
    method = str(section.get("quant_method", ""))
    kind = str(section.get("quant_algo") or "").upper()
    if method == "modelopt":
        return "modelopt_mixed" if "MIXED" in kind else "modelopt_fp4" if "FP4" in kind else "modelopt_fp8"
    return method


def least_generation(method: str, version: str) -> int | None:
    """Return the compute capability times ten that a release demands for a method; None if that is not known."""
    release = release_of(version)
    return next((least for since, least in _LEAST.get(method, ()) if release >= release_of(since)), None)


def check_quantization(config: t.Mapping[str, t.Any], where: str, cards: t.Sequence[Card], version: str) -> list[str]:
    """Return notes on what can't be told.

    :raises KproError: if the engine would refuse a card because of its generation.
    """
    method = method_of(config)
    if not method:
        return []
    least = least_generation(method, version)
    if least is None:
        return [f"whether SGLang {version} loads the quantisation {method!r} on these cards is not known here"]
    for name in dict.fromkeys(card.name for card in cards):
        generation = generation_of(name)
        if generation is not None and generation < least:
            reason = f"SGLang {version} loads the quantisation {method!r} from compute capability {least / 10:.1f} on, and {name} has {generation / 10:.1f}"
            raise KproError(where, reason, "Choose the BF16 model or one quantised in another way, or newer cards", field="quant_method", value=method)
    return []
