# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of an unfinished run of the ladder: who started what, and what was lost before.

It is written before the service is touched and removed once the run has ended. It decides which start is ours to stop.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._linux.run_identity import RunIdentity, identity_from_dict
from .._linux.unit_state import UnitState

_MOST_LOST = 64


@dataclasses.dataclass(frozen=True)
class Record:
    """The state of an unfinished run.

    :param run: the run that wrote it last.
    :param inputs: digest of all that the service is described by; a run with the same one continues this run.
    :param rung: the configuration at work; -1 is the last good one.
    :param digest: what the start is made with.
    :param owned: the run makes or made the start; false for one that it only waits for.
    :param boot_id: the boot in which it was written.
    :param before: invocation of the unit when the record was written; while the unit has the same one, the start is still to be made.
    :param identity: the start; None until it is known.
    :param check: by what the start is judged.
    :param lost: starts that were lost before this one, in order.
    :param ended: leftovers that were ended.
    """

    run: str
    inputs: str
    rung: int
    digest: str
    owned: bool = True
    boot_id: str = ""
    before: str = ""
    identity: RunIdentity | None = None
    check: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    lost: tuple[dict[str, t.Any], ...] = ()
    ended: tuple[dict[str, t.Any], ...] = ()

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain values for the state file."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        identity = self.identity.as_dict() if self.identity else {}
        return {**values, "identity": identity, "check": dict(self.check), "lost": list(self.lost), "ended": list(self.ended)}


def record_from(values: t.Mapping[str, t.Any]) -> Record | None:
    """Read the values of the state file; None if there is no record in them, or a damaged one."""
    texts = {name: values.get(name) for name in ("run", "inputs", "digest", "boot_id", "before")}
    rung, owned, check = values.get("rung"), values.get("owned"), values.get("check")
    number = isinstance(rung, int) and not isinstance(rung, bool)
    whole = all(isinstance(text, str) for text in texts.values()) and number and isinstance(owned, bool) and isinstance(check, dict)
    if not whole or not texts["digest"]:
        return None
    try:
        identity = identity_from_dict(values["identity"]) if values.get("identity") else None
    except (KproError, AttributeError, TypeError):
        return None
    rows = {name: tuple(_rows(values.get(name))) for name in ("lost", "ended")}
    seen = t.cast("dict[str, t.Any]", {**texts, **rows, "rung": rung, "owned": owned, "check": check or {}})
    return Record(**seen, identity=identity)


def _rows(values: t.Any) -> list[dict[str, t.Any]]:
    return [row for row in values if isinstance(row, dict)][:_MOST_LOST] if isinstance(values, list) else []


def standing(record: Record | None, unit: UnitState, boot_id: str, digest: str) -> str:
    """Return how the service stands to the record.

    - ``none``: the record says nothing about what is wanted now, or somebody else has started the service since.
    - ``to_make``: the start is still to be made; ``unnoted``: it was made, and who it is was not noted any more.
    - ``runs``: the noted start runs; ``again``: it ended, and systemd has started it again.
    - ``stopped``: somebody stopped it in good order; ``ended``: its process ended.

    :param digest: of what is wanted now.
    """
    if record is None or record.digest != digest or record.boot_id != boot_id:
        return "none"
    if record.identity is None:
        return "to_make" if unit.invocation_id == record.before or not unit.running else "unnoted"
    if unit.running:
        if unit.invocation_id == record.identity.invocation_id:
            return "runs"
        return "again" if unit.n_restarts > record.identity.n_restarts else "none"
    in_order = not unit.waiting_for_restart and unit.active_state == "inactive" and unit.result in ("", "success")
    return "stopped" if in_order else "ended"
