# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of flash-attn's setup.py: kernels go through nvcc of CUDA_HOME for the architectures that the environment names.

Like ninja, it compiles only what is not compiled yet, and tells its count.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel  # as the real one: the tools have to be there

KERNELS = 3


class Compile(build_py):
    """Compiles the kernels into the package."""

    def run(self) -> None:
        super().run()
        nvcc = Path(os.environ["CUDA_HOME"]) / "bin/nvcc"
        subprocess.run([nvcc, "-V"], check=True)
        assert os.environ["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE" and int(os.environ["MAX_JOBS"]) >= 1
        flags = [word for arch in os.environ["FLASH_ATTN_CUDA_ARCHS"].split(";") for word in ("-gencode", f"arch=compute_{arch},code=sm_{arch}")]
        for number in range(1, KERNELS + 1):
            built = Path(f"build/temp/kernel{number}.o")
            if not built.exists():
                built.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run([nvcc, *flags, "-c", f"kernel{number}.cu", "-o", built], check=True)
            print(f"[{number}/{KERNELS}] kernel{number}.o", flush=True)
            target = Path(self.build_lib) / "kpro_test_attention" / built.name
            target.write_bytes(built.read_bytes())


setup(
    name="kpro-test-attention",
    version="2.8.3",
    packages=["kpro_test_attention"],
    cmdclass={"build_py": Compile, "bdist_wheel": bdist_wheel},
)
