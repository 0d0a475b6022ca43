# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that asks CUDA in a child process: as another user, and with an end if a copy hangs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pwd
import select
import signal
import time
import typing as t

from .._core.errors import KproError
from .._gpu.host_edge import GpuHost
from .._gpu.model import MIB, DeviceNode
from .._linux.command_edge import Command
from .api_edge import Cuda
from .model import CudaDevice, CudaError, PeerCheck


@dataclasses.dataclass
class CudaAnswer:
    """The child's findings; ``doing`` names the step at which its time ran out, empty if it finished."""

    nodes: tuple[DeviceNode, ...] = ()
    error_code: int = 0
    error: str = ""
    version: str | None = None
    devices: tuple[CudaDevice, ...] = ()
    checks: tuple[PeerCheck, ...] = ()
    doing: str = ""


def ask_cuda(user: str, sizes_mib: t.Sequence[int], timeout_s: float) -> CudaAnswer:
    """Return CUDA's answers as a user gets them.

    :param user: empty: the caller's own.
    :param sizes_mib: sizes of the copies between GPUs; none: no copies.
    :raises KproError: the user is unknown.
    """
    entry = _entry(user)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(writer, entry, sizes_mib)
    os.close(writer)
    try:
        lines = _lines_until_end(reader, timeout_s)
    finally:
        os.close(reader)
        _end(child)
    return _answer(lines)


def _entry(user: str) -> pwd.struct_passwd | None:
    if not user:
        return None
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise KproError(f"user {user}", "it is not known here") from error


def _run_child(writer: int, entry: pwd.struct_passwd | None, sizes_mib: t.Sequence[int]) -> t.NoReturn:
    """Never returns into the module: whatever happens, the child ends here."""
    code = 1
    try:
        with os.fdopen(writer, "w") as out:
            _become(entry)
            _probe(lambda kind, value: print(json.dumps([kind, value]), file=out, flush=True), sizes_mib)
        code = 0
    finally:
        os._exit(code)


def _become(entry: pwd.struct_passwd | None) -> None:
    if entry and entry.pw_uid != os.geteuid():
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ["HOME"] = entry.pw_dir
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"):
        os.environ.pop(name, None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"


def _probe(tell: t.Callable[[str, t.Any], None], sizes_mib: t.Sequence[int]) -> None:
    tell("doing", "opening the device nodes")
    tell("nodes", [dataclasses.asdict(node) for node in GpuHost(Command()).nodes()])
    tell("doing", "cuInit")
    try:
        cuda = Cuda()
        tell("version", cuda.driver_version())
        tell("doing", "making a context on each GPU")
        devices = cuda.devices()
    except CudaError as error:
        tell("error", [error.code, f"{error.call} says {error}" if error.code > 0 else str(error)])
        return
    tell("devices", [dataclasses.asdict(device) for device in devices])
    for size, (source, target) in itertools.product(sizes_mib, itertools.permutations(devices, 2)):
        tell("doing", f"of {size} MiB from {source.uuid} to {target.uuid}")
        tell("check", dataclasses.asdict(cuda.check_copy(source, target, size * MIB)))
    tell("doing", "")


def _lines_until_end(reader: int, timeout_s: float) -> list[str]:
    """Return the child's whole lines, until it closes its end or its time is over."""
    data, until = b"", time.monotonic() + timeout_s
    while (left := until - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        block = os.read(reader, 65536)
        if not block:
            break
        data += block
    return data.decode("utf-8", "replace").splitlines() if data.endswith(b"\n") else data.decode("utf-8", "replace").splitlines()[:-1]


def _end(child: int) -> None:
    """End our own child if it still runs; one that hangs in the kernel is left to it."""
    if os.waitpid(child, os.WNOHANG)[0] == 0:
        os.kill(child, signal.SIGKILL)
        for _unused in range(50):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.02)


def _answer(lines: t.Sequence[str]) -> CudaAnswer:
    answer = CudaAnswer()
    for kind, value in map(json.loads, lines):
        if kind == "nodes":
            answer.nodes = tuple(DeviceNode(**row) for row in value)
        elif kind == "devices":
            answer.devices = tuple(CudaDevice(**row) for row in value)
        elif kind == "check":
            answer.checks = (*answer.checks, PeerCheck(**value))
        elif kind == "error":
            answer.error_code, answer.error, answer.doing = value[0], value[1], ""
        elif kind == "version":
            answer.version = value
        elif kind == "doing":
            answer.doing = value
    return answer
