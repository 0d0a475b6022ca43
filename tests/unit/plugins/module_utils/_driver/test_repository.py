# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._driver import repository

MADISON = """\
nvidia-driver-cuda | 595.45.04-1 | https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64  Packages
nvidia-driver-cuda | 590.48.01-1 | https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64  Packages
nvidia-driver-cuda | 580.173.02-1 | https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64  Packages
"""
URL = "https://developer.download.nvidia.com/compute/cuda/repos/{distribution}/x86_64/"
INSTALLED = dict.fromkeys(
    ("libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-modprobe", "nvidia-persistenced"), "580.173.02-1"
)


@pytest.mark.parametrize(
    ("distribution", "key", "ends"),
    [("debian12", "debian12/x86_64/3bf863cc.pub", "3BF863CC"), ("debian13", "debian13/x86_64/8793F200.pub", "8793F200")],
)
def test_published_keys(distribution: str, key: str, ends: str) -> None:
    found = repository.repository_of(URL, "", "", distribution)
    assert found.key_url.endswith(key) and found.key_fingerprint.endswith(ends)
    assert found.uri == URL.replace("{distribution}", distribution)


def test_a_given_key_wins_and_an_unknown_release_needs_one() -> None:
    found = repository.repository_of("http://mirror.example/cuda", "http://mirror.example/key.asc", "aa bb" * 10, "debian12")
    assert (found.uri, found.key_url, found.key_fingerprint) == ("http://mirror.example/cuda/", "http://mirror.example/key.asc", "AABB" * 10)
    with pytest.raises(KproError, match="no signing key is known for debian14"):
        repository.repository_of(URL, "", "", "debian14")
    assert repository.repository_of(URL, "https://example.org/{distribution}.pub", "A" * 40, "debian14").key_url == "https://example.org/debian14.pub"


def test_versions_offered_newest_first() -> None:
    assert repository.offered(MADISON) == ("595.45.04", "590.48.01", "580.173.02")
    repository.check_offered("590.48.01", repository.offered(MADISON), URL)


def test_a_version_that_is_not_offered_is_not_replaced_by_another() -> None:
    with pytest.raises(KproError) as caught:
        repository.check_offered("590.44.01", repository.offered(MADISON), URL)
    assert "it has 595.45.04, 590.48.01, 580.173.02" in caught.value.reason and "gpu_node__driver_version" in caught.value.remedy
    with pytest.raises(KproError, match="it has none at all"):
        repository.check_offered("590.44.01", (), URL)


def test_pin_holds_the_exact_version_above_everything() -> None:
    assert "Pin: version 580.173.02-*\nPin-Priority: 1001\n" in repository.pin_text("", "580.173.02")


def test_installation_of_exactly_one_version() -> None:
    argv = repository.install_argv("580.173.02", "open", "nvidia-driver-pinning-580.173.02", ["nvidia-driver-pinning-570.148.08"])
    assert {"nvidia-driver-cuda=580.173.02-*", "nvidia-kernel-open-dkms=580.173.02-*", "nvidia-driver-pinning-570.148.08-"} <= set(argv)
    assert not any(word.startswith("nvidia-kernel-dkms") for word in argv)
    assert "nvidia-kernel-dkms=580.173.02-*" in repository.install_argv("580.173.02", "proprietary", "")


@pytest.mark.parametrize(
    ("change", "flavour", "right"),
    [
        ({}, "auto", True),
        ({}, "open", True),
        ({}, "proprietary", False),
        ({"libcuda1": "1:580.173.02-1"}, "auto", True),
        ({"libcuda1": "580.178.04-1"}, "auto", False),
        ({"nvidia-kernel-open-dkms": "570.148.08-1"}, "auto", False),
    ],
)
def test_packages_as_wanted(change: dict[str, str], flavour: str, right: bool) -> None:
    assert repository.packages_right({**INSTALLED, **change}, "580.173.02", flavour) is right
