# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what kernel and file system say about GPUs."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import stat

from .._core.errors import KproError
from .._linux.command_edge import Command, CommandResult
from .._linux.cpu_level import cpu_level
from .blockers import Setting, settings
from .claims import KINDS, Guest, pci_mappings, read_guest, slot_of
from .guest_files_edge import guest_files, read_included, read_regular
from .model import DeviceNode, Gpu, GpuContainer, PciGpu
from .secure_boot import SecureBoot, certificate_of, enrolled_of, pending_of, state_of
from .text import (
    DkmsEntry,
    DriverVersion,
    active_containers,
    bus_id,
    character_majors,
    dkms_entries,
    gpu_information,
    library_version,
    loaded_driver,
    loaded_modules,
    module_driver,
    pve_version,
)

_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
_NVIDIA_VENDOR = "0x10de"
_MODPROBE_FOLDERS = ("etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")
_DISPLAY_CLASSES = ("0x0300", "0x0302")


class GpuHost:
    """Reads /proc, /sys, /dev and asks modinfo, lsmod and dkms; ``root`` is "/" except in tests."""

    def __init__(self, command: Command, root: str = "/") -> None:
        self._command = command
        self._root = pathlib.Path(root)

    @property
    def kernel(self) -> str:
        """The running kernel's release."""
        return os.uname().release

    def place(self) -> str:
        """Say where we are: "node" (Proxmox VE), "container" (LXC) or "host" (anything else)."""
        if (self._root / "etc/pve").is_dir() or (self._root / "usr/bin/pveversion").exists():
            return "node"
        kind = self._text("run/systemd/container").strip() or _container_of(self._text("proc/1/environ"))
        return "container" if kind == "lxc" else "host"

    def pve_version(self) -> str | None:
        """Return the version of Proxmox VE, None where there is none."""
        return pve_version(self._output(["pveversion"]))

    def loaded(self) -> DriverVersion | None:
        """Return the driver that the kernel runs."""
        return loaded_driver(self._text("proc/driver/nvidia/version"))

    def on_disk(self) -> DriverVersion | None:
        """Return the driver that modprobe would load for the running kernel."""
        return module_driver(self._output(["modinfo", "nvidia"]))

    def modules(self) -> frozenset[str]:
        """Return the names of all loaded modules."""
        return loaded_modules(self._output(["lsmod"]))

    def dkms(self) -> tuple[DkmsEntry, ...]:
        """Return DKMS's entries for the driver."""
        return dkms_entries(self._output(["dkms", "status"]))

    def kernels(self) -> tuple[str, ...]:
        """Return the installed kernels' releases: those with an image in /boot, and the running one."""
        images = {path.name.removeprefix("vmlinuz-") for path in (self._root / "boot").glob("vmlinuz-*")}
        return tuple(sorted(images | {self.kernel}))

    def library(self, name: str) -> str | None:
        """Return the version of a driver library ("libcuda.so.1"), by the file that its link leads to."""
        for folder in _LIBRARY_FOLDERS:
            path = self._root / folder / name
            if path.is_symlink() or path.exists():
                return library_version(os.path.basename(os.path.realpath(path)))
        return None

    def majors(self) -> dict[str, int]:
        """Return the major numbers of the kernel's character devices by name."""
        return character_majors(self._text("proc/devices"))

    def nodes(self) -> tuple[DeviceNode, ...]:
        """Return the NVIDIA device nodes that are there, each opened once and closed."""
        folder = self._root / "dev"
        names = [path for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)", path.name)]
        return tuple(_node(path, f"/dev/{path.name}") for path in sorted(names))

    def pci(self) -> tuple[PciGpu, ...]:
        """Return NVIDIA's display and compute controllers on the PCI bus."""
        found, guests = [], self.guests("qemu-server")
        for place in sorted((self._root / "sys/bus/pci/devices").glob("*")):
            if (place / "physfn").is_symlink():
                continue  # a part of a card, for use in VMs
            if _read(place / "vendor").strip() == _NVIDIA_VENDOR and _read(place / "class").strip().startswith(_DISPLAY_CLASSES):
                driver = place / "driver"
                name = os.path.basename(os.readlink(driver)) if driver.is_symlink() else None
                vms = [guest for guest in guests if any(claim.kind == "slot" and claim.value == slot_of(place.name) for claim in guest.claims)]
                card = PciGpu(place.name, _read(place / "device").strip(), name, tuple(vm.vmid for vm in vms), tuple(vm.name for vm in vms))
                found.append(card)
        return tuple(found)

    def guests(self, kind: str) -> tuple[Guest, ...]:
        """Return this node's VMs (``qemu-server``) or containers (``lxc``) with their claims on GPUs."""
        node = os.uname().nodename.split(".")[0]
        mappings = pci_mappings(read_regular(self._root / "etc/pve/mapping/pci.cfg"), node)
        texts = guest_files(self._root, kind)
        return tuple(read_guest(vmid, KINDS[kind], text, mappings, lambda path: read_included(self._root, path)) for vmid, text in texts.items())

    def gpu_containers(self) -> tuple[GpuContainer, ...]:
        """Return this node's containers that work with the node's driver or have files of it, and whether they run."""
        active = active_containers(self._text("proc/net/unix"))
        users = [guest for guest in self.guests("lxc") if guest.uses_driver or guest.driver_files]
        return tuple(GpuContainer(guest.vmid, guest.name, guest.nodes, guest.vmid in active, guest.driver_files, guest.uses_driver) for guest in users)

    def settings(self) -> tuple[Setting, ...]:
        """Return what modprobe's files and the kernel command line say about the driver and vfio-pci."""
        # As modprobe reads them: a file of the same name in an earlier folder hides the later one.
        paths = {path.name: path for folder in reversed(_MODPROBE_FOLDERS) for path in sorted((self._root / folder).glob("*.conf"))}
        texts = {f"/{path.relative_to(self._root)}": _read(path) for _unused, path in sorted(paths.items())}
        return settings(texts, self._text("proc/cmdline"))

    def loads_at_boot(self) -> bool:
        """Say whether anything makes nvidia-uvm ready at boot: a modules-load.d file, an enabled unit or a udev rule."""
        places = [(self._root / folder).glob("*") for folder in ("etc/modules-load.d", "usr/lib/modules-load.d", "run/modules-load.d", "etc/udev/rules.d")]
        places += [(self._root / "etc/systemd/system").glob("*.wants/*.service"), (self._root / "etc").glob("modules")]
        texts = (_read(path) for paths in places for path in paths)
        return any(re.search(r"^[^#\n]*nvidia([-_]uvm|-modprobe\b.*\s-u)", text, re.MULTILINE) for text in texts)

    def proc_gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs below /proc/driver/nvidia/gpus, which need neither library nor device node."""
        found = []
        for place in sorted((self._root / "proc/driver/nvidia/gpus").glob("*")):
            rows = gpu_information(_read(place / "information"))
            minor = rows.get("Device Minor", "")
            uuid = rows.get("GPU UUID")
            found.append(
                Gpu(
                    uuid=uuid if uuid and "?" not in uuid else None,
                    name=rows.get("Model"),
                    bus_id=bus_id(rows.get("Bus Location", place.name)),
                    minor=int(minor) if minor.isdigit() else None,
                )
            )
        return tuple(found)

    def kernel_messages(self) -> str | None:
        """Return this boot's kernel messages about NVIDIA, None where they can't be read."""
        result = self._run(["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-unix", "--grep=NVRM"])
        # journalctl --grep ends with 1 when nothing matches.
        return result.stdout if result and (result.rc == 0 or not result.stderr.strip()) else None

    def secure_boot(self) -> SecureBoot:
        """Return whether Secure Boot is on, and if so, whether DKMS's key is enrolled."""
        on = self._efi_secure_boot()
        on = state_of(self._said(["mokutil", "--sb-state"])) if on is None else on
        if not on:
            return SecureBoot(on)
        texts = [self._text("etc/dkms/framework.conf"), *(_read(path) for path in sorted((self._root / "etc/dkms/framework.conf.d").glob("*.conf")))]
        certificate = certificate_of(texts)
        exists = (self._root / certificate.lstrip("/")).exists()
        asked = self._said(["mokutil", "--test-key", certificate]) if exists else ""
        return SecureBoot(on, certificate, exists, enrolled_of(asked), pending_of(asked))

    def _efi_secure_boot(self) -> bool | None:
        for path in (self._root / "sys/firmware/efi/efivars").glob("SecureBoot-*"):
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                return bool(data[-1]) if data else None
        return None

    def cpu_level(self) -> int | None:
        """Return the processor's level of x86-64."""
        return cpu_level(self._text("proc/cpuinfo"))

    def iommu(self) -> str | None:
        """Return the IOMMU's default domain type as the kernel's groups show it, "off" without groups, None where /sys says nothing."""
        groups = self._root / "sys/kernel/iommu_groups"
        if not groups.is_dir():
            return None
        types = {_read(path / "type").strip() for path in groups.glob("*")}
        return ",".join(sorted(filter(None, types))) or "off"

    def _text(self, name: str) -> str:
        return _read(self._root / name)

    def _output(self, argv: list[str]) -> str:
        result = self._run(argv)
        return result.stdout if result and result.rc == 0 else ""

    def _said(self, argv: list[str]) -> str:
        """Return what a program says, whatever its exit code is (mokutil's says other things)."""
        result = self._run(argv)
        return f"{result.stdout}\n{result.stderr}" if result else ""

    def _run(self, argv: list[str]) -> CommandResult | None:
        # A program that is not there is an answer here: nothing of that kind is installed.
        with contextlib.suppress(KproError):
            return self._command.run(argv, timeout_s=30.0)
        return None


def _read(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes().decode("utf-8", "replace")
    return ""


def _container_of(environ: str) -> str:
    """Return the value of ``container=`` in a process environment."""
    return next((word.partition("=")[2] for word in environ.split("\0") if word.startswith("container=")), "")


def _node(path: pathlib.Path, shown: str) -> DeviceNode:
    status = path.stat()
    character = stat.S_ISCHR(status.st_mode)
    return DeviceNode(
        path=shown,
        kind="character" if character else "file" if stat.S_ISREG(status.st_mode) else "other",
        major=os.major(status.st_rdev) if character else None,
        minor=os.minor(status.st_rdev) if character else None,
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
        owner=status.st_uid,
        group=status.st_gid,
        opened=_opened(path) if character else "not a device",
    )


def _opened(path: pathlib.Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "ok"
