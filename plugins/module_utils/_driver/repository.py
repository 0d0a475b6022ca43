# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's package repository as source of a node's driver: address, key, pins, packages."""

from __future__ import annotations

import re
import typing as t

from .._apt.repository import Repository
from .._core.errors import KproError
from .._gpu.text import version_key

NAME = "kpro-nvidia"
# The pins of NVIDIA's installation guide; a pattern with a version leaves packages of other versions (the container toolkit) alone.
PINNED = "*nvidia* libcuda* libnv* libxnvctrl* cuda-drivers* firmware-nvidia-gsp*"
# Libraries, tools and the persistence daemon, without anything of X or OpenGL.
MAIN_PACKAGE = "nvidia-driver-cuda"
COMPANIONS = ("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")
_MODULE_PACKAGES = {"open": "nvidia-kernel-open-dkms", "proprietary": "nvidia-kernel-dkms"}
# The key's file name and its fingerprint, as published for each tree.
KEYS: t.Mapping[str, tuple[str, str]] = {
    "debian12": ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "debian13": ("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
}


def repository_of(url: str, key_url: str, fingerprint: str, distribution: str) -> Repository:
    """Return the repository for a release of Debian.

    :param url: ``{distribution}`` in it stands for ``debian12`` or ``debian13``.
    :param key_url: empty: the file of the published name beside the packages.
    :param fingerprint: empty: the published one.
    :raises KproError: a release for which no key is known, and none was given.
    """
    name, published = KEYS.get(distribution, ("", ""))
    uri = url.replace("{distribution}", distribution)
    uri = f"{uri.rstrip('/')}/"
    key = key_url.replace("{distribution}", distribution) or f"{uri}{name}"
    wanted = "".join(fingerprint.split()).upper() or published
    if not re.fullmatch(r"[0-9A-F]{40}", wanted) or not (key_url or name):
        raise KproError(
            "NVIDIA's package repository",
            f"no signing key is known for {distribution or 'this release'}",
            "Give its address and fingerprint: gpu_node__cuda_repository_key_url, gpu_node__cuda_repository_key_fingerprint",
        )
    return Repository(NAME, uri, key, wanted)


def pin_text(head: str, version: str) -> str:
    """Return apt preferences that hold all parts of the driver at one version, against every repository."""
    return f"{head}Package: {PINNED}\nPin: version {version}-*\nPin-Priority: 1001\n"


def module_package(flavour: str) -> str:
    """Return the package that builds the kernel module."""
    return _MODULE_PACKAGES[flavour]


def packages_right(installed: t.Mapping[str, str], version: str, flavour: str) -> bool:
    """Say whether the packages of a version are installed, with the module of one of the flavours.

    :param installed: versions of the installed driver packages by name.
    :param flavour: "auto": whichever is there.
    """
    modules = _MODULE_PACKAGES.values() if flavour == "auto" else [_MODULE_PACKAGES[flavour]]
    there = {name for name, text in installed.items() if upstream(text) == version}
    return {MAIN_PACKAGE, *COMPANIONS} <= there and any(name in there for name in modules)


def upstream(package_version: str) -> str:
    """Return a package version without epoch and revision."""
    return package_version.rpartition(":")[2].rpartition("-")[0] or package_version


def offered(madison: str) -> tuple[str, ...]:
    """Return the driver versions that ``apt-cache madison`` lists, newest first."""
    rows = (line.split("|") for line in madison.splitlines())
    found = {upstream(row[1].strip()) for row in rows if len(row) >= 3}
    return tuple(sorted(found, key=version_key, reverse=True))


def check_offered(version: str, versions: t.Sequence[str], uri: str) -> None:
    """Stop if the repository does not have the version; another one is never taken in its place.

    :raises KproError: naming the versions that it has.
    """
    if version not in versions:
        has = f"it has {', '.join(versions[:8])}" if versions else "it has none at all"
        remedy = "Ask for one of these (gpu_node__driver_version); node and container both get it" if versions else "Check its address and the node's network"
        raise KproError(f"driver {version}", f"NVIDIA's package repository {uri} does not offer it: {has}", remedy, offered=list(versions))


def pinning_packages(version: str) -> tuple[str, str]:
    """Return NVIDIA's own pinning packages, the exact one first."""
    return (f"nvidia-driver-pinning-{version}", f"nvidia-driver-pinning-{version.partition('.')[0]}")


def install_argv(version: str, flavour: str, pinning: str, stale: t.Sequence[str] = ()) -> tuple[str, ...]:
    """Return the installation of one exact version.

    :param pinning: name of the pinning package, empty if the repository has none: our preferences hold the version as well.
    :param stale: pinning packages of other versions, to be removed.
    """
    names = [f"{name}={version}-*" for name in (MAIN_PACKAGE, module_package(flavour), *COMPANIONS)]
    options = ("--yes", "--no-install-recommends", "--allow-downgrades", "-o", "Dpkg::Options::=--force-confold")
    return ("apt-get", "install", *options, *([pinning] if pinning else []), *names, *(f"{name}-" for name in stale))
