# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that keep a driver as it is: module options, boot unit, persistence daemon, apt preferences."""

from __future__ import annotations

import typing as t

from .._apt.repository import Repository
from .repository import pin_text

MODPROBE = "/etc/modprobe.d/kpro-nvidia.conf"
MODULES_LOAD = "/etc/modules-load.d/kpro-nvidia.conf"
NODES_UNIT = "kpro-nvidia-devnodes.service"
PERSISTENCE_UNIT = "nvidia-persistenced.service"
SYSUSERS = "/etc/sysusers.d/kpro-nvidia.conf"
KERNEL_HOOK = "/etc/kernel/postinst.d/zz-kpro-nvidia"
PREFERENCES = "/etc/apt/preferences.d/kpro-nvidia"
UNIT_FOLDER = "/etc/systemd/system"
_HEAD = "# Written by the Ansible collection kpro.llm; changes are undone at its next run.\n"

# Package names of a driver's parts at Debian, Ubuntu and NVIDIA. Not nvidia-*: the container toolkit is called so, too.
DRIVER_PACKAGES = (
    "cuda-drivers*",
    "firmware-nvidia-*",
    "libcuda1*",
    "libnvidia-allocator*",
    "libnvidia-cfg*",
    "libnvidia-compute*",
    "libnvidia-gl*",
    "libnvidia-glcore*",
    "libnvidia-ml*",
    "libnvidia-nvvm*",
    "libnvidia-ptxjitcompiler*",
    "nvidia-alternative*",
    "nvidia-dkms*",
    "nvidia-driver*",
    "nvidia-headless*",
    "nvidia-kernel*",
    "nvidia-modprobe*",
    "nvidia-open*",
    "nvidia-persistenced*",
    "nvidia-smi*",
    "nvidia-utils*",
)


def kernel_hook_text() -> str:
    """Return the check that runs after a kernel package was installed, DKMS's own hook included (hooks run by name)."""
    return (
        "#!/bin/sh\n"
        f"{_HEAD}"
        "# A kernel without the NVIDIA module is noticed when it is installed, not after the reboot.\n"
        "kernel=$1\n"
        'if [ -n "$kernel" ] && ! dkms status -k "$kernel" 2> /dev/null | grep -q "^nvidia.*: installed"; then\n'
        '    text="kernel $kernel has no NVIDIA module: after a reboot into it no container has a GPU."\n'
        '    text="$text Install proxmox-headers-$kernel and run dkms autoinstall -k $kernel, or: proxmox-boot-tool kernel pin $(uname -r)"\n'
        '    echo "kpro.llm: $text" >&2\n'
        '    logger -p daemon.warning -t kpro-nvidia "$text" || true\n'
        "fi\n"
        "exit 0\n"
    )


def mode_of(path: str) -> int:
    """Return the permissions of one of the files."""
    return 0o755 if path == KERNEL_HOOK else 0o644


def preferences_text() -> str:
    """Return apt preferences that keep driver packages away from the vendor's files."""
    return f"{_HEAD}Package: {' '.join(DRIVER_PACKAGES)}\nPin: release *\nPin-Priority: -1\n"


def modprobe_text() -> str:
    """Return module options that keep nouveau off the GPUs."""
    return f"{_HEAD}blacklist nouveau\noptions nouveau modeset=0\n"


def modules_load_text() -> str:
    """Return the modules to load at boot; nvidia_drm is left out, as it blocks a GPU reset and CUDA has no use for it."""
    return f"{_HEAD}nvidia\nnvidia_uvm\n"


def nodes_unit_text(minors: t.Sequence[int]) -> str:
    """Return the boot unit that makes every device node before a container can start without them.

    Two calls, as in nvidia-modprobe's source ``-u`` gives ``-c`` another meaning (base minor of nvidia-uvm and nvidia-uvm-tools)
    and then leaves the GPUs' nodes out.
    """
    gpus = " ".join(f"-c {minor}" for minor in minors)
    return (
        f"{_HEAD}[Unit]\n"
        "Description=NVIDIA device nodes, made before guests start\n"
        "After=systemd-modules-load.service\n"
        "Before=pve-guests.service pve-ha-lrm.service lxc.service nvidia-persistenced.service\n"
        "\n[Service]\n"
        "Type=oneshot\n"
        "RemainAfterExit=yes\n"
        f"ExecStart=/usr/bin/nvidia-modprobe {gpus} -c 255\n"
        "ExecStart=/usr/bin/nvidia-modprobe -u -c 0\n"
        "\n[Install]\n"
        "WantedBy=multi-user.target\n"
    )


def persistence_unit_text(power_limit_w: int) -> str:
    """Return the persistence daemon's unit, as in the vendor's sample; a power limit lasts as long as persistence does."""
    limit = f"ExecStartPost=/usr/bin/nvidia-smi --power-limit={power_limit_w}\n" if power_limit_w else ""
    return (
        f"{_HEAD}[Unit]\n"
        "Description=NVIDIA Persistence Daemon\n"
        f"After={NODES_UNIT}\n"
        f"Wants={NODES_UNIT}\n"
        "\n[Service]\n"
        "Type=forking\n"
        "PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid\n"
        "ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced\n"
        f"{limit}"
        "ExecStopPost=/bin/rm -rf /run/nvidia-persistenced\n"
        "Restart=on-failure\n"
        "\n[Install]\n"
        "WantedBy=multi-user.target\n"
    )


def sysusers_text() -> str:
    """Return the persistence daemon's user."""
    return f'{_HEAD}u nvidia-persistenced - "NVIDIA Persistence Daemon" /run/nvidia-persistenced /usr/sbin/nologin\n'


def node_files(minors: t.Sequence[int], persistence: bool, power_limit_w: int, repository: Repository | None = None, version: str = "") -> dict[str, str]:
    """Return the files of a node by path.

    :param repository: where the driver's packages come from; None: packages of a driver are kept away.
    """
    files = {
        MODPROBE: modprobe_text(),
        PREFERENCES: pin_text(_HEAD, version) if repository else preferences_text(),
        **({repository.sources_path: repository.sources_text} if repository else {}),
        MODULES_LOAD: modules_load_text(),
        KERNEL_HOOK: kernel_hook_text(),
        f"{UNIT_FOLDER}/{NODES_UNIT}": nodes_unit_text(minors),
    }
    if persistence:
        files |= {SYSUSERS: sysusers_text(), f"{UNIT_FOLDER}/{PERSISTENCE_UNIT}": persistence_unit_text(power_limit_w)}
    return files


def userland_files() -> dict[str, str]:
    """Return the files of a container by path."""
    return {PREFERENCES: preferences_text()}


def node_units(persistence: bool) -> tuple[str, ...]:
    """Return the units of a node, in the order in which they start."""
    return (NODES_UNIT, PERSISTENCE_UNIT) if persistence else (NODES_UNIT,)
