# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the engine for the present GPUs, derived anew on each run: peer access, toolkit, attention kernels, and the folder of compiled kernels.

SGLang itself never imports the classic ``flash-attn``: its own kernels hold what Hopper's ``fa3`` backend needs, and ``fa4`` is the
package ``flash-attn-4``, which the CUDA lanes lock.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .lanes import Lane, numbers


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Settings that follow from lane, GPUs and driver.

    :param options: of the engine, by long name; ``environment``: its environment.
    :param kernels: name of the folder for kernels that are compiled at run time: one for each engine, torch, driver and architecture.
    :param given_up: what these GPUs can't do, one sentence each.
    """

    options: t.Mapping[str, t.Any]
    environment: t.Mapping[str, str]
    kernels: str
    given_up: tuple[str, ...]


def hardware_for(lane: Lane, capabilities: t.Sequence[str], driver_version: str, *, toolkit: bool, peers_off: str = "") -> Hardware:
    """Return the settings for GPUs of these compute capabilities ("8.6").

    NCCL and the engine's own all-reduce ask for peer access each by itself: where copies between the GPUs don't arrive, both are told.

    :param driver_version: of the node; empty if there is none.
    :param toolkit: nvcc of the lane's CUDA is installed. Its folder is named, because toolkits of other lanes may be installed, too.
    :param peers_off: why copies between the GPUs have to be switched off, empty if they work.
    """
    architectures = [f"sm{capability.replace('.', '')}" for capability in sorted(set(capabilities), key=numbers)]
    driver = [f"driver{driver_version}"] if driver_version else []
    home = {"CUDA_HOME": lane.cuda_home} if toolkit and lane.cuda_home else {}
    return Hardware(
        options={"disable_custom_all_reduce": True} if peers_off else {},
        environment={**home, **({"NCCL_P2P_DISABLE": "1"} if peers_off else {})},
        kernels="-".join([lane.engine_version, f"torch{lane.torch_version}", *driver, *architectures]),
        given_up=(f"direct copies between the GPUs ({peers_off})",) if peers_off else (),
    )


FLASH_ATTN_VERSION = "2.8.3.post2"
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
    what = f"flash-attn {FLASH_ATTN_VERSION}"
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
        "version": FLASH_ATTN_VERSION,
        "lock_file": f"flash-attn-{FLASH_ATTN_VERSION}.txt",
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
