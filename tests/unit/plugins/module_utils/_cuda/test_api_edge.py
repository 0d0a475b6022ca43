# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._cuda.api_edge import Cuda
from ansible_collections.kpro.llm.plugins.module_utils._cuda.model import LIBRARY_NOT_FOUND, CudaError
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.gpu_libraries import UUIDS, UVM_MAJOR, Libraries, compiled, needs_compiler

SIZE = 100_000


@pytest.fixture
def libraries() -> Libraries:
    compiled().reset()
    return compiled()


def test_no_library() -> None:
    with pytest.raises(CudaError) as caught:
        Cuda("libcuda.so.that-is-not-there")
    assert caught.value.code == LIBRARY_NOT_FOUND


@needs_compiler
def test_devices(libraries: Libraries) -> None:
    libraries.state(gpu1__used_mib="1000")
    cuda = Cuda(libraries.cuda)
    assert cuda.driver_version() == "13.0"
    first, second = cuda.devices()
    assert (first.uuid, first.bus_id, first.compute_capability, first.name) == (UUIDS[0], "0000:41:00.0", "8.6", "NVIDIA RTX A6000")
    assert (first.memory_mib, first.memory_free_mib, second.uuid, second.memory_free_mib) == (48604, 48604, UUIDS[1], 47604)


@needs_compiler
@pytest.mark.parametrize(("p2p", "result"), [("ok", "ok"), ("none", "none"), ("corrupt", "corrupt")])
def test_copies_are_compared(libraries: Libraries, p2p: str, result: str) -> None:
    libraries.state(p2p=p2p)
    cuda = Cuda(libraries.cuda)
    first, second = cuda.devices()
    for source, target in ((first, second), (second, first)):
        check = cuda.check_copy(source, target, SIZE)
        assert (check.source, check.target, check.result) == (source.uuid, target.uuid, result)


@needs_compiler
def test_nothing_is_copied_where_little_memory_is_free(libraries: Libraries) -> None:
    libraries.state(gpu0__used_mib="48000")
    cuda = Cuda(libraries.cuda)
    first, second = cuda.devices()
    assert cuda.check_copy(first, second, SIZE).result == "full"


@needs_compiler
def test_faults_have_cudas_codes(libraries: Libraries) -> None:
    def code() -> int:
        with pytest.raises(CudaError) as caught:
            Cuda(libraries.cuda)
        assert caught.value.call == "cuInit"
        return caught.value.code

    libraries.remove("nvidia-uvm")
    assert code() == 999
    libraries.node("nvidia-uvm", UVM_MAJOR + 1, 0)
    assert code() == 999
    libraries.node("nvidia-uvm", UVM_MAJOR, 0)
    libraries.remove("nvidia-uvm-tools")
    assert code() == 304
    libraries.node("nvidia-uvm-tools", UVM_MAJOR, 1)
    libraries.state(driver="580.178.04")
    assert code() == 803
    libraries.state()
    libraries.remove("nvidia0")
    libraries.remove("nvidia1")
    assert code() == 100
    libraries.unload()
    assert code() == 100


@needs_compiler
def test_the_error_has_cudas_words(libraries: Libraries) -> None:
    libraries.remove("nvidia-uvm")
    with pytest.raises(CudaError, match=r"CUDA_ERROR_UNKNOWN \(999\): unknown error"):
        Cuda(libraries.cuda)
