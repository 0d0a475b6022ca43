# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what is done once a service has answered: look for silent degradation, and keep the configuration."""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .._diagnosis.diagnose import silent_faults
from .._linux.http_answer import connect_address
from .._linux.http_client_edge import HttpClient
from .._ready.probe import pools_of, shortfalls
from .._service.files import TEXTS
from .._service.plan import ServicePresent, ServiceWanted
from .._service.state_edge import ServiceState
from .._service.text import settings_text, texts_digest
from .check import Check, check_from, config_lines
from .choice import Choice

_PROVES_NOTHING = ("none", "port")


def after_answer(
    params: t.Mapping[str, t.Any],
    state: ServiceState,
    client: HttpClient,
    lines: t.Sequence[str],
    choice: Choice,
    wanted: ServiceWanted,
    check: Check,
    args: t.Mapping[str, t.Any],
) -> dict[str, t.Any]:
    """Return what the module reports of a good run, and keep its configuration as the last good one if the engine has computed something.

    :param params: options of the module (``record_links``, ``context``).
    :param lines: log of the start, as far as it was read.
    """
    pools = engine_pools(client)
    before = state.good_pools(wanted.digest)
    warnings = [*silent_faults(lines, {**params["context"], "args": dict(args)}), *shortfalls(pools, before, "the last good run")]
    kept: list[str] = []
    if check.level not in _PROVES_NOTHING:
        texts = {file.role: file.text or "" for file in wanted.files if file.role in TEXTS}
        key = next(((file.text or "").strip() for file in wanted.files if file.role == "api_key"), "")
        try:
            state.keep_good(wanted.digest, texts, params["record_links"], choice.rung, choice.names, pools, check.as_dict(), key)
        except KproError as error:
            kept = [f"The service answers, but its configuration could not be kept for a roll-back: {error.sentence}"]
    return {"pools": pools, "last_good_pools": before, "warnings_found": warnings, "warnings": [*warnings, *kept]}


def engine_pools(client: HttpClient) -> dict[str, float]:
    """Return the sizes of the engine's pools, from its metrics; empty if it serves none."""
    metrics = client.get("/metrics")
    return pools_of(metrics.text) if metrics.status == 200 else {}


def kept_check(state: ServiceState, digest: str, otherwise: Check) -> Check | None:
    """Return by what the last good configuration was judged, if it is the one of this digest."""
    good = state.good()
    return check_from(good.get("check"), good["texts"], otherwise) if good and good.get("digest") == digest else None


def keep_what_serves(state: ServiceState, present: ServicePresent, check: Check) -> None:
    """Keep the configuration of a service that runs healthily and is about to be replaced, where no run has kept a good one (or its record is damaged)."""
    texts = {role: present.files[role].text or "" for role in TEXTS if role in present.files}
    same_start = present.unit.running and present.started_invocation_id == present.unit.invocation_id
    if not same_start or len(texts) < len(TEXTS) or state.good():
        return
    digest = texts_digest({**texts, "environment": settings_text(texts["environment"])})
    theirs, lines = check_from(None, texts, check), config_lines(texts["config"])
    if digest != present.started_digest or HttpClient(connect_address(theirs.address), theirs.port).get("/health", 5.0).status != 200:
        return
    key = present.files["api_key"].text if "api_key" in present.files else ""
    named = {"model_path": lines.get("model-path"), "served_name": lines.get("served-model-name")}
    state.keep_good(digest, texts, [], 0, {name: value for name, value in named.items() if value}, api_key=(key or "").strip())
