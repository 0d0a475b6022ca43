# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Vision towers: blocks of attention and feed-forward, and what joins them to the language model."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError

_MOST = 1 << 20


@dataclasses.dataclass(frozen=True)
class Tower:
    """Parameters of a vision tower.

    :param block: of the matrices of one block, which the GPUs divide; ``whole``: what each GPU holds.
    """

    depth: int
    block: int
    whole: int


def tower_of(kind: str, config: t.Mapping[str, t.Any], text_hidden: int, where: str) -> Tower:
    """Return the tower that a ``vision_config`` describes.

    :param kind: which row of the table (``Family.tower``).
    :raises KproError: for a missing or senseless field.
    """
    if not config and kind != "llama4":  # The only one whose class has a default for each field.
        raise KproError(where, "the field 'vision_config' is missing", "Give the model's own config.json, unabridged", field="vision_config")

    def number(*names: str, default: int | None = None) -> int:
        name = next((name for name in names if config.get(name) is not None), names[0])
        value = config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST:
            reason = f"the field {name!r} is {value!r}, and must be a whole number above 0" if value is not None else f"the field {name!r} is missing"
            raise KproError(f"{where} (vision_config)", reason, "Give the model's own config.json", field=name, value=value)
        return value

    return _MAKERS[kind](number, text_hidden)


_Number = t.Callable[..., int]


def _siglip(number: _Number, text: int) -> Tower:
    depth, hidden, inner = number("num_hidden_layers", default=27), number("hidden_size", default=1152), number("intermediate_size", default=4304)
    patch, size = number("patch_size", default=14), number("image_size", default=896)
    block = 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner
    return Tower(depth, block, 3 * patch * patch * hidden + hidden + (size // patch) ** 2 * hidden + 3 * hidden + hidden * text)


def _pixtral(number: _Number, text: int) -> Tower:
    depth, hidden, inner = number("num_hidden_layers", default=24), number("hidden_size", default=1024), number("intermediate_size", default=4096)
    patch = number("patch_size", default=14)
    block = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    return Tower(depth, block, 3 * patch * patch * hidden + 4 * hidden * hidden + 2 * hidden + hidden * text + text * text)


def _qwen2_5(number: _Number, text: int) -> Tower:
    depth, hidden, inner, out = (
        number("depth", default=32),
        number("hidden_size"),
        number("intermediate_size", default=3420),
        number("out_hidden_size", default=text),
    )
    merged = hidden * number("spatial_merge_size", default=2) ** 2
    patch = 3 * number("temporal_patch_size", default=2) * number("patch_size", "spatial_patch_size", default=14) ** 2 * hidden
    block = 4 * hidden * hidden + 3 * hidden * inner + 6 * hidden + 2 * inner
    return Tower(depth, block, patch + merged * merged + merged * out + merged + out + hidden)


def _glm(number: _Number, text: int) -> Tower:
    depth, hidden, out, inner = number("depth"), number("hidden_size"), number("out_hidden_size"), number("intermediate_size")
    merge, patch = number("spatial_merge_size", default=2), 3 * number("temporal_patch_size", default=2) * number("patch_size", default=14) ** 2 * hidden
    positions = (number("image_size", default=336) // number("patch_size", default=14)) ** 2 * hidden
    block = 4 * hidden * hidden + 3 * hidden * out + 2 * hidden
    return Tower(depth, block, patch + positions + hidden * out * merge**2 + out * out + 3 * out * inner)


def _llama4(number: _Number, text: int) -> Tower:
    depth, hidden, inner = number("num_hidden_layers", default=34), number("hidden_size", default=1408), number("intermediate_size", default=5632)
    patch, size = number("patch_size", default=14), number("image_size", default=336)
    middle, out = number("projector_input_dim", default=4096), number("vision_output_dim", default=4096)
    block = 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner
    return Tower(depth, block, 3 * patch * patch * hidden + ((size // patch) ** 2 + 1) * hidden + inner * middle + middle * out + out * text)


def _gemma4(number: _Number, text: int) -> Tower:
    depth, hidden, inner = number("num_hidden_layers"), number("hidden_size"), number("intermediate_size")
    patch, positions = number("patch_size", default=16), number("position_embedding_size", default=10240)
    block = 4 * hidden * hidden + 3 * hidden * inner + 4 * hidden
    return Tower(depth, block, 3 * patch * patch * hidden + 2 * positions * hidden + hidden * text)


_MAKERS: dict[str, t.Callable[[_Number, int], Tower]] = {
    "siglip": _siglip,
    "pixtral": _pixtral,
    "qwen2_5_vl": _qwen2_5,
    "glm4v": _glm,
    "llama4": _llama4,
    "gemma4": _gemma4,
}
