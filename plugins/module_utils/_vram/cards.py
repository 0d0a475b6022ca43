# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs as data: memory, architecture, and what each can't do.

``total_mib`` is what nvidia-smi prints as memory.total; ``reserve_mib`` is what the driver keeps on an idle card (total less free).
The reserve of A6000, 4090, H100 and 5090 agrees with start-up logs; that of the others follows their kin.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing as t

from .._core.errors import KproError

_NO_FP8 = "no FP8 arithmetic: FP8 weights run through 16 bit kernels (slower, and not for every model), and an FP8 cache only saves memory"
_NO_FP4 = "no FP4 arithmetic"
_NO_NVLINK = "no NVLink: tensor parallelism runs over PCIe, and peer-to-peer may be off"


# Held back by the driver on an idle card, if no profile says otherwise.
DRIVER_RESERVE_MIB = 512


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU before the start.

    :param reserve_mib: what the driver keeps for itself on an idle card.
    :param sm: compute capability times ten; 0: by the name, if that is known.
    """

    total_mib: int
    free_mib: int
    name: str = ""
    reserve_mib: int = DRIVER_RESERVE_MIB
    sm: int = 0

    @property
    def missing_mib(self) -> int:
        """How much less is free than on an idle card."""
        return self.total_mib - self.reserve_mib - self.free_mib


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU type. ``sm`` is the compute capability times ten."""

    name: str
    total_mib: int
    sm: int
    pattern: str
    cannot: tuple[str, ...] = ()
    reserve_mib: int = DRIVER_RESERVE_MIB


PROFILES: dict[str, Gpu] = {
    "a6000": Gpu("RTX A6000", 49140, 86, r"RTX A6000", (_NO_FP8, _NO_FP4), 449),
    "a40": Gpu("A40", 46068, 86, r"\bA40\b", (_NO_FP8, _NO_FP4), 449),
    "a5000": Gpu("RTX A5000", 24564, 86, r"RTX A5000", (_NO_FP8, _NO_FP4), 449),
    "a10": Gpu("A10", 23028, 86, r"\bA10\b", (_NO_FP8, _NO_FP4, _NO_NVLINK), 449),
    "rtx3090": Gpu("GeForce RTX 3090", 24576, 86, r"RTX 3090(?! Ti)", (_NO_FP8, _NO_FP4), 446),
    "rtx4090": Gpu("GeForce RTX 4090", 24564, 89, r"RTX 4090", (_NO_FP4, _NO_NVLINK), 501),
    "rtx4080": Gpu("GeForce RTX 4080", 16376, 89, r"RTX 4080", (_NO_FP4, _NO_NVLINK), 501),
    "rtx4060ti-16": Gpu("GeForce RTX 4060 Ti 16 GB", 16380, 89, r"RTX 4060 Ti", (_NO_FP4, _NO_NVLINK), 501),
    "rtx5090": Gpu("GeForce RTX 5090", 32607, 120, r"RTX 5090", (_NO_NVLINK,), 501),
    "rtx5080": Gpu("GeForce RTX 5080", 16303, 120, r"RTX 5080", (_NO_NVLINK,), 501),
    "rtx5070ti": Gpu("GeForce RTX 5070 Ti", 16303, 120, r"RTX 5070 Ti", (_NO_NVLINK,), 501),
    "t4": Gpu("T4", 15360, 75, r"\bT4\b", (_NO_FP8, _NO_FP4, _NO_NVLINK), 449),
    "l4": Gpu("L4", 23034, 89, r"\bL4\b", (_NO_FP4, _NO_NVLINK), 476),
    "l40": Gpu("L40", 46068, 89, r"\bL40\b", (_NO_FP4, _NO_NVLINK), 476),
    "l40s": Gpu("L40S", 46068, 89, r"\bL40S\b", (_NO_FP4, _NO_NVLINK), 476),
    "rtx6000ada": Gpu("RTX 6000 Ada Generation", 49140, 89, r"RTX 6000 Ada", (_NO_FP4, _NO_NVLINK), 476),
    "a100-40": Gpu("A100 40 GB", 40960, 80, r"A100.*40GB", (_NO_FP8, _NO_FP4), 512),
    "a100-80": Gpu("A100 80 GB", 81920, 80, r"A100.*80GB", (_NO_FP8, _NO_FP4), 512),
    "h100": Gpu("H100 80 GB", 81559, 90, r"H100(?!.*NVL)", (_NO_FP4,), 480),
    "h100nvl": Gpu("H100 NVL", 95830, 90, r"H100.*NVL", (_NO_FP4,), 480),
    "h20": Gpu("H20", 97871, 90, r"\bH20\b", (_NO_FP4,), 480),
    "h200": Gpu("H200 141 GB", 143771, 90, r"H200", (_NO_FP4,), 540),
    "b200": Gpu("B200", 183359, 100, r"\bB200\b", (), 640),
    "rtxpro4500": Gpu("RTX PRO 4500 Blackwell", 32623, 120, r"RTX PRO 4500", (_NO_NVLINK,), 501),
    "rtxpro5000": Gpu("RTX PRO 5000 Blackwell", 48935, 120, r"RTX PRO 5000", (_NO_NVLINK,), 501),
    "rtxpro6000": Gpu("RTX PRO 6000 Blackwell 96 GB", 97887, 120, r"RTX PRO 6000", (_NO_NVLINK,), 636),
}
# The engine's kernels are compiled for these and newer ones.
LEAST_GENERATION = 80
_TOO_OLD = re.compile(r"\bTesla [KMPVT]|\bT4\b|\bV100|\bP100|\bP40\b|RTX 20\d\d|GTX |TITAN |Quadro (?!RTX A)", re.IGNORECASE)

