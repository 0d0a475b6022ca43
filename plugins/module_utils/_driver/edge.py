# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge of nvidia_driver: observes a node or a container, and makes the quick changes."""

from __future__ import annotations

import os
import re
import shutil
import typing as t

from .._apt.openpgp import fingerprints
from .._apt.repository import Repository
from .._core.changes import Change
from .._gpu.holders import Holder
from .._gpu.holders_edge import ProcessFiles
from .._gpu.host_edge import GpuHost
from .._gpu.model import NvmlReport
from .._gpu.nvml_edge import ask_nvml
from .._gpu.secure_boot import SecureBoot
from .._linux.command_edge import Command
from .._linux.text_file_edge import TextFile, read_text_file, write_text_file
from . import files
from .checks import running_foreign_guests
from .model import Present, Unit, Wanted
from .sources import driver_packages
from .users import gpu_users

MANIFEST = "/var/lib/nvidia/log"
RECORDS = "/var/lib/kpro-llm/driver"
_FORMAT = "${db:Status-Abbrev} ${Package} ${Version} ${Maintainer}\\n"


class DriverEdge:
    """Reads and writes the system."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._host = GpuHost(command)

    def observe(self, wanted: Wanted) -> Present:
        """Return what is there; on a container only its own part is looked at."""
        node = wanted.scope == "node"
        known = self._host.proc_gpus()
        pci = self._host.pci() if node else ()
        minors = tuple(sorted(gpu.minor for gpu in known if gpu.minor is not None)) or tuple(range(len(pci)))
        paths = files.node_files(minors, wanted.persistence, wanted.power_limit_w, wanted.repository, wanted.version) if node else files.userland_files()
        kernels = self._host.kernels() if node else (self._host.kernel,)
        installed = self._installed()
        report = ask_nvml() if node else NvmlReport("none")
        containers = self._host.gpu_containers() if node else ()
        return Present(
            kernel=self._host.kernel,
            kernels=kernels,
            loaded=self._host.loaded(),
            on_disk=self._host.on_disk() if node else None,
            nvml_library=self._host.library("libnvidia-ml.so.1"),
            cuda_library=self._host.library("libcuda.so.1"),
            runfile=_recorded_version(),
            packages=driver_packages(installed),
            missing_packages=_missing(wanted.packages, installed),
            kernels_without_headers=tuple(kernel for kernel in kernels if not os.path.exists(f"/lib/modules/{kernel}/build")),
            modules=self._host.modules() if node else frozenset(),
            dkms=self._host.dkms() if node else (),
            pci=pci,
            nodes=self._host.nodes(),
            majors=self._host.majors(),
            minors=minors,
            users=gpu_users(_holders(report), report, containers, files.PERSISTENCE_UNIT),
            files={path: _text(path) for path in paths},
            units=self._units(files.node_units(wanted.persistence)) if node else {},
            initramfs_tool=shutil.which("update-initramfs") is not None,
            power_limits_w={gpu.uuid: gpu.power_limit_w for gpu in report.gpus if gpu.uuid and gpu.power_limit_w is not None},
            settings=self._host.settings() if node else (),
            secure_boot=self._host.secure_boot() if node else SecureBoot(),
            containers=containers,
            ours=_installed_by_us() if node else frozenset(),
            key=_key(wanted.repository) if wanted.repository else None,
        )

    def distribution(self) -> str:
        """Return id and version of the release, as NVIDIA names its trees (``debian13``)."""
        rows = dict(line.partition("=")[::2] for line in (_text("/etc/os-release") or "").replace('"', "").splitlines())
        return f"{rows.get('ID', '')}{rows.get('VERSION_ID', '')}"

    def apply(self, change: Change) -> None:
        """Make one quick change.

        :raises KproError: it can't be made.
        """
        kind = change.action[0]
        if kind == "file":
            _unused, path, text = change.action
            write_text_file(TextFile(path, text, files.mode_of(path), "root", "root"))
            if path == files.SYSUSERS:
                self._command.check(["systemd-sysusers", path])
            if path.startswith(files.UNIT_FOLDER):
                self._command.check(["systemctl", "daemon-reload"])
        elif kind == "unit":
            self._command.check(["systemctl", "enable", "--quiet", change.action[1]])
            self._command.check(["systemctl", "restart", change.action[1]], timeout_s=120.0)
        elif kind == "power":
            self._command.check(["nvidia-smi", "-i", change.action[1], "-pl", str(change.action[2])])

    def foreign_guests(self) -> tuple[str, ...]:
        """Return the guests that run on this node and are not ours, in words."""
        result = self._command.run(["pvesh", "get", "/cluster/resources", "--type", "vm", "--output-format", "json"])
        if result.rc != 0:
            return (f"unknown (pvesh: {result.last_error_line})",)
        return running_foreign_guests(result.stdout, os.uname().nodename)

    def recorded_sha256(self, package: str) -> str:
        """Return the SHA-256 with which a package was installed here, empty if it was not by us."""
        return (_text(record_path(package)) or "").partition(" ")[0]

    def _installed(self) -> str:
        return self._command.run(["dpkg-query", "--show", f"--showformat={_FORMAT}"]).stdout

    def _units(self, names: t.Sequence[str]) -> dict[str, Unit]:
        """Return the units' states; one call for all."""
        text = self._command.run(["systemctl", "show", "--property=Id,UnitFileState,ActiveState", *names]).stdout
        states = {}
        for block in text.strip().split("\n\n"):
            rows = dict(line.partition("=")[::2] for line in block.splitlines())
            states[rows.get("Id", "")] = Unit(rows.get("UnitFileState") == "enabled", rows.get("ActiveState") == "active")
        return {name: states.get(name, Unit(False, False)) for name in names}


def record_path(package: str) -> str:
    """Return where the SHA-256 of an installed package is kept."""
    return f"{RECORDS}/{package}.sha256"


def _holders(report: NvmlReport) -> tuple[Holder, ...]:
    """Return who has a device node open, and who has memory that NVML counts."""
    reader = ProcessFiles()
    holders = {holder.pid: holder for holder in reader.holders()}
    for process in report.processes:
        holders.setdefault(process.pid, reader.holder(process.pid))
    return tuple(holders.values())


def _installed_by_us() -> frozenset[str]:
    """Return the versions whose package this collection has installed."""
    names = os.listdir(RECORDS) if os.path.isdir(RECORDS) else []
    return frozenset(match[1] for name in names if (match := re.fullmatch(r"NVIDIA-Linux-x86_64-([\d.]+)\.run\.sha256", name)))


def _key(repository: Repository) -> tuple[str, ...] | None:
    text = _text(repository.key_path)
    return None if text is None else tuple(fingerprints(text))


def _text(path: str) -> str | None:
    found = read_text_file(path)
    return found.text if found else None


def _missing(packages: t.Sequence[str], installed: str) -> tuple[str, ...]:
    there = {row[1] for row in (line.split() for line in installed.splitlines()) if len(row) >= 3 and row[0] == "ii"}
    return tuple(name for name in packages if name not in there)


def _recorded_version() -> str | None:
    """Return the version in the first line of the installer's own record (``1.0-NNN (VERSION)``)."""
    found = re.search(r"\(([\d.]+)\)", (_text(MANIFEST) or "").partition("\n")[0])
    return found[1] if found else None
