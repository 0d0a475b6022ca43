# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One plan: what a start with these settings would do to the memory of each GPU."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from .._core.errors import KproError
from .._engine.versions import OLDEST_HYBRID, Rules, release_of
from .after_pools import needed_after_pools
from .cards import Card, generation_of_card
from .kept_in_16_bit import PARTLY, PLAIN
from .model import Model
from .not_modelled import switch
from .options import Options
from .quantization import Scheme
from .resolve import Resolved, resolve
from .shown import shown
from .sizing import GIB, Shape, Sizing, shape_of, size
from .weights import Layout, draft_tensors, faults, resident_bytes, target_tensors

# Memory of the process itself before loading (CUDA context, NCCL): between 0.5 and 0.7 in start-up logs.
CONTEXT_GIB = 0.65
# Lost between "Load weight end" and the sizing on models with state, fitted to start-up logs; nothing is lost on others.
AFTER_LOAD_GIB = 0.03
LEFTOVER_TOLERANCE_MIB = 1024
# A rank refuses to start below this share of another's free memory (model_runner.py:841-847, distributed/bootstrap.py:441-452).
BALANCE = 0.9
# No card has more memory than this.
MOST_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class HeaderWeights:
    """Weights as the safetensors headers give them, in bytes on one GPU."""

    target: float
    draft_stay: float
    draft_drop: float


@dataclasses.dataclass(frozen=True)
class Inputs:
    """All that a plan depends on.

    :param tp_given: whether tp_size was asked for, so that a search keeps it.
    """

    model: Model
    options: Options
    version: str
    rules: Rules
    cards: tuple[Card, ...]
    environment: tuple[tuple[str, t.Any], ...] = ()
    weights_gib: float | None = None
    free_before_gib: float | None = None
    headers: HeaderWeights | None = None
    tp_given: bool = False


