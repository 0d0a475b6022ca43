# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the cause: rules over the log and the context, best first. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._diagnosis import Diagnosis
from ansible_collections.kpro.llm.plugins.module_utils._start_log import read_start_log


def diagnose(lines: t.Sequence[str], context: t.Mapping[str, t.Any] | None = None) -> Diagnosis:
    """Return the cause of a failed start."""
    log = read_start_log(lines)
    evidence = tuple(line for line in lines[-5:] if line.strip())
    return Diagnosis("unknown", log.phase, f"the start ended in the phase '{log.phase}' for a reason that is not known here", evidence, confidence="none")
