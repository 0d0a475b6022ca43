# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what is done once a service has answered: look for silent degradation, and keep the configuration."""

from __future__ import annotations

import typing as t

from .._diagnosis.diagnose import silent_faults
from .._linux.http_client_edge import HttpClient
from .._linux.text_file_edge import read_text_file
from .._service.state_edge import ServiceState
from .probe import pools_of, shortfalls


def good_run(params: t.Mapping[str, t.Any], client: HttpClient, lines: t.Sequence[str]) -> dict[str, t.Any]:
    """Return what the module reports of a good run, and keep its configuration as the last good one if it answered a question.

    :param params: options of the module (``keep``, ``links``, ``level``, ``context``).
    :param lines: log of the start, as far as it was read.
    """
    metrics = client.get("/metrics")
    pools, before = pools_of(metrics.text) if metrics.status == 200 else {}, {}
    keep = params["keep"]
    if keep and params["level"] in ("answer", "tools"):
        state = ServiceState(keep["state_path"])
        before = state.good_pools(keep["digest"])
        found = {role: read_text_file(path) for role, path in keep["files"].items()}
        texts = {role: file.text for role, file in found.items() if file is not None}
        state.keep_good(keep["digest"], texts, params["links"], int(keep["rung"]), keep["names"], pools)
    warnings = [*silent_faults(lines, params["context"]), *shortfalls(pools, before, "the last good run")]
    return {"pools": pools, "last_good_pools": before, "warnings_found": warnings, "warnings": list(warnings)}
