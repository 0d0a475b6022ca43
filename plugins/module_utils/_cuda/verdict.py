# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The meaning of CUDA's answers: why it does not start, and whether GPUs may copy to each other."""

from __future__ import annotations

import dataclasses
import typing as t

from .._gpu.findings import Finding
from .model import LIBRARY_NOT_FOUND, PeerCheck

P2p = t.Literal["ok", "none", "corrupt", "hangs", "error", "unknown", "single"]
# Worst first: one bad direction decides for all.
_ORDER: tuple[P2p, ...] = ("hangs", "corrupt", "error", "none", "unknown", "ok")


_OFF = "it stays off (NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce)"


@dataclasses.dataclass(frozen=True)
class P2pVerdict:
    """Whether GPUs may use peer access, with the reason; ``disable`` is what NCCL and the engine's own all-reduce are to be told."""

    p2p: P2p
    reason: str

    @property
    def disable(self) -> bool:
        """Peer access has to be switched off, in NCCL and in the engine (the one does not govern the other)."""
        return self.p2p in ("hangs", "corrupt", "error", "none")


def p2p_verdict(checks: t.Sequence[PeerCheck], devices: int, hung: str = "") -> P2pVerdict:
    """Return the verdict over all directions.

    :param devices: how many devices there are.
    :param hung: the direction in which a copy did not come back, empty if all did.
    """
    if hung:
        return P2pVerdict("hangs", f"the copy {hung} did not come back")
    if devices < 2:
        return P2pVerdict("single", "one GPU has no peer")
    words: dict[str, P2p] = {"ok": "ok", "none": "none", "corrupt": "corrupt", "error": "error", "full": "unknown"}
    by_verdict = {words[check.result]: check for check in reversed(checks)}
    for verdict in _ORDER:
        if verdict in by_verdict:
            check = by_verdict[verdict]
            return P2pVerdict(verdict, _reason(verdict, check, len(checks)))
    return P2pVerdict("unknown", "peer access was not checked")


def _reason(verdict: P2p, check: PeerCheck, count: int) -> str:
    way = f"{check.source} to {check.target}"
    if verdict == "ok":
        return f"all {count} copies arrived unchanged"
    if verdict == "none":
        return f"no peer access from {way}; {_OFF}"
    if verdict == "corrupt":
        return f"a copy from {way} reported success and other bytes arrived (another checksum, {check.detail}); a translating IOMMU or ACS does that; {_OFF}"
    return f"{way}: {check.detail}"


# cuInit's codes and the findings that explain them, the likeliest first.
_CAUSES: dict[int, tuple[str, ...]] = {
    100: ("driver_not_loaded", "node_missing", "not_a_device", "wrong_major", "node_denied", "node_mode"),
    304: ("node_missing", "not_a_device", "wrong_major", "node_denied", "module_not_loaded"),
    803: ("userland_differs",),
    999: ("module_not_loaded", "node_missing", "not_a_device", "wrong_major", "node_denied", "userland_differs"),
}


def init_error(code: int, words: str, findings: t.Sequence[Finding]) -> str:
    """Return why CUDA does not initialise, as one sentence with the remedy.

    :param words: CUDA's own.
    :param findings: what is wrong with driver and device nodes, as the service user sees it.
    """
    if code == LIBRARY_NOT_FOUND:
        return f"libcuda.so.1 can't be loaded: {words}. Install the driver's userland."
    for kind in _CAUSES.get(code, ()):
        cause = next((finding for finding in findings if finding.kind == kind), None)
        if cause:
            return f"CUDA does not initialise, {words}: {cause.sentence}"
    rest = next((finding.sentence for finding in findings), "Neither driver nor device nodes show a cause.")
    return f"CUDA does not initialise, {words}: {rest}"
