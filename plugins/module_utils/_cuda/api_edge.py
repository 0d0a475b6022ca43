# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to CUDA's driver interface, by ctypes on the system's libcuda.

Calls and codes as in the public ``cuda.h``; nothing newer than CUDA 11.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import typing as t

from .._gpu.model import MIB
from .._gpu.text import bus_id
from .model import LIBRARY_NOT_FOUND, CudaDevice, CudaError, PeerCheck

LIBRARY = "libcuda.so.1"
PEER_ACCESS_ALREADY_ENABLED = 704
_CC_MAJOR, _CC_MINOR = 75, 76
# Below this a context and two buffers might take the last memory of a running engine.
ROOM_MIB = 1024


class Cuda:
    """An initialised driver interface.

    :raises CudaError: code -1 if there is no library, else cuInit's.
    """

    def __init__(self, name: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise CudaError(LIBRARY_NOT_FOUND, "dlopen", str(error)) from error
        self._call("cuInit", 0)

    def driver_version(self) -> str:
        """Return the newest CUDA version that the driver serves."""
        out = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(out))
        return f"{out.value // 1000}.{out.value % 1000 // 10}"

    def devices(self) -> tuple[CudaDevice, ...]:
        """Return all devices; makes a context on each to learn its free memory."""
        out = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(out))
        return tuple(self._device(index) for index in range(out.value))

    def can_access(self, source: int, target: int) -> bool:
        """Say whether ``source`` can reach ``target``'s memory."""
        out = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(out), source, target)
        return bool(out.value)

    def check_copy(self, source: CudaDevice, target: CudaDevice, size: int) -> PeerCheck:
        """Copy random bytes from one GPU to another over peer access and compare what arrived."""
        if not self.can_access(source.index, target.index):
            return PeerCheck(source.uuid, target.uuid, "none")
        if min(source.memory_free_mib, target.memory_free_mib) < ROOM_MIB + size // MIB:
            return PeerCheck(source.uuid, target.uuid, "full", f"less than {ROOM_MIB + size // MIB} MiB are free")
        try:
            same = self._copies_right(source.index, target.index, size)
        except CudaError as error:
            return PeerCheck(source.uuid, target.uuid, "error", f"{error.call}: {error}")
        return PeerCheck(source.uuid, target.uuid, "ok") if same else PeerCheck(source.uuid, target.uuid, "corrupt", f"{size} bytes")

    def _copies_right(self, source: int, target: int, size: int) -> bool:
        sent, received = os.urandom(size), ctypes.create_string_buffer(size)
        with self._context(source) as from_context, self._context(target) as to_context:
            self._enter(from_context)
            self._peer(to_context)
            with self._memory(size) as from_memory:
                self._call("cuMemcpyHtoD_v2", from_memory, sent, ctypes.c_size_t(size))
                self._enter(to_context)
                with self._memory(size) as to_memory:
                    self._call("cuMemsetD8_v2", to_memory, ctypes.c_ubyte(0), ctypes.c_size_t(size))
                    self._call("cuCtxSynchronize")
                    self._enter(from_context)
                    self._call("cuMemcpyPeer", to_memory, to_context, from_memory, from_context, ctypes.c_size_t(size))
                    self._call("cuCtxSynchronize")
                    self._enter(to_context)
                    self._call("cuMemcpyDtoH_v2", received, to_memory, ctypes.c_size_t(size))
        return received.raw == sent

    def _device(self, index: int) -> CudaDevice:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        name, bus, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32), (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetName", name, 128, device)
        self._call("cuDeviceGetPCIBusId", bus, 32, device)
        self._call("cuDeviceGetUuid", uuid, device)
        with self._context(index) as context:
            self._enter(context)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        capability = f"{self._attribute(_CC_MAJOR, device)}.{self._attribute(_CC_MINOR, device)}"
        return CudaDevice(index, _uuid(bytes(uuid)), name.value.decode(), bus_id(bus.value.decode()), capability, total.value // MIB, free.value // MIB)

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        out = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(out), number, device)
        return out.value

    @contextlib.contextmanager
    def _context(self, device: int) -> t.Iterator[ctypes.c_void_p]:
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            yield context
        finally:
            self._library.cuDevicePrimaryCtxRelease_v2(device)

    @contextlib.contextmanager
    def _memory(self, size: int) -> t.Iterator[ctypes.c_ulonglong]:
        address = ctypes.c_ulonglong()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            yield address
        finally:
            self._library.cuMemFree_v2(address)

    def _enter(self, context: ctypes.c_void_p) -> None:
        self._call("cuCtxSetCurrent", context)

    def _peer(self, context: ctypes.c_void_p) -> None:
        try:
            self._call("cuCtxEnablePeerAccess", context, 0)
        except CudaError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise

    def _call(self, name: str, *arguments: t.Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(code, name, self._words(code))

    def _words(self, code: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(name.value or b'unknown').decode()} ({code}): {(text.value or b'no text').decode()}"


def _uuid(data: bytes) -> str:
    digits = data.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
