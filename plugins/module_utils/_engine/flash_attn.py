# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attention kernels of a lane: the backend for a GPU's architecture, and the classic flash-attn as an option.

SGLang itself never imports the classic ``flash-attn``: its own kernels hold what Hopper's ``fa3`` backend needs, and ``fa4`` is the
package ``flash-attn-4``, which the CUDA lanes lock.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .lanes import Lane, numbers

VERSION = "2.8.3.post2"
# cicc and ptxas of one file of its kernels, with one thread of nvcc.
JOB_MEMORY_MIB = 6144
BUILD_MIB = 3000
# Its setup.py knows these; kernels of one run on all GPUs of the same major (NVIDIA, binary compatibility).
_SOURCE_ARCHITECTURES = {8: "80", 9: "90", 10: "100", 12: "120"}


@dataclasses.dataclass(frozen=True)
class Attention:
    """Options of the engine for attention and sampling.

    :param options: for these GPUs; ``fallback``: what runs where those kernels can't be compiled or fail.
    """

    options: t.Mapping[str, str]
    fallback: t.Mapping[str, str]


TRITON: t.Mapping[str, str] = {"attention_backend": "triton", "sampling_backend": "pytorch"}


def attention_for(lane: Lane, capabilities: t.Sequence[str], toolkit: bool) -> Attention:
    """Return the backend for GPUs of these compute capabilities ("8.6").

    Hopper's fa3 kernels come compiled with the engine; Ampere, Ada and Blackwell workstation cards take FlashInfer, which compiles its own at the first
    start and so needs the toolkit; Blackwell servers have their own (trtllm_mha). That is what the engine resolves itself, written down so that nothing
    hangs on an implicit default. Triton works everywhere and needs a C compiler only.

    :param toolkit: nvcc of the lane's CUDA is installed.
    """
    if not lane.cuda or not capabilities:
        return Attention({}, {})
    oldest = min(numbers(capability) for capability in capabilities)
    same = len({numbers(capability)[:1] for capability in capabilities}) == 1
    if same and oldest[0] == 9:
        return Attention({"attention_backend": "fa3"}, TRITON)
    if same and oldest[0] == 10:
        return Attention({"attention_backend": "trtllm_mha"}, TRITON)
    if toolkit and oldest >= (8, 0):
        return Attention({"attention_backend": "flashinfer"}, TRITON)
    return Attention(TRITON, {})


def flash_attn_package(lane: Lane, python: str, capabilities: t.Sequence[str], wheelhouse: str, *, build: bool) -> dict[str, t.Any]:
    """Return the classic flash-attn for the module uv_environment, except for the text of its lock, which ``lock_file`` names.

    :raises KproError: the lane has no CUDA, or the GPUs are not known or have no kernels in it.
    """
    what = f"flash-attn {VERSION}"
    if not lane.cuda:
        raise KproError(what, f"lane {lane.name} has no CUDA", "Set sglang_runtime__flash_attn to none")
    if not capabilities:
        raise KproError(what, "the architecture of the GPUs is not known", "Set sglang_runtime__capabilities, like ['8.6'], or flash_attn to none")
    unknown = [capability for capability in capabilities if numbers(capability)[:1] not in {(major,) for major in _SOURCE_ARCHITECTURES}]
    if unknown:
        raise KproError(what, f"it has no kernels for compute capability {', '.join(unknown)}", "Set sglang_runtime__flash_attn to none")
    architectures = sorted({_SOURCE_ARCHITECTURES[numbers(capability)[0]] for capability in capabilities}, key=int)
    return {
        "name": "flash-attn",
        "version": VERSION,
        "lock_file": f"flash-attn-{VERSION}.txt",
        "wheelhouse": wheelhouse,
        "imports": ["flash_attn", "flash_attn.cute"],
        # flash-attn-4 owns this folder; the classic archive holds an old copy of it.
        "omit": ["flash_attn/cute"],
        "tags": {"torch": lane.torch_version, "CUDA": lane.cuda, "Python": python, "sm": ";".join(architectures)},
        "build": build,
        "cuda_home": lane.cuda_home,
        "job_memory_mib": JOB_MEMORY_MIB,
        "size_mib": BUILD_MIB,
        "variables": {
            # Never fetch a binary from elsewhere in place of a build.
            "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
            "FLASH_ATTN_CUDA_ARCHS": ";".join(architectures),
            "TORCH_CUDA_ARCH_LIST": ";".join(sorted(set(capabilities), key=numbers)),
            "NVCC_THREADS": "1",
        },
    }
