# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders of a node that are never mounted into a container, given away or removed. Pure.

A container's root owns what is mounted for it. So the system's own folders, the folders of people and of other guests are refused, and any folder
that holds one of them.
"""

from __future__ import annotations

import posixpath
import re

from .._core.errors import KproError
from .mount_table import within

# Nothing below these may be mounted.
TREES: tuple[str, ...] = (
    *("/etc", "/usr", "/boot", "/efi", "/dev", "/proc", "/sys", "/run", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/lost+found"),
    *("/var/run", "/var/lock", "/var/log", "/var/spool", "/var/mail", "/var/backups", "/var/cache"),
    *(f"/var/lib/{name}" for name in ("apt", "ceph", "corosync", "dbus", "dkms", "dpkg", "initramfs-tools", "kpro-llm", "lxc", "lxcfs", "nfs")),
    *(f"/var/lib/{name}" for name in ("pam", "private", "pve-cluster", "pve-firewall", "pve-manager", "qemu-server", "systemd", "ucf")),
    *(f"/var/lib/vz/{name}" for name in ("dump", "images", "import", "private", "root", "snippets", "template")),
)
# These themselves may not; a folder of one's own below them may.
FOLDERS: tuple[str, ...] = (
    *("/home", "/root", "/opt", "/srv", "/mnt", "/mnt/pve", "/media", "/tmp", "/var", "/var/tmp", "/var/lib", "/var/lib/vz", "/var/opt", "/var/local"),
    *("/rpool", "/rpool/ROOT", "/rpool/data"),
)
# A guest's own volume, whatever storage it is on.
_VOLUME = re.compile(r"(?:subvol|basevol|vm|base)-\d+-(?:disk|state|cloudinit)\b")
_PERSONAL = re.compile(r"^/(?:home/[^/]+|root)(?:/\.[^/]+(?:/.*)?)?$")
_REMEDY = "Nothing was changed. Name a folder of its own for the container, for example /srv/models"


def system_folder(path: str) -> str:
    """Return in words which system folder an absolute path is, holds or lies in; empty if it is none."""
    plain = plain_path(path)
    for folder in TREES:
        if within(plain, folder):
            return f"the system's folder {folder}" if plain == folder else f"in the system's folder {folder}"
    if _PERSONAL.match(plain):
        return "the folder of a user's own files" if plain.count("/") < 3 and "/." not in plain else "in a user's own configuration"
    if plain in FOLDERS:
        return f"the system's folder {plain}"
    if any(_VOLUME.match(part) for part in plain.split("/")):
        return "the volume of a guest"
    held = next((folder for folder in (*TREES, *FOLDERS) if within(folder, plain)), "")
    return f"a folder that holds the system's {held}" if held else ""


def plain_path(path: str) -> str:
    """Return an absolute path without double and trailing slashes."""
    return posixpath.normpath(re.sub(r"^/+", "/", path))


def check_source(what: str, path: str, real: str = "") -> None:
    """Stop if a folder of the node may not be mounted into a container.

    :param what: what names it, for the message.
    :param path: as it is declared.
    :param real: where its links lead; empty if that was not looked at.
    :raises KproError: naming the system folder.
    """
    if ".." in path.split("/"):
        raise KproError(what, "its path holds '..'", _REMEDY)
    for each in (path, real):
        if each and (found := system_folder(each)):
            leads = f"it leads to {each}, which is" if each == real and plain_path(real) != plain_path(path) else "it is"
            raise KproError(what, f"{leads} {found}, and what is mounted for a container belongs to its root", _REMEDY)