# Their free memory is not the card's own, or not counted by CUDA.
_OTHER_KINDS = (
    (
        re.compile(r"\bunified\b|\bGB10\b|\bOrin\b|\bThor\b|\bXavier\b|\bTegra\b", re.IGNORECASE),
        "it shares its memory with the system, whose free part moves with other processes",
    ),
    (re.compile(r"\bMI\d{3}|\bRadeon\b|\bInstinct\b|\bGaudi\b|\bArc\b", re.IGNORECASE), "the engine sizes its pools by other rules on it"),
)


def check_kind(cards: t.Sequence[Card]) -> None:
    """Refuse cards whose memory does not follow the rules of the others.

    :raises KproError: naming the card and why.
    """
    for name in dict.fromkeys(card.name for card in cards):
        why = next((why for pattern, why in _OTHER_KINDS if pattern.search(name)), "")
        if why:
            raise KproError(f"GPU {name}", f"{why}: that is not modelled", "The planner makes no guess", field="name", value=name)
    for card in dict.fromkeys(cards):
        generation = generation_of_card(card)
        if (generation is not None and generation < LEAST_GENERATION) or (generation is None and _TOO_OLD.search(card.name)):
            has = f"it has {generation / 10:.1f}" if generation else "it is older"
            reason = f"the engine's kernels are compiled for compute capability {LEAST_GENERATION / 10:.1f} and newer, and {has}"
            raise KproError(f"GPU {card.name}".rstrip(), reason, "Use a card of the Ampere generation or newer", field="name", value=card.name)


def profile(name: str) -> Gpu:
    """Return a GPU type by its key or by the name that nvidia-smi prints.

    :raises KproError: for a type without a profile.
    """
    key = re.sub(r"[\s_]+", "", name.lower())
    for known, gpu in PROFILES.items():
        if key in (known, known.replace("-", ""), re.sub(r"\s+", "", gpu.name.lower())) or re.search(gpu.pattern, name):
            return gpu
    raise KproError("option gpu_type", f"there is no profile {name!r}", f"Known are {', '.join(PROFILES)}; or give gpus", field="gpu_type", value=name)


def idle_card(name: str) -> Card:
    """Return an idle card of a type."""
    gpu = profile(name)
    return Card(gpu.total_mib, gpu.total_mib - gpu.reserve_mib, gpu.name, gpu.reserve_mib)


def card_of(total_mib: int, free_mib: int, name: str = "", compute_capability: str = "") -> Card:
    """Return a card as read from the driver, with the reserve of its type if that is known.

    :param compute_capability: like "8.6"; empty if nobody could tell.
    """
    sm = capability_of(compute_capability)
    for gpu in PROFILES.values():
        if name and re.search(gpu.pattern, name) and gpu.total_mib == total_mib:
            return Card(total_mib, free_mib, name, gpu.reserve_mib, sm)
    return Card(total_mib, free_mib, name, sm=sm)


def capability_of(text: str) -> int:
    """Return a compute capability like "8.6" times ten; 0 for an empty one.

    :raises KproError: for another text.
    """
    match = re.fullmatch(r"(\d{1,2})\.(\d)", str(text or "").strip())
    if not match and text:
        reason = f"the value {text!r} is no compute capability"
        raise KproError("option gpus, key compute_capability", reason, "Give it like 8.6", field="compute_capability", value=text)
    return int(match[1]) * 10 + int(match[2]) if match else 0


def generation_of_card(card: Card) -> int | None:
    """Return a card's compute capability times ten, as given or by its name."""
    return card.sm or generation_of(card.name)


@functools.lru_cache(maxsize=256)
def generation_of(name: str) -> int | None:
    """Return a card's compute capability times ten, if its type is known."""
    return next((gpu.sm for gpu in PROFILES.values() if name and (re.search(gpu.pattern, name) or name == gpu.name)), None)


def limits_of(name: str) -> tuple[str, ...]:
    """Return what a card can't do, if its type is known."""
    return next((gpu.cannot for gpu in PROFILES.values() if name and (re.search(gpu.pattern, name) or name == gpu.name)), ())
