# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fallback ladder: which configuration to run, and what a lost start means for the next."""

from __future__ import annotations

import dataclasses
import typing as t

from .._engine.failures import Failure

# Failures that a smaller configuration cures. All others come back with any rung, so none is tried.
CURABLE = frozenset(
    {
        Failure.ATTENTION_WORKSPACE_OOM,
        Failure.CONTEXT_TOO_LONG,
        Failure.DRAFT_LOAD_OOM,
        Failure.FRACTION_TOO_LOW,
        Failure.GRAPH_CAPTURE_OOM,
        Failure.HYBRID_STATE_POOL_TOO_LARGE,
        Failure.KNOWN_UPSTREAM_BUG,
        Failure.LOAD_OOM,
        Failure.NO_FRACTION_FITS,
        Failure.POOL_ALLOCATION_OOM,
        Failure.POOLS_TOO_LARGE,
        Failure.RANK_DIED_MAIN_ALIVE,
        Failure.REQUEST_SLOTS_EXHAUSTED,
        Failure.SERVING_OOM,
        Failure.STATE_SLOTS_TOO_FEW,
        Failure.WEIGHTS_TOO_LARGE,
    }
)

# Kernel failures: only the last rung (another backend) helps.
KERNELS = frozenset({Failure.JIT_COMPILE_FAILED, Failure.JIT_NEEDS_TOOLKIT, Failure.WARMUP_FAILED})
ATTENTION_RUNG = "other attention kernels"


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory about one set of inputs.

    :param inputs: digest of all rungs and everything they are started with; another digest forgets all.
    :param failed: cause of failure by number of the rung.
    """

    inputs: str = ""
    failed: t.Mapping[int, str] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain values for the state file."""
        return {"inputs": self.inputs, "failed": {str(number): cause for number, cause in self.failed.items()}}


def memory_from(values: t.Any, inputs: str, *, forget: bool = False) -> Memory:
    """Read the state file's values; what belongs to other inputs, or is none, is forgotten."""
    if forget or not isinstance(values, dict) or values.get("inputs") != inputs or not isinstance(values.get("failed"), dict):
        return Memory(inputs)
    return Memory(inputs, {int(number): str(cause) for number, cause in values["failed"].items() if str(number).isdigit()})


def with_loss(memory: Memory, rung: int, class_: str, cause: str, names: t.Sequence[str] = ()) -> Memory:
    """Remember that a rung failed, if another rung can cure it; temporary faults are not remembered.

    :param names: of all rungs.
    """
    if class_ in KERNELS and ATTENTION_RUNG in names and rung != names.index(ATTENTION_RUNG):
        # All rungs before the last one have the same kernels.
        return dataclasses.replace(memory, failed={**memory.failed, **dict.fromkeys(range(names.index(ATTENTION_RUNG)), cause)})
    if class_ not in CURABLE:
        return memory
    return dataclasses.replace(memory, failed={**memory.failed, rung: cause})


def next_rung(memory: Memory, rungs: int, unfit: t.Collection[int] = (), after: int = -1) -> int | None:
    """Return the first rung behind ``after`` that is neither known to fail nor planned not to start; None if there is none.

    :param unfit: numbers of the rungs that the memory plan refuses.
    """
    return next((number for number in range(after + 1, rungs) if number not in memory.failed and number not in unfit), None)


def rung_after_loss(memory: Memory, class_: str, rung: int, rungs: int, unfit: t.Collection[int] = ()) -> int | None:
    """Return the rung that follows a start lost for this reason; None if no other configuration cures it, or none is left.

    :param memory: as :func:`with_loss` left it.
    """
    cured = class_ in CURABLE or (class_ in KERNELS and rung in memory.failed)
    return next_rung(memory, rungs, unfit, rung) if cured else None
