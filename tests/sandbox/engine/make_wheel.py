#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make_wheel.py FOLDER: pack the CPU stand-in for SGLang's kernels (``src/``) as one pure wheel and print its name and SHA-256.

The members are stored, not deflated, and carry a fixed date, so that the bytes depend on the sources alone and never on the
machine's zlib: the CPU lane's lock file names this wheel by its hash like any other.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

NAME = "kpro_sglang_cpu"
VERSION = "0.5.23"
FILE_NAME = f"{NAME}-{VERSION}-py3-none-any.whl"
SOURCE = Path(__file__).resolve().parent / "src"
_DATE = (2020, 1, 1, 0, 0, 0)


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def wheel_members(source: Path) -> dict[str, bytes]:
    """Return the wheel's members in order: the sources, the start-up hook's ``.pth``, and the metadata with its RECORD."""
    info = f"{NAME}-{VERSION}.dist-info"
    members = {path.relative_to(source).as_posix(): path.read_bytes() for path in sorted(source.rglob("*.py"))}
    members["sgl_cpu_shim.pth"] = b"import sgl_cpu_shim\n"
    members[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: kpro-sglang-cpu\nVersion: {VERSION}\nSummary: Stand-in for SGLang's kernels on a CPU (for tests only)\n"
    ).encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: kpro\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return members


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder, replacing an older one in one step, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{FILE_NAME}.part"
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for name, data in wheel_members(SOURCE).items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return part.rename(folder / FILE_NAME)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_wheel.py FOLDER")
    wheel = write_wheel(Path(sys.argv[1]))
    print(wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest())
