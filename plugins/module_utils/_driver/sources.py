# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a driver comes from, and why two sources never mix."""

from __future__ import annotations

import re
import typing as t

from .._core.errors import KproError
from .model import DriverPackage, Present, Wanted

# Not firmware-nvidia-graphics (nouveau's), nvidia-container-* (no part of the driver) or the pinning packages (no files).
_DRIVER_PACKAGE = re.compile(
    r"^(cuda-drivers|firmware-nvidia-.*gsp|libcuda1|libnvidia-(?!container)|"
    r"nvidia-(alternative|dkms|driver(?!-pinning|-assistant)|headless|kernel|modprobe|open|persistenced|smi|utils)|xserver-xorg-video-nvidia)"
)
_SHOWN = 6
_WHY = "mixed installs end in version mismatches"


def driver_packages(dpkg_text: str) -> tuple[DriverPackage, ...]:
    """Return installed driver packages in the output of ``dpkg-query`` ("status name version maintainer" lines)."""
    rows = (line.split(maxsplit=3) for line in dpkg_text.splitlines())
    return tuple(DriverPackage(row[1], row[2], row[3] if len(row) > 3 else "") for row in rows if _is_driver(row))


def _is_driver(row: t.Sequence[str]) -> bool:
    # Half installed ones count (iF, iU): their files are there.
    return len(row) >= 3 and row[0][1:] not in ("n", "c") and _DRIVER_PACKAGE.match(row[1]) is not None


def check_sources(wanted: Wanted, present: Present) -> None:
    """Refuse a second source of the driver besides the wanted one.

    :raises KproError: naming what is there, and how it is removed or kept.
    """
    if wanted.source == "cuda_repo":
        _check_repository(wanted, present)
        return
    if present.packages:
        vendors = all(not package.of_distribution for package in present.packages)
        origin = "NVIDIA's package repository" if vendors else "Debian packages"
        purge = f"apt-get purge {' '.join(package.name for package in present.packages)}"
        keep = f"To keep that source, set {'cuda_repo' if vendors else 'none'} as gpu_node__driver_source; else remove them ({purge}), then run again"
        raise KproError(
            "NVIDIA driver",
            f"it is installed from {origin} ({_listed(present.packages)}), and {wanted.version} was asked for as vendor package: {_WHY}",
            keep if wanted.scope == "node" else f"Remove them from the container ({purge}), then run again",
            packages=[package.name for package in present.packages],
        )


def _check_repository(wanted: Wanted, present: Present) -> None:
    if present.runfile:
        raise KproError(
            "NVIDIA driver",
            f"{present.runfile} is installed by the vendor package (its record is /var/lib/nvidia/log), and {wanted.version} was asked for "
            f"from NVIDIA's package repository: {_WHY}",
            "To keep that source, set runfile as gpu_node__driver_source; else remove it (nvidia-uninstall --silent), then run again",
            runfile=present.runfile,
        )
    foreign = tuple(package for package in present.packages if package.of_distribution)
    if foreign:
        raise KproError(
            "NVIDIA driver",
            f"it is installed from Debian packages ({_listed(foreign)}), and {wanted.version} was asked for from NVIDIA's package repository: {_WHY}",
            f"Remove them (apt-get purge {' '.join(package.name for package in foreign)}), then run again",
            packages=[package.name for package in foreign],
        )


def _listed(packages: t.Sequence[DriverPackage]) -> str:
    return ", ".join(f"{package.name} {package.version}" for package in packages[:_SHOWN]) + (" ..." if len(packages) > _SHOWN else "")
