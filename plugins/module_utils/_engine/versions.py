# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's memory rules by version, as data.

Read in the published wheels: 0.5.9, 0.5.10.post1 and 0.5.23 whole; of 0.5.10 to 0.5.22 what each release changes in the functions that size
the pools and choose the settings. tests/differential holds the pinned ones to the engine's own code.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing as t

from .._core.errors import KproError

Tier = tuple[float, int, int, int]

# (memory of the smallest card below, MiB; chunked prefill size; decode graph batch below TP 4; from TP 4 on)
_TIERS_OLD: tuple[Tier, ...] = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
_TIERS_NEW: tuple[Tier, ...] = (_TIERS_OLD[0], (35 * 1024, 4096, 48, 160), *_TIERS_OLD[2:])


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules of one version family.

    :param copies: how copies of the state for draft tokens are charged: ``upfront`` for the requested limit, or ``joint``.
    :param padding: slots and copies added for padding when the pools are charged.
    :param draft_counted: whether the draft's weights and cache are in the sum.
    :param multimodal_mib: reserved for multimodal features before sizing.
    :param prefill_graphs: ``off``, ``dense`` (not with images, speculation), ``dense_spec`` (not with images), ``all``.
    :param eagle_mib: what the automatic fraction leaves for an EAGLE draft.
    :param request_limit: how a given limit is bounded: ``none``, ``estimate`` (2048 to 4096) or ``tokens`` (half the tokens).
    :param half_token_default: whether requests without a limit are bounded by half the tokens.
    :param estimate_before_cap: whether requests are estimated from the tokens before max_total_tokens and the page size.
    :param no_buffer_page_one: whether no_buffer with the prefix cache sets the page size to 1 (later releases refuse another).
    :param lazy_buffer: where extra_buffer_lazy is taken: ``never``, ``without_speculation`` or ``always``.
    :param idle_graphs_reserved: whether the automatic fraction leaves memory for decode graphs that are switched off.
    :param loader_garbage: whether temporaries of the weight loader can still count as used when the pools are sized.
    :param limit_at_least_one: whether each data-parallel group keeps a limit of at least one request.
    :param spec_limit_divided_again: whether speculation with attention data parallelism bounds the requests by group.
    :param spec_overlap_default: the overlap schedule under speculation without SGLANG_ENABLE_SPEC_V2.
    :param spec_decides_overlap: whether that switch decides alone, whatever disable_overlap_schedule says.
    :param spec_branches_need_no_overlap: whether several branches switch the overlap schedule off.
    :param breakable_graphs: whether prefill graphs are of the breakable kind, for all models but those of the next two.
    :param graphs_with_images: architectures with images that keep prefill graphs.
    :param no_graphs_for: what switches them off: ``dp``, ``latent``, ``nemotron``, ``kda``.
    :param window_cap: whether the pool of windows is sized by the requests, without prefix cache: ``none``, ``unread`` or ``requests``.
    :param window_checked: whether a pool too small for one window is refused.
    :param language_model_only: whether the option of that name is known.
    :param draft_cell_by_factor: whether a token of target and draft is computed as one product.
    :param spec_radix: speculation with no_buffer and prefix cache: ``disable``s the cache, or ``refuse``s to start.
    """

    first: str
    copies: str
    padding: int = 0
    draft_counted: bool = False
    multimodal_mib: int = 0
    prefill_graphs: str = "off"
    prefill_graph_context_cap: bool = False
    eagle_mib: int = 0
    tiers: tuple[Tier, ...] = _TIERS_OLD
    graph_capped_by_requests: bool = False
    request_limit: str = "none"
    half_token_default: bool = True
    estimate_before_cap: bool = False
    state_error: bool = False
    weights_error: bool = False
    spec_radix: str = "refuse"
    spec_ratio_is_four: bool = False
    spec_overlap_default: bool = True
    spec_decides_overlap: bool = False
    spec_branches_need_no_overlap: bool = False
    auto_strategy: str = "extra_buffer"
    extra_buffer_without_radix: bool = True
    strategy_option: str = "mamba_radix_cache_strategy"
    graph_option: str = "cuda_graph_max_bs_decode"
    no_buffer_page_one: bool = False
    lazy_buffer: str = "never"
    idle_graphs_reserved: bool = True
    loader_garbage: bool = True
    limit_at_least_one: bool = False
    spec_limit_divided_again: bool = False
    verified: bool = True
    breakable_graphs: bool = False
    graphs_with_images: frozenset[str] = frozenset()
    no_graphs_for: frozenset[str] = frozenset()
    window_cap: str = "none"
    window_checked: bool = False
    language_model_only: bool = False
    draft_cell_by_factor: bool = False


_V9 = Rules(
    "0.5.9",
    "upfront",
    eagle_mib=2048,
    half_token_default=False,
    estimate_before_cap=True,
    spec_radix="disable",
    spec_ratio_is_four=True,
    spec_overlap_default=False,
    spec_decides_overlap=True,
    spec_limit_divided_again=True,
    auto_strategy="no_buffer",
    strategy_option="mamba_scheduler_strategy",
    graph_option="cuda_graph_max_bs",
)
_V10 = dataclasses.replace(
    _V9,
    first="0.5.10",
    prefill_graphs="dense",
    eagle_mib=4096,
    request_limit="estimate",
    half_token_default=True,
    estimate_before_cap=False,
    spec_radix="refuse",
    spec_ratio_is_four=False,
    spec_limit_divided_again=False,
    extra_buffer_without_radix=False,
)
_V11 = dataclasses.replace(
    _V10,
    first="0.5.11",
    spec_overlap_default=True,
    spec_decides_overlap=False,
    spec_branches_need_no_overlap=True,
    no_buffer_page_one=True,
)
_V13 = dataclasses.replace(
    _V11,
    first="0.5.13",
    lazy_buffer="without_speculation",
    copies="joint",
    state_error=True,
    prefill_graphs="dense_spec",
    prefill_graph_context_cap=True,
)
_V14 = dataclasses.replace(
    _V13,
    first="0.5.14",
    draft_counted=True,
    weights_error=True,
    eagle_mib=0,
    request_limit="tokens",
    auto_strategy="extra_buffer",
    extra_buffer_without_radix=True,
    strategy_option="mamba_radix_cache_strategy",
    graph_option="cuda_graph_max_bs_decode",
    no_buffer_page_one=False,
    lazy_buffer="always",
)
_V14 = dataclasses.replace(_V14, window_cap="unread", draft_cell_by_factor=True)
_QWEN_WITH_IMAGES = frozenset({"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"})
_V15 = dataclasses.replace(
    _V14,
    first="0.5.15",
    idle_graphs_reserved=False,
    prefill_graphs="all",
    breakable_graphs=True,
    no_graphs_for=frozenset({"dp", "latent"}),
)
_V16 = dataclasses.replace(_V15, first="0.5.16", graphs_with_images=_QWEN_WITH_IMAGES, window_checked=True)
_V17 = dataclasses.replace(_V16, first="0.5.17", padding=1, prefill_graph_context_cap=False, no_graphs_for=frozenset({"latent", "nemotron"}))
_V18 = dataclasses.replace(
    _V17,
    first="0.5.18",
    language_model_only=True,
    multimodal_mib=100,
    no_graphs_for=frozenset(),
    graphs_with_images=_QWEN_WITH_IMAGES | {"KimiK25ForConditionalGeneration"},
)
_V19 = dataclasses.replace(_V18, first="0.5.19", loader_garbage=False)
_V20 = dataclasses.replace(_V19, first="0.5.20", tiers=_TIERS_NEW, no_graphs_for=frozenset({"kda"}), window_checked=True)
_V22 = dataclasses.replace(_V20, first="0.5.22", graph_capped_by_requests=True, window_cap="requests", draft_cell_by_factor=False)
_V23 = dataclasses.replace(_V22, first="0.5.23", limit_at_least_one=True)

TABLE: tuple[Rules, ...] = (_V9, _V10, _V11, _V13, _V14, _V15, _V16, _V17, _V18, _V19, _V20, _V22, _V23)
NEWEST = "0.5.23"
OLDEST_HYBRID = "0.5.9"

Release = tuple[int, ...]


@functools.lru_cache(maxsize=64)
def release_of(version: str) -> Release:
    """Return the numbers of a version ("0.5.10.post1" is (0, 5, 10)).

    :raises KproError: for a text that is no version.
    """
    match = re.fullmatch(r"v?([0-9]{1,6}(?:\.[0-9]{1,6}){1,5})(?:\.?(?:post|dev|rc|a|b)\d*)*(?:\+.*)?", str(version).strip())
    if not match:
        reason = f"{str(version)[:80]!r} is not a version number"
        raise KproError("option sglang_version", reason, f"Give it like {NEWEST!r}", field="sglang_version")
    return tuple(int(part) for part in match[1].split("."))


def rules_of(version: str) -> tuple[Rules, list[str]]:
    """Return the rules that a version follows, and warnings if it is newer or older than all that were read."""
    release = release_of(version)
    if release < release_of(TABLE[0].first):
        text = f"SGLang {version} is older than {TABLE[0].first}: planned by the rules of {TABLE[0].first}, unverified"
        return dataclasses.replace(TABLE[0], verified=False), [text]
    rules = next(entry for entry in reversed(TABLE) if release_of(entry.first) <= release)
    if release > release_of(NEWEST):
        text = f"SGLang {version} is newer than {NEWEST}: planned by the rules of {NEWEST}, unverified"
        return dataclasses.replace(rules, verified=False), [text]
    return rules, []


def describe(rules: Rules) -> dict[str, t.Any]:
    """Return the rules as plain values, for reports."""
    return {field.name: getattr(rules, field.name) for field in dataclasses.fields(rules) if field.name != "tiers"}