@dataclasses.dataclass(frozen=True)
class Weights:
    """GiB on one GPU: the model, and its draft head as loaded and as it stays."""

    target_gib: float
    draft_loaded_gib: float
    draft_stays_gib: float
    source: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The predicted start. GiB on the GPU with the least memory.

    :param pool_end_gib: free when the engine prints "Memory pool end".
    :param low_point_gib: free at the lowest point after that, before graphs and activations.
    :param needed_gib: what these take of it (``after_pools``): with less a start is a risk.
    """

    inputs: Inputs
    resolved: Resolved
    shape: Shape
    weights: Weights
    free_before_gib: float
    free_after_gib: float
    sizing: Sizing
    kv_gib: float
    draft_kv_gib: float
    padding_gib: float
    table_gib: float
    pool_end_gib: float
    low_point_gib: float
    stage: str
    boots: bool
    needed_gib: float = 0.0

    @property
    def whole_contexts(self) -> float:
        """How many requests of the whole context the cache holds at once."""
        return max(self.sizing.tokens, 0) / self.resolved.context if self.boots else 0.0

    @property
    def verdict(self) -> str:
        """FAIL, RISK, SHORT or OK, the most serious first."""
        if not self.boots:
            return "FAIL"
        if self.low_point_gib < self.needed_gib:
            return "RISK"
        return "OK" if self.serves_context else "SHORT"

    @property
    def serves_context(self) -> bool:
        """Whether one request can use the whole context."""
        return self.boots and self.sizing.tokens >= self.resolved.context


def loaded_as(method: str) -> tuple[str, ...]:
    """Return the values of the option quantization that load a checkpoint of a method as it is."""
    return {
        "awq": ("awq", "awq_marlin"),
        "gptq": ("gptq", "gptq_marlin"),
        "modelopt": ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed"),
    }.get(method, (method,))


def evaluate(inputs: Inputs) -> Outcome:
    """Return what a start with these inputs does.

    :raises KproError: for inputs that can't be, and for what isn't modelled.
    """
    check_cards(inputs)
    _check_modelled(inputs)
    used = inputs.cards[: inputs.options.tp_size]
    card_mib = min(card.total_mib for card in used)
    resolved = resolve(inputs.options, inputs.model, card_mib, inputs.rules, dict(inputs.environment))
    if not 0 < resolved.fraction < 1:
        reason = f"the engine's automatic value is {resolved.fraction:.3f} on a card of {card_mib} MiB, which leaves no memory to plan"
        raise KproError("option mem_fraction_static", reason, "Give the fraction, and a smaller chunked_prefill_size", value=resolved.fraction)
    refused = tuple(f"SGLang refuses to load it at tp_size {resolved.tp}: {fault}" for fault in _faults(inputs.model, layout_of(inputs, resolved)))
    resolved = dataclasses.replace(resolved, refusals=resolved.refusals + refused)
    shape = shape_of(inputs.model, resolved, inputs.rules)
    weights = _weights(inputs, resolved)
    before = inputs.free_before_gib
    if before is None:
        before = min(card.free_mib for card in used) / 1024 - CONTEXT_GIB
    after = before - weights.target_gib - (AFTER_LOAD_GIB if inputs.model.linear else 0.0)
    if inputs.rules.draft_counted:
        after -= weights.draft_loaded_gib
    sizing = size(before, after, shape, resolved, inputs.rules)
    return _outcome(inputs, resolved, shape, weights, before, after, sizing)


def check_cards(inputs: Inputs) -> None:
    """Refuse cards that can't run this.

    :raises KproError: naming the GPU, the field and the value.
    """
    cards, tp = inputs.cards, inputs.options.tp_size
    if not cards:
        raise KproError("option gpus", "no GPU is given", "Give total_mib and free_mib of each", field="gpus")
    for index, card in enumerate(cards[:tp]):
        if not _is_size(card.total_mib) or not _is_size(card.free_mib, least=0):
            wrong = "total_mib" if not _is_size(card.total_mib) else "free_mib"
            reason = f"{wrong} {shown(getattr(card, wrong))} is no whole number of MiB of one card (up to {MOST_MIB}; bytes are 1,048,576 times as many)"
            raise KproError(f"GPU {index}", reason, "Read it with nvidia-smi --query-gpu=memory.total,memory.free", field=wrong)
    if len(cards) < tp:
        reason = f"tp_size is {tp}, and the number of GPUs is {len(cards)}"
        raise KproError("option tp_size", reason, f"Use tp_size {len(cards)} or less, or more GPUs", field="tp_size", value=tp)
    for index, card in enumerate(cards):
        if card.total_mib <= 0 or card.free_mib < 0 or card.free_mib > card.total_mib:
            reason = f"free_mib {card.free_mib} does not lie between 0 and total_mib {card.total_mib}"
            raise KproError(f"GPU {index}", reason, "Read them with nvidia-smi --query-gpu=memory.total,memory.free", field="free_mib")
    totals = sorted({card.total_mib for card in cards[:tp]})
    if len(totals) > 1:
        reason = f"tensor parallelism over unequal cards ({', '.join(f'{total} MiB' for total in totals)}) is not modelled"
        raise KproError("option gpus", reason, "Use equal cards", field="total_mib", value=totals)


def _is_size(value: t.Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_MIB


def leftovers(inputs: Inputs) -> list[str]:
    """Return a sentence for each GPU that something else holds memory of."""
    found = []
    for index, card in enumerate(inputs.cards[: inputs.options.tp_size]):
        if card.missing_mib > LEFTOVER_TOLERANCE_MIB:
            found.append(
                f"GPU {index} has {card.free_mib / 1024:.1f} GiB free, {card.missing_mib / 1024:.1f} GiB less than an idle card: "
                "something else holds it (a process of another container is not listed inside this one)"
            )
    return found


def unbalanced(inputs: Inputs) -> str:
    """Return why the ranks would refuse to start together, or nothing."""
    free = [card.free_mib for card in inputs.cards[: inputs.options.tp_size]]
    checked = switch(dict(inputs.environment), "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", True)
    if not checked or inputs.free_before_gib is not None or len(free) < 2 or min(free) >= BALANCE * max(free):
        return ""
    index = free.index(min(free))
    return f"GPU {index} has {min(free) / 1024:.1f} GiB free and another {max(free) / 1024:.1f}: the engine refuses a difference of over 10 %"


def _check_modelled(inputs: Inputs) -> None:
    old = release_of(inputs.version) < release_of(OLDEST_HYBRID)
    if old and (inputs.model.linear or inputs.options.speculative_algorithm):
        reason = f"models with state and speculation are modelled from {OLDEST_HYBRID} on"
        raise KproError(f"SGLang {inputs.version}", reason, f"Use {OLDEST_HYBRID} or newer", field="sglang_version", value=inputs.version)
    if release_of(inputs.version) < release_of(OLDEST_HYBRID) and inputs.options.mem_fraction_static is None:
        reason = f"the automatic fraction is modelled from {OLDEST_HYBRID} on"
        raise KproError(f"SGLang {inputs.version}", reason, "Give mem_fraction_static", field="mem_fraction_static")
    _refuse_partly_quantized(inputs)
    given = inputs.options.quantization
    if given and given not in loaded_as(inputs.model.quantization) and inputs.weights_gib is None:
        reason = f"quantising while loading ({given!r}) is not modelled: the full weights are allocated first"
        raise KproError("option quantization", reason, "Use a quantised checkpoint, or give weights_gib", field="quantization", value=given)
    if inputs.options.speculative_algorithm and not inputs.model.mtp_layers:
        reason = "speculation is modelled only with the model's own head, and the config has no 'mtp_num_hidden_layers'"
        raise KproError("option speculative_algorithm", reason, "Turn speculation off", field="mtp_num_hidden_layers")
    if inputs.options.speculative_algorithm and inputs.model.mtp_layers > 1:
        # One layer is loaded (models/qwen3_5_mtp.py, num_hidden_layers = 1), and the draft's cache is sized by this number.
        reason = f"the field 'mtp_num_hidden_layers' is {inputs.model.mtp_layers}, and a head of more than one layer is not modelled"
        raise KproError("option speculative_algorithm", reason, "Turn speculation off", field="mtp_num_hidden_layers", value=inputs.model.mtp_layers)


def _refuse_partly_quantized(inputs: Inputs) -> None:
    in_headers = inputs.headers is not None and inputs.headers.draft_stay > 0
    if inputs.options.speculative_algorithm and inputs.model.draft_quantized == PARTLY and not in_headers:
        reason = "the checkpoint keeps a part of its head ('mtp') in 16 bit, and how much that is can't be told from the config"
        remedy = "Give model_path, so that the sum of the safetensors headers can be taken, or turn speculation off"
        raise KproError(f"model {inputs.model.architecture}", reason, remedy, field="modules_to_not_convert")


@functools.lru_cache(maxsize=256)
def _faults(model: Model, layout: Layout) -> tuple[str, ...]:
    return tuple(faults(model, layout))


@functools.lru_cache(maxsize=256)
def _shape_weights(model: Model, layout: Layout) -> float:
    return resident_bytes(target_tensors(model, layout)) / GIB


@functools.lru_cache(maxsize=256)
def _shape_draft(model: Model, layout: Layout) -> tuple[float, float]:
    # A ModelOpt checkpoint keeps the head in 16 bit (models/qwen3_5_mtp.py:58), another one if it says so.
    in_16_bit = model.quantization.startswith("modelopt") or model.draft_quantized == PLAIN
    plain = dataclasses.replace(model, scheme=Scheme()) if in_16_bit else model
    stay, drop = draft_tensors(plain, layout)
    return (resident_bytes(stay) + resident_bytes(drop)) / GIB, resident_bytes(stay) / GIB


def layout_of(inputs: Inputs, resolved: Resolved) -> Layout:
    """Return how the tensors are spread; the oldest card decides which kernels the weights are made for."""
    generations = [generation_of_card(card) for card in inputs.cards[: resolved.tp]]
    known = [generation for generation in generations if generation is not None]
    return Layout(resolved.tp, resolved.attention_tp, resolved.with_vision, min(known) if len(known) == len(generations) else None)


def _weights(inputs: Inputs, resolved: Resolved) -> Weights:
    layout = layout_of(inputs, resolved)
    loaded = stays = 0.0
    if resolved.algorithm:
        if inputs.headers and inputs.headers.draft_stay:
            stays = inputs.headers.draft_stay / GIB
            loaded = stays + inputs.headers.draft_drop / GIB
        else:
            loaded, stays = _shape_draft(inputs.model, layout)
    if inputs.weights_gib is not None:
        return Weights(inputs.weights_gib, loaded, stays, "given")
    if inputs.headers:
        return Weights(inputs.headers.target / GIB, loaded, stays, "safetensors headers")
    return Weights(_shape_weights(inputs.model, layout), loaded, stays, "config")


def _outcome(inputs: Inputs, resolved: Resolved, shape: Shape, weights: Weights, before: float, after: float, sizing: Sizing) -> Outcome:
    tokens, requests = max(sizing.tokens, 0), max(sizing.requests, 0)
    kv = ((tokens + resolved.page) * shape.token_bytes + (sizing.window_tokens + resolved.page) * shape.window_bytes) / GIB
    draft_kv = (tokens + resolved.page) * shape.draft_token_bytes / GIB
    slots = (sizing.slots + 1) * shape.state_bytes / GIB if sizing.slots else 0.0
    copies = (requests + 1) * resolved.draft_tokens * shape.state_bytes / GIB
    table = requests * (resolved.context + 4 + resolved.draft_tokens) * 4 / GIB
    pool_end = after - kv - slots - copies - table
    low = pool_end - draft_kv - (0.0 if inputs.rules.draft_counted else weights.draft_loaded_gib)
    stage = _stage(inputs, resolved, weights, before, sizing, low)
    padding = slots + copies - sizing.state_gib - sizing.copies_gib
    return Outcome(
        inputs,
        resolved,
        shape,
        weights,
        before,
        after,
        sizing,
        kv,
        draft_kv,
        padding,
        table,
        pool_end,
        low,
        stage,
        boots=stage == "",
        needed_gib=needed_after_pools(inputs.model, resolved),
    )


def _stage(inputs: Inputs, resolved: Resolved, weights: Weights, before: float, sizing: Sizing, low: float) -> str:
    """Return the stage at which the start fails, or nothing."""
    if resolved.refusals:
        return "options"
    if unbalanced(inputs):
        return "start"
    draft = weights.draft_loaded_gib if inputs.rules.draft_counted else 0.0
    if weights.target_gib + draft >= before:
        return "load"
    if sizing.failure:
        return "sizing"
    return "pools" if low <= 0 else ""
