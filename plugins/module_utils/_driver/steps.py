# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a driver's long work, in order."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .files import PERSISTENCE_UNIT
from .model import Present, Wanted

# Innermost last: a module is unloaded before the one that it needs.
MODULES = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
LOADED = ("nvidia", "nvidia_uvm")
INSTALLER_LOG = "/var/log/nvidia-installer.log"
DOWNLOADS = "/var/cache/kpro-llm"


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the worker.

    :param kind: "run" a program, install "packages" (a program that is run again after apt-get update if it fails), "download" the vendor's
        package, "remove" it, write a "file", fetch the "key" of the vendor's repository, install from that "repository", "build" under the name
        that DKMS knows, or remove the "source" of a version that DKMS has forgotten.
    :param phase: what a person reads while it runs.
    :param argv: the program of a "run".
    :param failure: how to explain its failure: "apt", "installer", "dkms", "unload", "load", "initramfs"; empty: it may fail.
    :param timeout_s: a bound for a hanging program, far above any honest need.
    """

    kind: t.Literal["run", "packages", "download", "remove", "file", "key", "repository", "build", "source"]
    phase: str
    argv: tuple[str, ...] = ()
    failure: str = ""
    timeout_s: float = 3600.0


def package_name(version: str) -> str:
    """Return the file name of the vendor's package."""
    return f"NVIDIA-Linux-x86_64-{version}.run"


def package_path(version: str) -> str:
    """Return where the package lies while it is needed."""
    return f"{DOWNLOADS}/{package_name(version)}"


def package_url(template: str, version: str) -> str:
    """Return the package's address; ``{version}`` in it stands for the version."""
    return template.replace("{version}", version)


def installer_argv(wanted: Wanted, flavour: str) -> tuple[str, ...]:
    """Return the installer's command line: kernel module by DKMS on a node, none of it in a container."""
    common = ("sh", package_path(wanted.version), "--silent", "--no-x-check", "--no-install-compat32-libs", "--no-opengl-files")
    if wanted.scope == "userland":
        return (*common, "--no-kernel-modules", "--no-nouveau-check", "--no-nvidia-modprobe")
    return (*common, "--dkms", f"--kernel-module-type={flavour}", "--disable-nouveau")


def spelled(argv: t.Sequence[str], help_text: str) -> tuple[str, ...]:
    """Return the installer's command line in the words of the package at hand.

    :param help_text: what the package says to ``--advanced-options``; an option that it does not know ends the installer.
    """
    older = {"--no-kernel-modules": "--no-kernel-module", "--kernel-module-type=open": "-m=kernel-open", "--kernel-module-type=proprietary": "-m=kernel"}
    known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", help_text))
    return tuple(older[word] if word in older and known and word.partition("=")[0] not in known else word for word in argv)


def node_steps(wanted: Wanted, present: Present, actions: t.Sequence[tuple[t.Any, ...]]) -> tuple[Step, ...]:
    """Return the steps for a plan's long actions, and for the files that come between them."""
    steps: list[Step] = []
    for action in actions:
        if action == ("load",) and runs_another(wanted, present) and not any(step.failure == "unload" for step in steps):
            steps += unload_steps(present)
        steps += _steps_of(action, wanted, present)
    return tuple(steps)


def _steps_of(action: tuple[t.Any, ...], wanted: Wanted, present: Present) -> list[Step]:
    kind, *values = action
    match kind:
        case "packages":
            argv = ("apt-get", "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", *values[0])
            return [Step("packages", f"Install {', '.join(values[0])}", argv, "apt")]
        case "key":
            repository = values[0]
            return [
                Step("key", "Fetch the key of NVIDIA's package repository", (repository.name, repository.uri, repository.key_url, repository.key_fingerprint))
            ]
        case "file":
            return [Step("file", f"Write {values[0]}", tuple(values))]
        case "initramfs":
            return [Step("run", "Rebuild the initramfs of all kernels", ("update-initramfs", "-u", "-k", "all"), "initramfs")]
        case "install":
            return _repository_steps(wanted, present, values[0]) if wanted.source == "cuda_repo" else _package_steps(wanted, present, values[0])
        case "build":
            return [_build(present.dkms_name(wanted.version), wanted.version, values[0])]
        case "forget":
            name, version = values
            # It may be gone already: the vendor's installer takes the version away that it replaces.
            remove = Step("run", f"Remove driver {version} from DKMS", ("dkms", "remove", "-m", name, "-v", version, "--all"))
            return [remove, Step("source", f"Remove the source of driver {version}", (f"/usr/src/{name}-{version}",))]
        case "load":
            return [Step("run", f"Load {name}", ("modprobe", name), "load", 300.0) for name in LOADED]
    return []


def _package_steps(wanted: Wanted, present: Present, flavour: str) -> list[Step]:
    return [
        Step("download", f"Download driver {wanted.version}"),
        *unload_steps(present),
        Step("run", f"Install driver {wanted.version} and build its kernel module", installer_argv(wanted, flavour), "installer"),
        Step("remove", "Remove the package"),
    ]


def _repository_steps(wanted: Wanted, present: Present, flavour: str) -> list[Step]:
    """Return the installation from the vendor's repository, and the build, which a package skips in silence where it finds no headers."""
    uri = wanted.repository.uri if wanted.repository else ""
    return [
        Step("repository", f"Install driver {wanted.version} from NVIDIA's package repository", (wanted.version, flavour, uri), "apt"),
        dataclasses.replace(_build("nvidia", wanted.version, present.kernel), kind="build"),
    ]


def _build(name: str, version: str, kernel: str) -> Step:
    return Step("run", f"Build the kernel module for {kernel}", ("dkms", "install", "-m", name, "-v", version, "-k", kernel), "dkms")


def userland_steps(wanted: Wanted) -> tuple[Step, ...]:
    """Return the steps in a container."""
    return (
        Step("download", f"Download driver {wanted.version}"),
        Step("run", f"Install the userland of driver {wanted.version}", installer_argv(wanted, ""), "installer"),
        Step("remove", "Remove the package"),
    )


def runs_another(wanted: Wanted, present: Present) -> bool:
    """Say whether the kernel runs another version, which has to be unloaded; adding a module to the right one disturbs nobody."""
    return present.loaded is not None and present.loaded.version != wanted.version


def unload_steps(present: Present) -> list[Step]:
    """Return the steps that unload the modules; the persistence daemon holds them and comes back with the units."""
    loaded = [name for name in MODULES if name in present.modules]
    if not loaded:
        return []
    return [
        Step("run", "Stop the persistence daemon", ("systemctl", "stop", PERSISTENCE_UNIT), timeout_s=60.0),
        Step("run", "Unload the kernel modules", ("modprobe", "-r", *loaded), "unload", 300.0),
    ]


def needed_packages(present: Present, kernels: t.Sequence[str]) -> list[str]:
    """Return the packages to install before a build for the given kernels."""
    if not kernels:
        return []
    headers = [f"proxmox-headers-{kernel}" for kernel in kernels if kernel in present.kernels_without_headers]
    return list(dict.fromkeys([*present.missing_packages, *headers]))
