# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From plain options to a plan."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from .._core.errors import KproError
from .._engine.versions import rules_of
from .cards import Card, check_kind
from .core import HeaderWeights, Inputs, check_cards
from .headers import Entry, header_weights, parameters_gib
from .kept_in_16_bit import QUANTIZED
from .model import Model, model_of
from .not_modelled import check_environment
from .options import Options, attention_dp, is_given, options_of
from .quantization import check_quantization
from .result import plan
from .shown import number_of, shown
from .weights import Layout, resident_bytes, target_tensors

# Files whose sum differs from the config by more are not of this model.
_HEADER_TOLERANCE = 0.02
_MOST_GIB = 1024


@dataclasses.dataclass(frozen=True)
class Request:
    """A plan that is asked for, in plain values.

    :param where: what to call the config in an error.
    :param entries: tensors of the safetensors files; empty if only the config is known.
    :param notes: what a person should hear of these files.
    """

    config: t.Mapping[str, t.Any]
    where: str
    entries: t.Sequence[Entry]
    cards: tuple[Card, ...]
    version: str
    args: t.Mapping[str, t.Any]
    environment: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    weights_gib: float | None = None
    free_before_gib: float | None = None
    notes: t.Sequence[str] = ()


def planned(request: Request, goal: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Return the plan as plain values.

    :raises KproError: for a bad or unmodelled input, naming file, field and value.
    """
    inputs, warnings = inputs_of(request)
    values = plan(inputs, goal, warnings)
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"they hold something that is neither text nor a finite number ({error})"
        raise KproError("options of the plan", reason, "Give plain values") from error
    return values


def inputs_of(request: Request) -> tuple[Inputs, list[str]]:
    """Return the checked inputs of a plan, and warnings about them."""
    rules, warnings = rules_of(request.version)
    warnings = [*warnings, *request.notes]
    model = model_of(request.config, request.where)
    options = options_of(request.args, request.version, rules)
    check_environment(request.environment)
    for name, value in (("weights_gib", request.weights_gib), ("free_before_load_gib", request.free_before_gib)):
        if value is not None and not 0 < number_of(value) <= _MOST_GIB:
            raise KproError(f"option {name}", f"the value {shown(value)} is not above 0 and up to {_MOST_GIB} GiB of one card", field=name)
    inputs = Inputs(
        model,
        options,
        request.version,
        rules,
        request.cards,
        tuple(sorted(request.environment.items())),
        request.weights_gib,
        request.free_before_gib,
        tp_given=is_given("tp_size", request.args),
    )
    check_cards(inputs)
    check_kind(request.cards[: options.tp_size])
    warnings = warnings + check_quantization(request.config, request.where, request.cards[: options.tp_size], request.version, model.experts is not None)
    if request.entries and request.weights_gib is None:
        headers, notes = _from_headers(request.entries, model, options)
        inputs = dataclasses.replace(inputs, headers=headers)
        warnings = warnings + notes
    return inputs, warnings


def _from_headers(entries: t.Sequence[Entry], model: Model, options: Options) -> tuple[HeaderWeights | None, list[str]]:
    """The headers decide for quantised and opaque models; for plain ones they only confirm the config."""
    layout = Layout(options.tp_size, options.tp_size // attention_dp(options) // options.attn_cp_size, not options.language_model_only)
    headers = header_weights(entries, model, layout)
    if model.by_headers or (model.quantization and model.scheme.kind is None):
        return headers, []
    computed = resident_bytes(target_tensors(model, layout))
    draft = headers.draft_stay and model.draft_quantized != QUANTIZED
    if abs(headers.target / computed - 1) <= _HEADER_TOLERANCE and not draft:
        # What the engine repacks on these cards is in the config's sum, and not in the files.
        return None, []
    if model.quantization:
        return headers, []
    text = (
        f"the safetensors headers sum up to {parameters_gib(entries):.2f} GiB, {headers.target / 2**30:.2f} GiB for each GPU, and the config "
        f"to {computed / 2**30:.2f}: planned by the headers"
    )
    return headers, [text]
