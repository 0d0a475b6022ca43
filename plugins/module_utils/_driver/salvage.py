# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restore the old driver after a failed replacement.

The modules are unloaded before the vendor's installer runs, and the installer removes the old driver at some point of its own.
Before that point, loading the modules again undoes a failure; after it the node has no driver, and the message says so.
"""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from .files import NODES_UNIT, PERSISTENCE_UNIT
from .model import Present
from .steps import MODULES


def facts_before(present: Present) -> dict[str, str]:
    """Return what is needed to take up the former driver again: its version, and what of it was loaded and running.

    :returns: "before" (empty: there was none), "modules" and "units", names with spaces between.
    """
    version = present.loaded or present.on_disk
    units = [name for name in (NODES_UNIT, PERSISTENCE_UNIT) if (unit := present.units.get(name)) and unit.active]
    loaded = [name for name in reversed(MODULES) if name in present.modules]
    return {"before": version.version if version else "", "modules": " ".join(loaded), "units": " ".join(units)}


def restore_argvs(facts: t.Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the programs that take it up again; each may fail."""
    modules = [("modprobe", name) for name in facts.get("modules", "").split()]
    return [*modules, *(("systemctl", "start", name) for name in facts.get("units", "").split())]


def left_behind(error: KproError, facts: t.Mapping[str, str], loaded: str, on_disk: str) -> KproError:
    """Return the error with what became of the former driver.

    :param facts: of :func:`facts_before`, and "version", which was to be installed.
    :param loaded: the driver that the kernel runs now, empty if none; ``on_disk`` likewise for modprobe.
    """
    before, wanted = facts.get("before", ""), facts.get("version", "")
    if not before:
        return error
    if loaded == before or (not facts.get("modules") and on_disk == before):
        words = f"Driver {before} is there as before"
        return KproError(error.what, f"{error.reason.rstrip('.')}. {words}", error.remedy, **error.details)
    words = f"Driver {before}, which was there, is gone: no container of this node has a GPU until a driver runs again"
    again = "" if before == wanted else f"To have {before} back, run again with gpu_node__driver_version: {before} and gpu_node__replace_driver: true"
    remedy = ". ".join(each.rstrip(".") for each in (error.remedy, again) if each)
    return KproError(error.what, f"{error.reason.rstrip('.')}. {words}", remedy, **error.details)
