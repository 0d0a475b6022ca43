# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._driver.converge import make_plan
from ansible_collections.kpro.llm.plugins.module_utils._driver.sources import driver_packages
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.driver_cases import (
    CONTAINER,
    DEBIAN,
    FRESH,
    FROM_REPOSITORY,
    GOOD,
    GOOD_FROM_REPOSITORY,
    NVIDIA,
    USERLAND,
    VERSION,
    WANTED,
    but,
    package,
)

DPKG = f"""\
ii  dkms 3.2.2-1 Dynamic Kernel Module System Team <dkms@packages.debian.org>
ii  libcuda1 550.163.01-2 {DEBIAN}
ii  libnvidia-container1 1.17.8-1 {NVIDIA}
iF  libnvidia-ml1 550.163.01-2 {DEBIAN}
ii  nvidia-container-toolkit 1.17.8-1 {NVIDIA}
ii  nvidia-driver 550.163.01-2 {DEBIAN}
ii  nvidia-driver-pinning-580.173.02 580.173.02-1 {NVIDIA}
ii  firmware-nvidia-graphics 20250410-2 Debian Kernel Team <debian-kernel@lists.debian.org>
ii  firmware-nvidia-gsp 550.163.01-2 {DEBIAN}
rc  nvidia-smi 535.261.03-1 {DEBIAN}
un  nvidia-alternative
"""


def test_packages_of_a_driver_are_known_from_their_neighbours() -> None:
    found = driver_packages(DPKG)
    assert [each.name for each in found] == ["libcuda1", "libnvidia-ml1", "nvidia-driver", "firmware-nvidia-gsp"]
    assert all(each.of_distribution and each.maintainer == DEBIAN for each in found)
    assert not package("libcuda1", "580.173.02-1", NVIDIA).of_distribution


def test_debian_packages_beside_the_vendor_package() -> None:
    with pytest.raises(KproError) as caught:
        make_plan(WANTED, but(FRESH, packages=(package("nvidia-driver", "550.163.01-2"), package("libcuda1", "550.163.01-2"))))
    assert "from Debian packages (nvidia-driver 550.163.01-2, libcuda1 550.163.01-2)" in caught.value.reason and "mixed installs" in caught.value.reason
    assert caught.value.remedy.startswith("To keep that source, set none as gpu_node__driver_source; else remove them (apt-get purge nvidia-driver libcuda1)")


def test_packages_of_the_repository_beside_the_vendor_package() -> None:
    with pytest.raises(KproError) as caught:
        make_plan(WANTED, GOOD_FROM_REPOSITORY)
    assert "from NVIDIA's package repository (libcuda1 580.173.02-1" in caught.value.reason
    assert "set cuda_repo as gpu_node__driver_source" in caught.value.remedy


def test_vendor_package_beside_the_repository() -> None:
    with pytest.raises(KproError) as caught:
        make_plan(FROM_REPOSITORY, GOOD)
    assert f"{VERSION} is installed by the vendor package" in caught.value.reason
    assert "set runfile as gpu_node__driver_source; else remove it (nvidia-uninstall --silent)" in caught.value.remedy


def test_debian_packages_beside_the_repository() -> None:
    with pytest.raises(KproError) as caught:
        make_plan(FROM_REPOSITORY, but(GOOD_FROM_REPOSITORY, packages=(*GOOD_FROM_REPOSITORY.packages, package("nvidia-smi", "550.163.01-2"))))
    assert "from Debian packages (nvidia-smi 550.163.01-2)" in caught.value.reason and "apt-get purge nvidia-smi)" in caught.value.remedy


def test_packages_in_a_container_are_refused_too() -> None:
    with pytest.raises(KproError, match="Remove them from the container \\(apt-get purge libcuda1\\)"):
        make_plan(USERLAND, but(CONTAINER, packages=(package("libcuda1", "535.261.03-1"),)))
