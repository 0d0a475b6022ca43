# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to NVML, NVIDIA's management library, by ctypes on the system's own copy.

Structures and constants as in the public ``nvml.h``; only calls that exist since driver 470.
"""

from __future__ import annotations

import contextlib
import ctypes
import typing as t

from .model import MIB, Gpu, GpuProcess, Link, NvmlReport
from .text import bus_id

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_NOT_FOUND = 12
_INSUFFICIENT_SIZE = 7
_TEXT_BYTES = 96
_NOT_AVAILABLE = (1 << 64) - 1
_LEVELS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MAX_LINKS = 18


class NvmlError(Exception):
    """A call answered with an error; ``code`` is NVML's."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class _Pci(ctypes.Structure):
    _fields_: t.ClassVar = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Memory(ctypes.Structure):
    _fields_: t.ClassVar = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Process(ctypes.Structure):
    _fields_: t.ClassVar = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """An initialised library; use :meth:`session`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p

    @classmethod
    @contextlib.contextmanager
    def session(cls, name: str = LIBRARY) -> t.Iterator[Nvml]:
        """Load and initialise the library, and let go of it at the end.

        :raises NvmlError: the library is absent (code 12) or does not initialise (9: no driver, 18: other version, 4: no permission).
        """
        try:
            nvml = cls(ctypes.CDLL(name))
        except OSError as error:
            raise NvmlError(LIBRARY_NOT_FOUND, str(error)) from error
        nvml._call("nvmlInit_v2")
        try:
            yield nvml
        finally:
            nvml._library.nvmlShutdown()

    def report(self) -> NvmlReport:
        """Return driver, GPUs, programs and connections as the library sees them."""
        handles = self._handles()
        gpus = tuple(self._gpu(index, handle) for index, handle in enumerate(handles))
        processes = tuple(each for gpu, handle in zip(gpus, handles, strict=True) for each in self._processes(gpu.uuid or "", handle))
        return NvmlReport("nvml", self._text("nvmlSystemGetDriverVersion"), self._cuda_version(), gpus, processes, self._links(gpus, handles))

    def _call(self, name: str, *arguments: t.Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NvmlError(code, (self._library.nvmlErrorString(code) or b"Unknown Error").decode())

    def _handles(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            handles.append(handle)
        return handles

    def _text(self, name: str, *arguments: t.Any) -> str | None:
        out = ctypes.create_string_buffer(_TEXT_BYTES)
        with contextlib.suppress(NvmlError, AttributeError):
            self._call(name, *arguments, out, ctypes.c_uint(_TEXT_BYTES))
            return out.value.decode()
        return None

    def _number(self, name: str, handle: ctypes.c_void_p) -> int | None:
        out = ctypes.c_uint()
        with contextlib.suppress(NvmlError, AttributeError):
            self._call(name, handle, ctypes.byref(out))
            return out.value
        return None

    def _pair(self, name: str, handle: ctypes.c_void_p) -> tuple[int, int] | None:
        one, other = ctypes.c_int(), ctypes.c_int()
        with contextlib.suppress(NvmlError, AttributeError):
            self._call(name, handle, ctypes.byref(one), ctypes.byref(other))
            return one.value, other.value
        return None

    def _cuda_version(self) -> str | None:
        out = ctypes.c_int()
        with contextlib.suppress(NvmlError, AttributeError):
            self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(out))
            return f"{out.value // 1000}.{out.value % 1000 // 10}"
        return None

    def _gpu(self, index: int, handle: ctypes.c_void_p) -> Gpu:
        memory = self._memory(handle)
        capability = self._pair("nvmlDeviceGetCudaComputeCapability", handle)
        ecc = self._pair("nvmlDeviceGetEccMode", handle)
        persistence = self._number("nvmlDeviceGetPersistenceMode", handle)
        limit = self._number("nvmlDeviceGetPowerManagementLimit", handle)
        default_limit = self._number("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        return Gpu(
            uuid=self._text("nvmlDeviceGetUUID", handle),
            name=self._text("nvmlDeviceGetName", handle),
            bus_id=self._bus_id(handle),
            minor=self._number("nvmlDeviceGetMinorNumber", handle),
            index=index,
            memory_mib=memory.total // MIB if memory else None,
            memory_free_mib=memory.free // MIB if memory else None,
            memory_used_mib=memory.used // MIB if memory else None,
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
            ecc=bool(ecc[0]) if ecc else None,
            persistence=bool(persistence) if persistence is not None else None,
            power_limit_w=limit / 1000 if limit is not None else None,
            power_limit_default_w=default_limit / 1000 if default_limit is not None else None,
        )

    def _bus_id(self, handle: ctypes.c_void_p) -> str | None:
        out = _Pci()
        with contextlib.suppress(NvmlError, AttributeError):
            self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(out))
            return bus_id(out.bus_id.decode())
        return None

    def _memory(self, handle: ctypes.c_void_p) -> _Memory | None:
        out = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        with contextlib.suppress(NvmlError, AttributeError):
            self._call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(out))
            return out
        return None

    def _processes(self, uuid: str, handle: ctypes.c_void_p) -> list[GpuProcess]:
        size = 32
        while size <= 1024:
            count, out = ctypes.c_uint(size), (_Process * size)()
            try:
                self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), out)
            except NvmlError as error:
                if error.code != _INSUFFICIENT_SIZE:
                    return []
                size *= 2
                continue
            except AttributeError:
                return []
            return [GpuProcess(uuid, each.pid, None if each.used == _NOT_AVAILABLE else each.used // MIB) for each in out[: count.value]]
        return []

    def _links(self, gpus: tuple[Gpu, ...], handles: list[ctypes.c_void_p]) -> tuple[Link, ...]:
        pairs = [(one, other) for one in range(len(gpus)) for other in range(one + 1, len(gpus))]
        return tuple(Link(gpus[one].uuid or "", gpus[other].uuid or "", self._level(gpus[other], handles[one], handles[other])) for one, other in pairs)

    def _level(self, other_gpu: Gpu, one: ctypes.c_void_p, other: ctypes.c_void_p) -> str:
        bridges = sum(self._link_leads_to(one, number, other_gpu) for number in range(_MAX_LINKS))
        if bridges:
            return f"NV{bridges}"
        level = ctypes.c_int()
        with contextlib.suppress(NvmlError, AttributeError):
            self._call("nvmlDeviceGetTopologyCommonAncestor", one, other, ctypes.byref(level))
            return _LEVELS.get(level.value, str(level.value))
        return "unknown"

    def _link_leads_to(self, handle: ctypes.c_void_p, number: int, other: Gpu) -> bool:
        active, remote = ctypes.c_int(), _Pci()
        with contextlib.suppress(NvmlError, AttributeError):
            self._call("nvmlDeviceGetNvLinkState", handle, number, ctypes.byref(active))
            if active.value:
                self._call("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, number, ctypes.byref(remote))
                return bus_id(remote.bus_id.decode()) == other.bus_id
        return False


def ask_nvml(name: str = LIBRARY) -> NvmlReport:
    """Return NVML's report; an error becomes part of it, so that the caller can go on with other sources."""
    try:
        with Nvml.session(name) as nvml:
            return nvml.report()
    except NvmlError as error:
        return NvmlReport("nvml", error=str(error), error_code=error.code)
