# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quantised weights, one object a method: its bytes on a generation of cards, what it can be divided by, and what the engine refuses.

The engine refuses when it begins to load (model_loader/loader.py, get_min_capability of each method in layers/quantization) or while it makes a
layer (create_weights): after the download. Read in 0.5.8 to 0.5.23.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing as t

from .._core.errors import KproError
from .._engine.versions import release_of
from .cards import Card, generation_of_card
from .shown import shown

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
# From this generation on a card computes in FP8; from 8.0 to below, the engine repacks dense FP8 weights for its Marlin kernel
# (can_auto_enable_marlin_fp8), and there is no kernel for experts in FP8.
FP8_GENERATION, MARLIN_GENERATION = 89, 80
# Outputs of a matrix that Marlin repacks come in tiles of this many (gptq_marlin_repack; GPTQ_MARLIN_MIN_THREAD_N).
_MARLIN_TILE = 64
_LONGEST_PATTERN = 300
_REMEDY = "Choose the BF16 model or one quantised in another way, or newer cards"


class Kind(t.NamedTuple):
    """What one kind of quantisation writes.

    :param bits: of an element; ``floating``: whether it is a floating-point number.
    :param rows, columns: elements that share a scale; 0: all of them.
    """

    bits: int
    floating: bool
    rows: int
    columns: int
    scale_bytes: int
    zero_points: bool = False


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How a checkpoint's matrices are stored.

    :param method: the engine's name; empty for a plain one.
    :param kind: of the quantised matrices; None if it can't be told from the config.
    :param only_experts: whether everything else is plain.
    :param kept: modules that stay plain, as the config names them.
    :param cache: ``fp8``: the checkpoint brings scales for an FP8 cache; ``16 bit``: it says it does not; empty: it does not say.
    """

    method: str = ""
    kind: Kind | None = None
    only_experts: bool = False
    kept: tuple[str, ...] = ()
    cache: str = ""

    @property
    def fp8(self) -> bool:
        """Whether weights are stored in FP8."""
        return self.kind is not None and self.kind.floating and self.kind.bits == 8

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of the blocks of block FP8; zeros for all others."""
        return (self.kind.rows, self.kind.columns) if self.kind and self.fp8 and self.kind.rows > 0 and self.kind.columns > 0 else (0, 0)

    def marlin(self, generation: int | None) -> bool:
        """Whether the engine repacks dense FP8 weights, since the card doesn't compute in FP8."""
        return self.fp8 and generation is not None and MARLIN_GENERATION <= generation < FP8_GENERATION

    def pieces(self, rows: float, columns: float, generation: int | None, expert: bool) -> list[float]:
        """Return the sizes in bytes of what one quantised matrix becomes on a GPU: elements, scales, zero points."""
        kind = t.cast("Kind", self.kind)
        elements = rows * columns * kind.bits / 8
        groups = -(-columns // kind.columns) if kind.columns else 1
        if self.marlin(generation) and not expert:
            # One scale in 16 bit for each output and group (prepare_fp8_layer_for_marlin).
            return [elements, rows * groups * 2]
        scales = (-(-rows // kind.rows) if kind.rows else 1) * groups
        return [elements, scales * kind.scale_bytes, *([scales * kind.bits / 8] if kind.zero_points else [])]

    def keeps(self, module: str) -> bool:
        """Whether a module stays plain although its kind is quantised."""
        named, patterns = _names(self.kept)
        places = module.split(".")
        return any(".".join(places[:end]) in named for end in range(1, len(places) + 1)) or any(pattern.search(module) for pattern in patterns)


@functools.lru_cache(maxsize=64)
def _names(kept: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Modules of single layers by name, and the others as patterns; without what comes before the layers."""
    patterns: list[re.Pattern[str]] = []
    named: set[str] = set()
    words: set[str] = set()
    for name in kept:
        if name.startswith("re:"):
            if len(name) > _LONGEST_PATTERN or re.search(r"[)\]*+?}]\s*[*+{]", name[3:]):
                # Repeated groups can take for ever; no published checkpoint has one.
                continue
            try:
                patterns.append(re.compile(name[3:].removeprefix("^").removeprefix("model.").removeprefix("language_model.")))
            except re.error:
                continue
            continue
        plain = re.sub(r"^(model|language_model|text_model|transformer|backbone)\.", "", re.sub(r"^(model\.)?language_model\.", "", name)).rstrip(".*")
        (named if re.match(r"layers\.\d+(\.[\w.]+)?$", plain) else words).add(plain)
    words.discard("")
    if words:
        joined = "|".join(re.escape(word).replace(r"\*", r"[^.]*") for word in sorted(words))
        patterns.append(re.compile(rf"(^|\.)({joined})(\.|$)"))
    return frozenset(named), tuple(patterns)


def section_of(config: t.Mapping[str, t.Any]) -> t.Mapping[str, t.Any]:
    """Return the part of a ``config.json`` that declares the quantisation; empty if there is none."""
    text = config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, t.Mapping) else None
    section = config.get("quantization_config") or inner or config.get("compression_config")
    return section if isinstance(section, t.Mapping) else {}


def method_of(config: t.Mapping[str, t.Any]) -> str:
    """Return the engine's name of the quantisation that a ``config.json`` declares; empty if there is none."""
    section = section_of(config)
    method = str(section.get("quant_method") or ("modelopt" if section.get("quant_algo") else "" if not section else "unknown"))
    kind = str(section.get("quant_algo") or _inner(section).get("quant_algo") or "").upper()
    if method == "modelopt":
        return "modelopt_mixed" if "MIXED" in kind else "modelopt_fp4" if "FP4" in kind else "modelopt_fp8"
    return method


def _inner(section: t.Mapping[str, t.Any]) -> t.Mapping[str, t.Any]:
    inner = section.get("quantization")
    return inner if isinstance(inner, t.Mapping) else {}


def scheme_of(config: t.Mapping[str, t.Any], where: str = "config.json") -> Scheme:
    """Return how the weights are stored.

    :raises KproError: for a field that can't be.
    """
    section, method = section_of(config), method_of(config)
    if not method:
        return Scheme()
    kept: t.Any = ()
    for name in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        kept = kept or section.get(name) or _inner(section).get(name)
    names = tuple(str(name) for name in kept) if isinstance(kept, (list, tuple)) else (str(kept),) if kept else ()
    makers: dict[str, t.Callable[[t.Mapping[str, t.Any], str], Kind | None]] = {
        "fp8": _fp8,
        "awq": _integers,
        "gptq": _integers,
        "compressed-tensors": _compressed,
        "modelopt_fp8": lambda _section, _where: Kind(8, True, 0, 0, 4),
        "modelopt_fp4": lambda _section, _where: Kind(4, True, 1, 16, 1),
        "mxfp4": lambda _section, _where: Kind(4, True, 1, 32, 1),
    }
    kind = makers[method](section, where) if method in makers else None
    return Scheme(method, kind, method == "mxfp4", names, _cache(section))


def _whole(section: t.Mapping[str, t.Any], names: t.Sequence[str], where: str, default: int | None = None) -> int:
    name = next((name for name in names if section.get(name) is not None), names[0])
    value = section.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1) or value > 1 << 20:
        raise KproError(where, f"the field {name!r} of the quantisation is {shown(value)}, and must be a whole number above 0", field=name)
    return value


def _blocks(value: t.Any, where: str) -> tuple[int, int]:
    sizes = value if isinstance(value, (list, tuple)) else ()
    if len(sizes) != 2 or not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= 1 << 20 for size in sizes):
        reason = f"the field 'weight_block_size' is {shown(value)}, and must be two whole numbers"
        raise KproError(where, reason, field="weight_block_size")
    return sizes[0], sizes[1]


def _fp8(section: t.Mapping[str, t.Any], where: str) -> Kind:
    rows, columns = _blocks(section.get("weight_block_size") or (0, 0), where)
    return Kind(8, True, rows, columns, 4)


def _integers(section: t.Mapping[str, t.Any], where: str) -> Kind:
    """AWQ and GPTQ: whole numbers, a scale in 16 bit for each output and group; zero points only where they are not symmetric."""
    bits = _whole(section, ("bits", "w_bit"), where)
    group = _whole(section, ("group_size", "q_group_size"), where, -1)
    if bits not in (2, 3, 4, 8):
        raise KproError(where, f"the field 'bits' of the quantisation is {bits}, which the engine does not take", field="bits", value=bits)
    zero_points = bool(section.get("zero_point", True)) if section.get("quant_method") == "awq" else not section.get("sym", True)
    return Kind(bits, False, 1, max(group, 0), 2, zero_points)


def _compressed(section: t.Mapping[str, t.Any], where: str) -> Kind | None:
    groups = section.get("config_groups")
    found = [group for group in groups.values() if isinstance(group, t.Mapping)] if isinstance(groups, t.Mapping) else []
    kinds = {_of_group(group.get("weights"), where) for group in found}
    return kinds.pop() if len(kinds) == 1 else None


def _of_group(weights: t.Any, where: str) -> Kind | None:
    if not isinstance(weights, t.Mapping):
        return None
    bits, floating = _whole(weights, ("num_bits",), where), weights.get("type") == "float"
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if strategy == "block":
        rows, columns = _blocks(weights.get("block_structure"), where)
        return Kind(bits, floating, rows, columns, 4)
    if strategy in ("group", "tensor_group"):
        group = _whole({"group_size": size}, ("group_size",), where)
        return Kind(bits, floating, 1, max(group, 0), 1 if floating and bits == 4 else 2, not weights.get("symmetric", True))
    if strategy == "channel":
        return Kind(bits, floating, 1, 0, 4 if bits == 8 else 2)
    return Kind(bits, floating, 0, 0, 4) if strategy == "tensor" else None


def _cache(section: t.Mapping[str, t.Any]) -> str:
    """What the checkpoint says of the cache (mem_cache/kv_cache_dtype.py; _parse_modelopt_quant_config)."""
    for place in (section, _inner(section)):
        if "kv_cache_quant_algo" in place:
            return "fp8" if str(place["kv_cache_quant_algo"]).upper() == "FP8" else "16 bit"
        scheme = place.get("kv_cache_scheme")
        if isinstance(scheme, t.Mapping):
            return "fp8" if scheme.get("type") == "float" and scheme.get("num_bits") == 8 else "16 bit"
        if "kv_cache_scheme" in place:
            return "16 bit"
    return ""


def least_generation(method: str, version: str) -> int | None:
    """Return the compute capability times ten that a release demands for a method; None if that is not known."""
    release = release_of(version)
    return next((least for since, least in _LEAST.get(method, ()) if release >= release_of(since)), None)


def check_quantization(config: t.Mapping[str, t.Any], where: str, cards: t.Sequence[Card], version: str, experts: bool = False) -> list[str]:
    """Return notes on what can't be told.

    :param experts: whether the model has experts.
    :raises KproError: if the engine would refuse a card because of its generation.
    """
    method = method_of(config)
    if not method:
        return []
    least = least_generation(method, version)
    if least is None:
        return [f"whether SGLang {version} loads the quantisation {method!r} on these cards is not known here"]
    scheme = scheme_of(config, where)
    kept = experts and scheme.keeps("layers.0.mlp.experts")
    unknown = ""
    for card in dict.fromkeys(cards):
        generation = generation_of_card(card)
        if generation is None:
            unknown = unknown or f"the generation of {card.name or 'the cards'} is not known, so nor is whether they load the quantisation {method!r}"
        elif generation < least:
            has = f"{card.name or 'the card'} has {generation / 10:.1f}"
            reason = f"SGLang {version} loads the quantisation {method!r} from compute capability {least / 10:.1f} on, and {has}"
            raise KproError(where, reason, _REMEDY, field="quant_method", value=method)
        elif experts and not kept and scheme.fp8 and generation < FP8_GENERATION:
            has = f"{card.name or 'the card'} has {generation / 10:.1f}"
            reason = f"SGLang {version} has no kernel for experts in FP8 below compute capability {FP8_GENERATION / 10:.1f}, and {has}"
            raise KproError(where, reason, _REMEDY, field="quant_method", value=method)
    return [unknown] if unknown and max(least, FP8_GENERATION if experts and scheme.fp8 else 0) > MARLIN_GENERATION else []


@dataclasses.dataclass(frozen=True)
class Part:
    """One matrix on one GPU, as a layer of the engine is made.

    :param widths: outputs of each of the matrices that are merged into it.
    :param split: ``out``, ``in`` or empty: which side is divided among ``ways`` GPUs.
    :param expert: whether it is one expert's.
    """

    name: str
    widths: tuple[float, ...]
    inputs: float
    split: str
    ways: int
    expert: bool = False


def fault_of(scheme: Scheme, part: Part, generation: int | None) -> str:
    """Return why the engine refuses to make a layer, or nothing."""
    if scheme.kind is None:
        return ""
    if all(scheme.block):
        return _block_fault(scheme, part)
    if scheme.kind.bits == 4 and not scheme.only_experts:
        group = scheme.kind.columns
        if group and part.split == "in" and part.ways > 1 and part.inputs % group:
            return f"{part.name} has {part.inputs:g} inputs on each GPU, no multiple of the quantisation's group of {group}"
        if part.expert and group and part.widths[0] % group:
            return f"{part.name} has {part.widths[0]:g} inputs on each GPU, no multiple of the quantisation's group of {group}"
    if scheme.marlin(generation) and not part.expert and sum(part.widths) % _MARLIN_TILE:
        return f"{part.name} has {sum(part.widths):g} outputs on each GPU, no multiple of {_MARLIN_TILE}, which the FP8 kernel of these cards takes"
    return ""


def _block_fault(scheme: Scheme, part: Part) -> str:
    """As validate_block_quant_shapes and the experts' create_weights of layers/quantization/fp8.py check it."""
    height, width = scheme.block
    if part.expert:
        size = part.widths[0]
        if size % height or (part.ways > 1 and size % width):
            return f"{part.name} is {size:g} wide on each GPU, no multiple of the quantisation's block of {height} x {width}"
        return ""
    if part.split == "in" and part.ways > 1 and part.inputs % width:
        return f"{part.name} has {part.inputs:g} inputs on each GPU, no multiple of the quantisation's block of {width}"
    if (part.split == "out" and part.ways > 1) or len(part.widths) > 1:
        odd = next((size for size in part.widths if size % height), None)
        if odd is not None:
            return f"{part.name} has {odd:g} outputs on each GPU, no multiple of the quantisation's block of {height}"
    return ""
