# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox's NVML and CUDA stand-ins, compiled to look at a folder instead of /proc and /dev."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

import pytest

USERLAND = pathlib.Path(__file__).resolve().parents[3] / "sandbox" / "gpu" / "userland"
UVM_MAJOR = 509
NODES = {"nvidia0": (195, 0), "nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia-uvm": (UVM_MAJOR, 0), "nvidia-uvm-tools": (UVM_MAJOR, 1)}
UUIDS = ("GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641", "GPU-e3b7f2d9-0c58-4a1b-8e94-b5d702c9f661")
STATE = {
    "driver": "@@KPRO-DRIVER-VERSION@@",
    "cuda": "13000",
    "count": "2",
    "persistence": "1",
    "topology_level": "40",
    "uvm_major": str(UVM_MAJOR),
    **{
        f"gpu{number}.{key}": value
        for number, bus in enumerate(("0000:41:00.0", "0000:61:00.0"))
        for key, value in {
            "name": "NVIDIA RTX A6000",
            "uuid": UUIDS[number],
            "bus_id": bus,
            "minor": str(number),
            "memory_mib": "49140",
            "compute_capability": "8.6",
        }.items()
    },
}

needs_compiler = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("cc"), reason="needs root (device nodes) and a C compiler (the stand-in libraries)")


@functools.cache
def compiled() -> Libraries:
    """Return the libraries, compiled once for all tests."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kpro-gpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Libraries(folder)


class Libraries:
    """Compiled libraries with a state file and device nodes of their own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.nvml, self.cuda = (self._compile(name) for name in ("nvml", "cuda"))

    def reset(self) -> None:
        """Let everything be right."""
        self.state()
        for name, (major, minor) in NODES.items():
            self.node(name, major, minor)

    def state(self, **changes: str) -> None:
        """Write the state, with changes; a dot in a key is written as two underscores."""
        rows = {**STATE, **{key.replace("__", "."): value for key, value in changes.items()}}
        (self._folder / "state").write_text("".join(f"{key}={value}\n" for key, value in rows.items()))

    def unload(self) -> None:
        """Let the kernel module be gone."""
        (self._folder / "state").unlink()

    def node(self, name: str, major: int, minor: int, mode: int = 0o666) -> None:
        """Make a device node."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        path.chmod(mode)

    def remove(self, name: str) -> None:
        """Remove a device node."""
        (self._folder / name).unlink()

    def _compile(self, name: str) -> str:
        target = self._folder / f"lib{name}.so"
        defines = [f'-DSTATE="{self._folder}/state"', f'-DDEV="{self._folder}"']
        flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-ffreestanding", "-fvisibility=hidden"]
        subprocess.run(["cc", *flags, *defines, "-o", target, USERLAND / f"{name}.c"], check=True)
        return str(target)
