# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last verdict on copies between GPUs, for the times when they can't be checked.

A running engine may leave too little memory for a copy. Without a memory the next run would switch peer access on again, where it was
found to be broken, and restart the engine for that.
"""

from __future__ import annotations

import hashlib
import json
import typing as t

from .verdict import P2pVerdict

PATH = "/var/lib/kpro-llm/peer_copies.json"
_WORTH_KEEPING = ("ok", "none", "corrupt", "hangs", "error")


def board(gpus: t.Iterable[str], driver: str, kernel: str, cmdline: str) -> dict[str, t.Any]:
    """Return what a verdict holds for: these GPUs, driver and kernel, and how that was started (IOMMU and ACS are chosen there).

    :param gpus: UUIDs.
    """
    return {"gpus": sorted(gpus), "driver": driver, "kernel": kernel, "cmdline_sha256": hashlib.sha256(cmdline.encode()).hexdigest()}


def note(verdict: P2pVerdict, of: t.Mapping[str, t.Any]) -> str:
    """Return what to keep of a verdict; empty: nothing, as nothing was found out."""
    if verdict.p2p not in _WORTH_KEEPING:
        return ""
    return json.dumps({"of": of, "p2p": verdict.p2p, "reason": verdict.reason}, indent=1, sort_keys=True) + "\n"


def settled(verdict: P2pVerdict, of: t.Mapping[str, t.Any], kept: str) -> P2pVerdict:
    """Return the verdict, or where nothing could be found out the one that was kept of the same board.

    :param kept: text that :func:`note` gave, empty if there is none.
    """
    if verdict.p2p != "unknown":
        return verdict
    try:
        before = json.loads(kept)
        same, p2p, reason = before["of"] == of, before["p2p"], before["reason"]
    except (ValueError, KeyError, TypeError):
        return verdict
    return P2pVerdict(p2p, f"{reason} (found earlier; not checked again: {verdict.reason})") if same and p2p in _WORTH_KEEPING else verdict
