# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA's answers about devices and copies between them."""

from __future__ import annotations

import dataclasses

LIBRARY_NOT_FOUND = -1


class CudaError(Exception):
    """A call answered with an error; ``code`` is CUDA's, ``call`` the call's name."""

    def __init__(self, code: int, call: str, text: str) -> None:
        self.code = code
        self.call = call
        super().__init__(text)


@dataclasses.dataclass(frozen=True)
class CudaDevice:
    """A device that CUDA can use; memory as CUDA sees it, less than NVML's."""

    index: int
    uuid: str
    name: str
    bus_id: str
    compute_capability: str
    memory_mib: int
    memory_free_mib: int


@dataclasses.dataclass(frozen=True)
class PeerCheck:
    """One direction between two GPUs: ``result`` is ok, none (no peer access), corrupt (other bytes arrived), full or an error."""

    source: str
    target: str
    result: str
    detail: str = ""
